/* all_reduce: the sum over ranks that ends every half layer of a tensor-parallel model.
 *
 * Each rank holds one part, and all ranks get the sum. The reference has the parts of all ranks in
 * one memory, which defines what a transport must deliver; ranks that run apart give theirs to a
 * group (op/exchange.h). With one rank, in place, it costs nothing.
 */
#include "op/all_reduce/all_reduce.h"

#include "op/cuda_ops.h"
#include "op/element.h"
#include "op/exchange.h"
#include "op/row.h"

static int64_t units(const op_call *call)
{
    return tensor_elements(&call->tensors[ALL_REDUCE_OUT]);
}

static qp_status check(const op_call *call, qp_error *error)
{
    if (call->tensors[ALL_REDUCE_PARTS].shape[0] >= 1) return QP_OK;
    return error_set(error, QP_INVALID, "all_reduce: there must be at least one rank");
}

/* Whether the only part is the output itself, so that nothing is to be done. */
static bool is_in_place(const tensor *parts, const tensor *out)
{
    return parts->shape[0] == 1 && parts->data == out->data && parts->type == out->type &&
           parts->stride[1] == out->stride[0];
}

void all_reduce_reference(const op_call *call)
{
    const tensor *parts = &call->tensors[ALL_REDUCE_PARTS]; /* (n_ranks, n_rows, n_columns) */
    const tensor *out = &call->tensors[ALL_REDUCE_OUT];     /* (n_rows, n_columns) */
    if (exchange_group(call)) {
        exchange_sum(call);
        return;
    }
    if (is_in_place(parts, out)) return;

    for (int64_t unit = call->begin; unit < call->end;) {
        row_span span = row_span_at(unit, call->end, out->shape[1]);
        void *to = tensor_row(out, span.row);
        for (int64_t i = span.first; i < span.first + span.count; i++) {
            double sum = element_load(parts->type, tensor_row2(parts, 0, span.row), i);
            for (int64_t rank = 1; rank < parts->shape[0]; rank++)
                sum += element_load(parts->type, tensor_row2(parts, rank, span.row), i);
            element_store(out->type, to, i, sum);
        }
        unit += span.count;
    }
}

static const char *const cases[] = {
    "n_ranks=1 n_rows=3 n_columns=64",
    "n_ranks=2 n_rows=19 n_columns=111",
    "n_ranks=8 n_rows=2 n_columns=500 parts:BF16 out:BF16",
    "n_ranks=4 n_rows=5 n_columns=576 parts:F16 out:F16 parts+16 out+8",
    "n_ranks=2 n_rows=0 n_columns=64",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_ranks=8 n_rows=512 n_columns=4096 parts:BF16 out:BF16",
    "llama-3.2-1b: n_ranks=2 n_rows=1 n_columns=2048 parts:BF16 out:BF16",
    "internlm2-1.8b: n_ranks=4 n_rows=512 n_columns=2048 parts:BF16 out:BF16",
    "smollm2-135m: n_ranks=1 n_rows=512 n_columns=576",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_all_reduce = {
    .name = "all_reduce",
    .summary = "sum over the ranks of a tensor-parallel model",
    .place = "attn_allreduce and ffn_allreduce, after the projections that are split by input "
             "columns: each rank's product is a part of the sum, and rank 0's part holds the "
             "residual.",
    .formula = "out[r, i] = sum_rank parts[rank, r, i]",
    .precision = "float32 or wider, in the order of the ranks, one rounding to the type of out: "
                 "every rank gets the same bits.",
    .edge_cases = "At one rank with out = parts[0] nothing is read or written. out may be parts[0] "
                  "at any number of ranks.",
    .source = "MPI_Allreduce with MPI_SUM, in fixed order",
    .unit = "an element of out: row * n_columns + column",
    .flops = "(n_ranks - 1) * n_rows * n_columns",
    .axes = {{"n_ranks", AXIS_CONSTANT, "ranks, at least 1"},
             {"n_rows", AXIS_VARIABLE, "rows"},
             {"n_columns", AXIS_CONSTANT, "elements in a row"}},
    .tensors = {{"parts", OP_IN, OP_FLOATS, "n_ranks, n_rows, n_columns", false,
                 "each rank's part; any strides of ranks and rows"},
                {"out", OP_OUT, OP_FLOATS, "n_rows, n_columns", false,
                 "rows may be strided; may be parts[0]"}},
    .grain = 4096,
    .units = units,
    .check = check,
    .reference = all_reduce_reference,
    .cuda = all_reduce_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "n_ranks",
    .fills = OP_FILL_INFINITY | OP_FILL_NAN,
};
