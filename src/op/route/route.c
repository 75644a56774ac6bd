/* route: the experts of each token, and how much each counts.
 *
 * A row has some dozens of logits, so the reference is the only variant on a CPU: it takes about a
 * microsecond, where the products with the chosen experts take milliseconds.
 */
#include "op/route/route.h"

#include "op/cuda_ops.h"
#include "op/element.h"
#include "op/row.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return call->tensors[ROUTE_LOGITS].shape[0];
}

static size_t scratch_bytes(const op_call *call)
{
    return (size_t)call->tensors[ROUTE_LOGITS].shape[1] * sizeof(double);
}

static qp_status check(const op_call *call, qp_error *error)
{
    const int64_t n_experts = call->tensors[ROUTE_LOGITS].shape[1];
    const int64_t top_k = call->tensors[ROUTE_IDS].shape[1];
    if (top_k <= n_experts) return QP_OK;
    return error_set(error, QP_INVALID,
                     "route: top_k must be at most the number of experts, %lld, found %lld",
                     (long long)n_experts, (long long)top_k);
}

static bool is_greater(double a, double b)
{
    return a > b || (isnan(a) && !isnan(b));
}

/* The k experts of the largest logits, in falling order. */
static void choose(const double *logits, int64_t n_experts, int64_t k, int32_t *ids)
{
    for (int64_t i = 0; i < n_experts; i++) {
        int64_t at = i < k ? i : k;
        for (; at > 0 && is_greater(logits[i], logits[ids[at - 1]]); at--)
            if (at < k) ids[at] = ids[at - 1];
        if (at < k) ids[at] = (int32_t)i;
    }
}

void route_reference(const op_call *call)
{
    const tensor *logits = &call->tensors[ROUTE_LOGITS]; /* (n_tokens, n_experts) */
    const tensor *ids = &call->tensors[ROUTE_IDS];       /* (n_tokens, top_k) */
    const tensor *shares = &call->tensors[ROUTE_SHARES]; /* (n_tokens, top_k) */
    const bool normalised = call->params[ROUTE_NORMALISED] != 0;
    const int64_t n_experts = logits->shape[1], k = ids->shape[1];
    double *row = call->scratch; /* (n_experts) */
    for (int64_t t = call->begin; t < call->end && k > 0; t++) {
        int32_t *chosen = tensor_row(ids, t);
        row_load(logits->type, tensor_row(logits, t), n_experts, row);
        choose(row, n_experts, k, chosen);
        const double most = row[chosen[0]];
        double sum = 0;
        for (int64_t i = 0; i < (normalised ? k : n_experts); i++)
            sum += exp(row[normalised ? chosen[i] : i] - most);
        for (int64_t j = 0; j < k; j++)
            element_store(shares->type, tensor_row(shares, t), j, exp(row[chosen[j]] - most) / sum);
    }
}

static const char *const cases[] = {
    "n_tokens=1 n_experts=8 top_k=2 normalised=1",
    "n_tokens=19 n_experts=64 top_k=8",
    "n_tokens=7 n_experts=128 top_k=8 normalised=1",
    "n_tokens=3 n_experts=32 top_k=4 normalised=1 logits:BF16 shares:BF16",
    "n_tokens=3 n_experts=60 top_k=4 logits:F16 shares:F16 logits+4 ids+3 shares+1",
    "n_tokens=2 n_experts=5 top_k=5",
    "n_tokens=4 n_experts=3 top_k=1 normalised=1",
    "n_tokens=0 n_experts=8 top_k=2",
    NULL,
};

static const char *const workloads[] = {
    "qwen3-30b-a3b: n_tokens=1 n_experts=128 top_k=8 normalised=1",
    "olmoe-1b-7b: n_tokens=512 n_experts=64 top_k=8",
    "mixtral-8x7b: n_tokens=512 n_experts=8 top_k=2 normalised=1",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_route = {
    .name = "route",
    .summary = "the experts with the largest logits of each token, and their shares",
    .place = "In a layer with a mixture of experts, between the router's product and the products "
             "with the chosen experts (linear_experts).",
    .formula = "ids[t, :] = the first top_k experts by falling logits[t, e], then by rising e; "
               "shares[t, j] = exp(logits[t, ids[t, j]]) / sum_e exp(logits[t, e]), e over the "
               "chosen experts if normalised, else over all",
    .precision = "float64 throughout, one rounding to the type of shares.",
    .edge_cases = "Ties go to the lowest id. NaN counts as the largest value. A row with NaN or "
                  "infinity, or of minus infinity only, has shares of NaN where the formula gives "
                  "none; its ids are valid.",
    .source = "Shazeer et al.: Outrageously Large Neural Networks, 2017; Mixtral, OLMoE and Qwen3 "
              "of transformers, which divide softmax over all by the sum of the chosen where "
              "norm_topk_prob is true",
    .unit = "a token",
    .flops = "n_tokens * n_experts * 4",
    .axes = {{"n_tokens", AXIS_VARIABLE, "rows"},
             {"n_experts", AXIS_CONSTANT, "experts of a layer"},
             {"top_k", AXIS_CONSTANT, "experts that a token uses"}},
    .tensors = {{"logits", OP_IN, OP_FLOATS, "n_tokens, n_experts", false, "rows may be strided"},
                {"ids", OP_OUT, OP_TYPE(I32), "n_tokens, top_k", false, "the chosen experts"},
                {"shares", OP_OUT, OP_FLOATS, "n_tokens, top_k", false,
                 "the factor of each one's output"}},
    .params = {{"normalised", PARAM_BOOL, 0, "whether the shares of a token add up to 1"}},
    .units = units,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .reference = route_reference,
    .cuda = route_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
};
