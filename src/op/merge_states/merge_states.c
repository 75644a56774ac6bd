/* merge_states: attention over any number of disjoint parts of the positions, from the attention
 * over each.
 *
 * The reference merges one state after the other with that of merge_state, in float64.
 */
#include "op/merge_states/merge_states.h"

#include "base/checked.h"
#include "op/merge_state/merge_state.h"
#include "op/row.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return call->tensors[MERGE_STATES_OUT].shape[1];
}

static op_columns columns(const op_call *call, int t, int64_t begin, int64_t end)
{
    const tensor *v = &call->tensors[MERGE_STATES_V]; /* (n_tokens, n_heads, n_states, head_dim) */
    int64_t per_head = t == MERGE_STATES_OUT ? v->shape[3]
                       : t == MERGE_STATES_S ? v->shape[2]
                                             : v->shape[2] * v->shape[3];
    return (op_columns){begin * per_head, end * per_head};
}

/* A merged head in float64, or the states' weights in float32. */
static size_t scratch_bytes(const op_call *call)
{
    const tensor *v = &call->tensors[MERGE_STATES_V];
    size_t head = (size_t)v->shape[3] * sizeof(double);
    size_t weights = (size_t)v->shape[2] * sizeof(float);
    return round_up(head > weights ? head : weights, 64);
}

/* One state of one head as tensors of one token and one head. */
static void put_state(op_call *merge, int v, int s, const op_call *call, int64_t token,
                      int64_t head, int64_t state)
{
    const tensor *all_v = &call->tensors[MERGE_STATES_V], *all_s = &call->tensors[MERGE_STATES_S];
    char *row = (char *)tensor_row2(all_v, token, head) + state * all_v->stride[2];
    char *sum = (char *)tensor_row2(all_s, token, head) + state * all_s->stride[2];
    merge->tensors[v] = tensor_3d(row, all_v->type, 1, 1, all_v->shape[3]);
    merge->tensors[s] = tensor_2d(sum, all_s->type, 1, 1);
}

void merge_states_reference(const op_call *call)
{
    const tensor *v = &call->tensors[MERGE_STATES_V];
    const tensor *out = &call->tensors[MERGE_STATES_OUT]; /* (n_tokens, n_heads, head_dim) */
    int64_t head_dim = out->shape[2];
    double *merged = call->scratch, sum; /* merged (head_dim) */

    for (int64_t token = 0; token < out->shape[0]; token++) {
        for (int64_t head = call->begin; head < call->end; head++) {
            for (int64_t i = 0; i < head_dim; i++)
                merged[i] = 0;
            sum = -INFINITY;
            op_call merge = {.end = 1};
            merge.tensors[MERGE_STATE_V_A] = tensor_3d(merged, DTYPE_F64, 1, 1, head_dim);
            merge.tensors[MERGE_STATE_S_A] = tensor_2d(&sum, DTYPE_F64, 1, 1);
            merge.tensors[MERGE_STATE_V] = merge.tensors[MERGE_STATE_V_A];
            merge.tensors[MERGE_STATE_S] = merge.tensors[MERGE_STATE_S_A];
            for (int64_t state = 0; state < v->shape[2]; state++) {
                put_state(&merge, MERGE_STATE_V_B, MERGE_STATE_S_B, call, token, head, state);
                merge_state_reference(&merge);
            }
            row_store(out->type, tensor_row2(out, token, head), head_dim, merged);
        }
    }
}

OP_SIMD_TABLE(merge_states, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 n_heads=4 n_states=3 head_dim=64",
    "n_tokens=5 n_heads=3 n_states=1 head_dim=111",
    "n_tokens=3 n_heads=8 n_states=16 head_dim=128 v:BF16 out:BF16",
    "n_tokens=2 n_heads=2 n_states=7 head_dim=48 v:F16 out:F16 v+8 out+16",
    "n_tokens=2 n_heads=2 n_states=0 head_dim=8",
    "n_tokens=0 n_heads=2 n_states=2 head_dim=16",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=1 n_heads=32 n_states=16 head_dim=128",
    "llama-3.2-1b: n_tokens=1 n_heads=32 n_states=16 head_dim=64",
    "internlm2-1.8b: n_tokens=8 n_heads=16 n_states=16 head_dim=128",
    "smollm2-135m: n_tokens=1 n_heads=9 n_states=4 head_dim=64",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 2e-6, 2e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_merge_states = {
    .name = "merge_states",
    .summary = "attention states over disjoint positions, merged into one output",
    .place = "After attention_partial: each of the workers that shared a context left an "
             "output and a log-sum-exp.",
    .formula = "a_p = 2^s[t, h, p]: out[t, h] = sum_p a_p * v[t, h, p] / sum_p a_p",
    .precision = "float32 or wider, weights relative to the largest of the sums; states are added "
                 "in their order; one rounding to the type of out.",
    .edge_cases = "A state with a sum of -inf is empty and adds nothing; only empty ones, or none, "
                  "give 0.",
    .source = "FlashInfer merge_states, which has states before heads and gives the merged sum too",
    .unit = "a head, of all tokens",
    .flops = "2 * n_tokens * n_heads * n_states * (head_dim + 2)",
    .axes = {{"n_tokens", AXIS_VARIABLE, "tokens"},
             {"n_heads", AXIS_CONSTANT, "query heads"},
             {"n_states", AXIS_CONSTANT, "parts into which the positions were split"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"}},
    .tensors = {{"v", OP_IN, OP_FLOATS, "n_tokens, n_heads, n_states, head_dim", false,
                 "outputs; tokens may be strided"},
                {"s", OP_IN, OP_TYPE(F32) | OP_TYPE(F64), "n_tokens, n_heads, n_states", false,
                 "their log-sum-exps, base 2; tokens may be strided"},
                {"out", OP_OUT, OP_FLOATS, "n_tokens, n_heads, head_dim", false,
                 "tokens may be strided; must not overlap v"}},
    .units = units,
    .columns = columns,
    .scratch_bytes = scratch_bytes,
    .reference = merge_states_reference,
    .variants = variants,
    .cuda = merge_states_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
};
