/* add: the sum of two matrices, element by element; a residual connection by itself. */
#include "op/add/add.h"

#include "op/element.h"
#include "op/row.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

static int64_t units(const op_call *call)
{
    return tensor_elements(&call->tensors[ADD_OUT]);
}

void add_reference(const op_call *call)
{
    const tensor *a = &call->tensors[ADD_A];     /* (n_rows, n_columns) */
    const tensor *b = &call->tensors[ADD_B];     /* (n_rows, n_columns) */
    const tensor *out = &call->tensors[ADD_OUT]; /* (n_rows, n_columns) */

    for (int64_t unit = call->begin; unit < call->end;) {
        row_span span = row_span_at(unit, call->end, out->shape[1]);
        const void *from_a = tensor_row(a, span.row), *from_b = tensor_row(b, span.row);
        void *to = tensor_row(out, span.row);
        for (int64_t i = span.first; i < span.first + span.count; i++) {
            double sum = element_load(a->type, from_a, i) + element_load(b->type, from_b, i);
            element_store(out->type, to, i, sum);
        }
        unit += span.count;
    }
}

OP_SIMD8_TABLE(add, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_rows=1 n_columns=64",
    "n_rows=19 n_columns=111 out=a",
    "n_rows=3 n_columns=500 a:BF16 b:BF16 out:BF16",
    "n_rows=5 n_columns=576 a:F16 b:F32 out:F16 a+16 b+24 out+8",
    "n_rows=4 n_columns=33 out=b",
    "n_rows=0 n_columns=64",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_rows=512 n_columns=4096 a:BF16 b:BF16 out:BF16",
    "llama-3.2-1b: n_rows=1 n_columns=2048 a:BF16 b:BF16 out:BF16",
    "internlm2-1.8b: n_rows=512 n_columns=2048 a:BF16 b:BF16 out:BF16",
    "smollm2-135m: n_rows=512 n_columns=576",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_add = {
    .name = "add",
    .summary = "sum of two matrices, element by element",
    .place = "A residual connection where no other operator includes it: linear adds a residual "
             "of its own, add_rms_norm one before a norm.",
    .formula = "out[r, i] = a[r, i] + b[r, i]",
    .precision = "float32 or wider, one rounding to the type of out.",
    .edge_cases = "out may be a, b or both. No rows: nothing is written.",
    .source = "torch.add",
    .unit = "an element of out: row * n_columns + column",
    .flops = "n_rows * n_columns",
    .axes = {{"n_rows", AXIS_VARIABLE, "rows"}, {"n_columns", AXIS_CONSTANT, "elements in a row"}},
    .tensors = {{"a", OP_IN, OP_FLOATS, "n_rows, n_columns", false, "rows may be strided"},
                {"b", OP_IN, OP_FLOATS, "n_rows, n_columns", false, "rows may be strided"},
                {"out", OP_OUT, OP_FLOATS, "n_rows, n_columns", false,
                 "rows may be strided; may be a or b"}},
    .grain = 4096,
    .units = units,
    .reference = add_reference,
    .variants = variants,
    .cuda = add_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
};
