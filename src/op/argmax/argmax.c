/* argmax: the id of each row's largest logit; greedy decoding. */
#include "op/argmax/argmax.h"

#include "op/element.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return call->tensors[ARGMAX_LOGITS].shape[0];
}

static qp_status check(const op_call *call, qp_error *error)
{
    if (call->tensors[ARGMAX_LOGITS].shape[1] > 0) return QP_OK;
    return error_set(error, QP_INVALID, "argmax: vocab_size must be at least 1");
}

void argmax_reference(const op_call *call)
{
    const tensor *logits = &call->tensors[ARGMAX_LOGITS]; /* (n_rows, vocab_size) */
    int32_t *ids = call->tensors[ARGMAX_IDS].data;        /* (n_rows) */
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(logits, row);
        double largest = -INFINITY;
        ids[row] = 0;
        for (int64_t i = 0; i < logits->shape[1]; i++) {
            double value = element_load(logits->type, in, i);
            if (!(value > largest)) continue;
            largest = value;
            ids[row] = (int32_t)i;
        }
    }
}

OP_SIMD_TABLE(argmax, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_rows=1 vocab_size=111",
    "n_rows=17 vocab_size=320",
    "n_rows=3 vocab_size=1025 logits:BF16",
    "n_rows=5 vocab_size=500 logits:F16 logits+12",
    "n_rows=4 vocab_size=1",
    "n_rows=0 vocab_size=111",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_rows=1 vocab_size=128256",
    "internlm2-1.8b: n_rows=4 vocab_size=92544",
    "smollm2-135m: n_rows=1 vocab_size=49152",
    NULL,
};

const op_info op_argmax = {
    .name = "argmax",
    .summary = "the id of the largest logit of each row",
    .place = "The last step of greedy decoding; what sampling does at temperature 0.",
    .formula = "ids[r] = the least i with logits[r, i] = max_j logits[r, j]",
    .precision = "Exact.",
    .edge_cases = "Ties go to the lowest id. NaN counts as minus infinity; a row of nothing else "
                  "gives 0. An empty vocabulary is an error.",
    .source = "torch.argmax, with a defined rule for ties",
    .unit = "a row",
    .flops = "n_rows * vocab_size",
    .axes = {{"n_rows", AXIS_VARIABLE, "sequences that need a token"},
             {"vocab_size", AXIS_CONSTANT, "logits in a row"}},
    .tensors = {{"logits", OP_IN, OP_FLOATS, "n_rows, vocab_size", false, "rows may be strided"},
                {"ids", OP_OUT, OP_TYPE(I32), "n_rows", false, "a token a row"}},
    .units = units,
    .check = check,
    .reference = argmax_reference,
    .variants = variants,
    .cuda = argmax_cuda,
    .cases = cases,
    .workloads = workloads,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
};
