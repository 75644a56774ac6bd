/* rope: rotates pairs of elements of each query and key head by angles that grow with the position.
 *
 * The cosines and sines come from a table, so only the model decides about the scaling of the
 * frequencies. Two pairings exist: NeoX (i, i + rotary_dim / 2), as Hugging Face stores weights,
 * and interleaved (2i, 2i + 1), as GGUF's llama weights are permuted.
 */
#include "op/rope/rope.h"

#include "base/hash.h"
#include "op/element.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

static int64_t units(const op_call *call)
{
    return call->tensors[ROPE_POSITIONS].shape[0];
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *positions = &call->tensors[ROPE_POSITIONS];
    const tensor *cos_sin = &call->tensors[ROPE_COS_SIN];
    int64_t head_dim = call->tensors[ROPE_Q].shape[2], rotary_dim = cos_sin->shape[1];
    if (rotary_dim % 2 != 0 || rotary_dim > head_dim)
        return error_set(error, QP_INVALID,
                         "rope: rotary_dim must be even and at most head_dim %lld, found %lld",
                         (long long)head_dim, (long long)rotary_dim);
    const int32_t *position = positions->data;
    for (int64_t t = 0; position && t < positions->shape[0]; t++) {
        if (position[t] < 0 || position[t] >= cos_sin->shape[0])
            return error_set(error, QP_INVALID,
                             "rope: positions[%lld] = %d is outside the table of %lld positions",
                             (long long)t, position[t], (long long)cos_sin->shape[0]);
    }
    return QP_OK;
}

static void prepare(op_call *call, uint64_t seed)
{
    const tensor *positions = &call->tensors[ROPE_POSITIONS];
    uint64_t max_positions = (uint64_t)call->tensors[ROPE_COS_SIN].shape[0];
    int32_t *position = positions->data;
    for (int64_t t = 0; t < positions->shape[0]; t++)
        position[t] = (int32_t)(hash_random(seed, 0, (uint64_t)t) % max_positions);
}

/* Rotates the head x (head_dim) in place; cosines and sines (rotary_dim / 2 each) of its position.
 */
static void rotate(dtype type, void *x, const float *cosines, const float *sines, int64_t half,
                   bool interleaved)
{
    for (int64_t i = 0; i < half; i++) {
        int64_t first = interleaved ? 2 * i : i;
        int64_t second = interleaved ? 2 * i + 1 : i + half;
        double a = element_load(type, x, first), b = element_load(type, x, second);
        element_store(type, x, first, a * cosines[i] - b * sines[i]);
        element_store(type, x, second, b * cosines[i] + a * sines[i]);
    }
}

void rope_reference(const op_call *call)
{
    const int32_t *positions = call->tensors[ROPE_POSITIONS].data; /* (n_tokens) */
    const tensor *cos_sin = &call->tensors[ROPE_COS_SIN];          /* (max_positions, rotary_dim) */
    int64_t half = cos_sin->shape[1] / 2;
    bool interleaved = call->params[ROPE_INTERLEAVED] != 0;

    for (int64_t t = call->begin; t < call->end; t++) {
        const float *cosines = tensor_row(cos_sin, positions[t]), *sines = cosines + half;
        for (int which = ROPE_Q; which <= ROPE_K; which++) {
            const tensor *x = &call->tensors[which]; /* (n_tokens, heads, head_dim) */
            for (int64_t head = 0; head < x->shape[1]; head++)
                rotate(x->type, tensor_row2(x, t, head), cosines, sines, half, interleaved);
        }
    }
}

OP_SIMD_TABLE(rope, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 n_heads=4 n_kv_heads=1 head_dim=64 rotary_dim=64 max_positions=128",
    "n_tokens=19 n_heads=3 n_kv_heads=3 head_dim=64 rotary_dim=32 max_positions=40",
    "n_tokens=7 n_heads=9 n_kv_heads=3 head_dim=64 rotary_dim=64 max_positions=99 interleaved=1",
    "n_tokens=5 n_heads=2 n_kv_heads=1 head_dim=128 rotary_dim=128 max_positions=33 q:BF16 k:BF16 "
    "q+16 k+8",
    "n_tokens=5 n_heads=2 n_kv_heads=1 head_dim=128 rotary_dim=96 max_positions=33 q:F16 k:F16 "
    "interleaved=1",
    "n_tokens=0 n_heads=2 n_kv_heads=1 head_dim=16 rotary_dim=16 max_positions=8",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=512 n_heads=32 n_kv_heads=8 head_dim=128 rotary_dim=128 "
    "max_positions=8192 q:BF16 k:BF16",
    "llama-3.2-1b: n_tokens=1 n_heads=32 n_kv_heads=8 head_dim=64 rotary_dim=64 "
    "max_positions=8192 q:BF16 k:BF16",
    "internlm2-1.8b: n_tokens=512 n_heads=16 n_kv_heads=8 head_dim=128 rotary_dim=128 "
    "max_positions=8192 q:BF16 k:BF16",
    "smollm2-135m: n_tokens=512 n_heads=9 n_kv_heads=3 head_dim=64 rotary_dim=64 "
    "max_positions=2048 interleaved=1",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_rope = {
    .name = "rope",
    .summary = "rotary position embedding of queries and keys, in place",
    .place = "Between attn_qkv and attention: it makes a score depend on the distance of two "
             "tokens. The rotated keys are what goes into the KV cache.",
    .formula = "with c_i = cos_sin[positions[t], i], s_i = cos_sin[positions[t], rotary_dim / 2 + "
               "i] for i < rotary_dim / 2: (x[a], x[b]) <- (x[a] * c_i - x[b] * s_i, x[b] * c_i + "
               "x[a] * s_i) for every head x of q[t] and k[t]; (a, b) = (i, i + rotary_dim / 2), "
               "the NeoX pairing, or (2i, 2i + 1) when interleaved",
    .precision = "The table is float32; both products and their sum in float32 or wider, one "
                 "rounding to the type of q or k.",
    .edge_cases = "Elements from rotary_dim on are not touched. Positions may repeat, in any "
                  "order; one outside the table is refused before the call.",
    .source = "Su et al.: RoFormer, 2021; FlashInfer apply_rope_with_cos_sin_cache_inplace",
    .unit = "a token, all of its heads",
    .flops = "3 * n_tokens * (n_heads + n_kv_heads) * rotary_dim",
    .bytes = "n_tokens * (4 + rotary_dim * (sizeof_cos_sin + 2 * n_heads * sizeof_q + 2 * "
             "n_kv_heads * sizeof_k))",
    .axes = {{"n_tokens", AXIS_VARIABLE, "tokens"},
             {"n_heads", AXIS_CONSTANT, "query heads"},
             {"n_kv_heads", AXIS_CONSTANT, "key heads"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"},
             {"max_positions", AXIS_CONSTANT, "positions in the table"},
             {"rotary_dim", AXIS_CONSTANT, "elements that turn: even, at most head_dim"}},
    .tensors = {{"positions", OP_IN, OP_TYPE(I32), "n_tokens", false,
                 "each token's position in its sequence"},
                {"q", OP_INOUT, OP_FLOATS, "n_tokens, n_heads, head_dim", false,
                 "rotated in place; any strides of tokens and heads, such as a view into fused "
                 "qkv rows"},
                {"k", OP_INOUT, OP_FLOATS, "n_tokens, n_kv_heads, head_dim", false,
                 "rotated in place, as q; must not overlap q"},
                {"cos_sin", OP_IN, OP_TYPE(F32), "max_positions, rotary_dim", false,
                 "a row holds the position's rotary_dim / 2 cosines, then as many sines"}},
    .params = {{"interleaved", PARAM_BOOL, 0, "pairs (2i, 2i + 1) instead of NeoX's halves"}},
    .units = units,
    .check = check,
    .prepare = prepare,
    .reference = rope_reference,
    .variants = variants,
    .cuda = rope_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .fills = OP_FILL_NAN,
};
