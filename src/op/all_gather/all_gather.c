/* all_gather: rows whose columns several ranks have computed, whole on every rank.
 *
 * Nothing is computed, so every rank has the bits that one rank would have. The reference has the
 * columns of the other ranks in one memory, which defines what a transport must deliver; ranks that
 * run apart give theirs to a group (op/exchange.h).
 */
#include "op/all_gather/all_gather.h"

#include "op/cuda_ops.h"
#include "op/element.h"
#include "op/exchange.h"
#include "op/row.h"

static int64_t units(const op_call *call)
{
    return tensor_elements(&call->tensors[ALL_GATHER_OUT]);
}

static qp_status check(const op_call *call, qp_error *error)
{
    const int64_t n_columns = call->tensors[ALL_GATHER_OUT].shape[1];
    const int64_t n_own = call->tensors[ALL_GATHER_PART].shape[1];
    const double first = call->params[ALL_GATHER_FIRST];
    if (first >= 0 && first + (double)n_own <= (double)n_columns) return QP_OK;
    return error_set(error, QP_INVALID,
                     "all_gather: columns %.0f to %.0f of this rank are not among the %lld of out",
                     first, first + (double)n_own - 1, (long long)n_columns);
}

/* An element, unless it is there already. */
static void copy(const tensor *from, int64_t row, int64_t column, const tensor *out, int64_t to)
{
    const char *source = tensor_row(from, row);
    char *target = tensor_row(out, row);
    const size_t from_size = dtype_block_bytes(from->type), to_size = dtype_block_bytes(out->type);
    if (source + (size_t)column * from_size == target + (size_t)to * to_size) return;
    element_store(out->type, target, to, element_load(from->type, source, column));
}

void all_gather_reference(const op_call *call)
{
    const tensor *part = &call->tensors[ALL_GATHER_PART];     /* (n_rows, n_own) */
    const tensor *others = &call->tensors[ALL_GATHER_OTHERS]; /* (n_rows, n_columns) */
    const tensor *out = &call->tensors[ALL_GATHER_OUT];       /* (n_rows, n_columns) */
    const int64_t first = (int64_t)call->params[ALL_GATHER_FIRST];
    const int64_t end = first + part->shape[1];
    if (exchange_group(call)) {
        exchange_columns(call);
        return;
    }

    for (int64_t unit = call->begin; unit < call->end;) {
        row_span span = row_span_at(unit, call->end, out->shape[1]);
        for (int64_t i = span.first; i < span.first + span.count; i++) {
            if (i >= first && i < end)
                copy(part, span.row, i - first, out, i);
            else if (others->rank)
                copy(others, span.row, i, out, i);
        }
        unit += span.count;
    }
}

static const char *const cases[] = {
    "n_rows=1 n_own=32 n_columns=64 first=32",
    "n_rows=19 n_own=37 n_columns=111 first=40",
    "n_rows=3 n_own=500 n_columns=500 first=0 part:BF16 others:BF16 out:BF16",
    "n_rows=5 n_own=64 n_columns=576 first=512 part+16 others+8 out+24",
    "n_rows=0 n_own=8 n_columns=64 first=8",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_rows=512 n_own=2048 n_columns=4096 first=2048",
    "llama-3.2-1b: n_rows=1 n_own=1024 n_columns=2048 first=0",
    "internlm2-1.8b: n_rows=512 n_own=512 n_columns=2048 first=1024",
    "smollm2-135m: n_rows=512 n_own=288 n_columns=576 first=288",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_all_gather = {
    .name = "all_gather",
    .summary = "columns of all ranks of a tensor-parallel model, side by side",
    .place = "Before the output and the down projection, and after each, where ranks cut every "
             "product by its outputs: a product needs the whole rows. After the product that makes "
             "the logits in any case.",
    .formula = "out[r, c] = part[r, c - first] where first <= c < first + n_own, else others[r, c]",
    .precision = "A copy: exact if out has the type of the parts.",
    .edge_cases = "part may be columns [first, first + n_own) of out, which are then left as they "
                  "are. With ranks others is absent: its columns come from the other ranks.",
    .source = "MPI_Allgatherv on columns",
    .unit = "an element of out: row * n_columns + column",
    .flops = "0",
    .axes = {{"n_rows", AXIS_VARIABLE, "rows"},
             {"n_own", AXIS_CONSTANT, "columns that this rank has computed"},
             {"n_columns", AXIS_CONSTANT, "columns of all ranks"}},
    .tensors = {{"part", OP_IN, OP_FLOATS, "n_rows, n_own", false,
                 "this rank's columns; rows may be strided"},
                {"others", OP_IN, OP_FLOATS, "n_rows, n_columns", true,
                 "the other ranks' columns, if they are in the same memory"},
                {"out", OP_OUT, OP_FLOATS, "n_rows, n_columns", false,
                 "rows may be strided; may hold part"}},
    .params = {{"first", PARAM_INT, 0, "the first of this rank's columns"}},
    .grain = 4096,
    .units = units,
    .check = check,
    .reference = all_gather_reference,
    .cuda = all_gather_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
};
