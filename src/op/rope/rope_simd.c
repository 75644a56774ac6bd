/* rope in vectors: the angles of a few pairs stay in registers while all heads are rotated by them.
 */
#include "op/rope/rope.h"

#include "op/simd.h"

/* The heads of one token. */
typedef struct rope_heads {
    char *first;
    int64_t n, stride; /* heads, bytes between them */
} rope_heads;

/* Pairs (i, i + half). */
SIMD_FN void rotate_halves(dtype type, rope_heads heads, const float *cosines, const float *sines,
                           int64_t half)
{
    for (int64_t i = 0; i < half; i += LANES) {
        int64_t left = half - i;
        vf c = vf_load_n(DTYPE_F32, cosines, i, left), s = vf_load_n(DTYPE_F32, sines, i, left);
        for (int64_t head = 0; head < heads.n; head++) {
            char *x = heads.first + head * heads.stride;
            vf a = vf_load_n(type, x, i, left), b = vf_load_n(type, x, half + i, left);
            vf_store_n(type, x, i, left, vf_fnma(b, s, vf_mul(a, c)));
            vf_store_n(type, x, half + i, left, vf_fma(a, s, vf_mul(b, c)));
        }
    }
}

/* Pairs (2 i, 2 i + 1). */
SIMD_FN void rotate_neighbours(dtype type, rope_heads heads, const float *cosines,
                               const float *sines, int64_t half)
{
    for (int64_t i = 0; i < half; i += LANES / 2) {
        int64_t pairs = half - i < LANES / 2 ? half - i : LANES / 2;
        vf c = vf_twice(vf_load_n(DTYPE_F32, cosines, i, pairs));
        vf s = vf_twice(vf_load_n(DTYPE_F32, sines, i, pairs));
        for (int64_t head = 0; head < heads.n; head++) {
            char *x = heads.first + head * heads.stride;
            vf pair = vf_load_n(type, x, 2 * i, 2 * pairs);
            /* (a, b) c -+ (b, a) s */
            vf turned = vf_fmaddsub(pair, c, vf_mul(vf_swap_pairs(pair), s));
            vf_store_n(type, x, 2 * i, 2 * pairs, turned);
        }
    }
}

SIMD_FN void rotate_tokens(const op_call *call, const tensor *x, dtype type)
{
    const int32_t *positions = call->tensors[ROPE_POSITIONS].data; /* (n_tokens) */
    const tensor *cos_sin = &call->tensors[ROPE_COS_SIN];          /* (max_positions, rotary_dim) */
    int64_t half = cos_sin->shape[1] / 2;
    bool interleaved = call->params[ROPE_INTERLEAVED] != 0;
    for (int64_t t = call->begin; t < call->end; t++) {
        const float *cosines = tensor_row(cos_sin, positions[t]), *sines = cosines + half;
        rope_heads heads = {tensor_row(x, t), x->shape[1], x->stride[1]};
        if (interleaved)
            rotate_neighbours(type, heads, cosines, sines, half);
        else
            rotate_halves(type, heads, cosines, sines, half);
    }
}

SIMD_KERNEL(rope)(const op_call *call)
{
    for (int which = ROPE_Q; which <= ROPE_K; which++) {
        const tensor *x = &call->tensors[which]; /* (n_tokens, heads, head_dim) */
        if (x->type == DTYPE_F32)
            rotate_tokens(call, x, DTYPE_F32);
        else
            rotate_tokens(call, x, x->type);
    }
}
