/* Attention of one head of one token on the GPU, in float32: what the attention operators share.
 *
 * A block computes it. Its warps take tiles of positions by turns, counted from position 0, each
 * with a running softmax of its own; these are merged in the order of the warps. A lane has eight
 * columns of a row, so a warp reads one to four positions at a time, and eight times as many before
 * it computes. So the result depends on q and on the keys and values seen, never on pages, chunks
 * or neighbours. How a row is loaded, by its type and alignment, does not change it.
 */
#pragma once

#include "op/attention/limits.h"
#include "op/attention/mask.cuh"
#include "op/device.cuh"
#include "tensor/decode.cuh"

enum {
    ATTENTION_WARPS = 8,
    ATTENTION_HEAD_DIM = 256, /* at most */
    ATTENTION_STEPS = 8,      /* rows of a tile that a group of lanes loads before it computes */
};

/* Keys and values of one sequence; pages NULL: position i is page i of one slot. */
struct device_source {
    const tensor *k, *v; /* (n_pages, page_size, n_kv_heads, head_dim) */
    const int32_t *pages;
    int64_t first_page; /* added to every page */
    int page_size;
};

struct device_head {
    const char *q;
    char *out;
    dtype q_type, out_type;
    float *lse; /* or NULL */
    int64_t kv_head;
    int n_visible, head_dim;
    float scale; /* of scores, in base 2 */

    static constexpr bool IS_LIMITED = false;
};

/* A head with what limits its attention besides n_visible. The functions below are templates of the
 * kind of head, so that heads without limits pay nothing for them. */
struct limited_head : device_head {
    int first;            /* position that it sees */
    float cap;            /* of scores, in base 2; 0: none */
    const uint32_t *mask; /* position j is number bit + j; NULL: all are seen */
    int64_t bit;

    static constexpr bool IS_LIMITED = true;
};

DEVICE_FN int attention_first(const device_head &)
{
    return 0;
}
DEVICE_FN int attention_first(const limited_head &head)
{
    return head.first;
}

DEVICE_FN bool attention_sees(const device_head &head, int position)
{
    return position < head.n_visible;
}
DEVICE_FN bool attention_sees(const limited_head &head, int position)
{
    if (position < head.first || position >= head.n_visible) return false;
    int64_t bit = head.bit + position;
    return !head.mask || head.mask[bit / 32] >> bit % 32 & 1;
}

DEVICE_FN float attention_capped(const device_head &, float score)
{
    return score;
}
DEVICE_FN float attention_capped(const limited_head &head, float score)
{
    return head.cap != 0 ? head.cap * tanhf(score / head.cap) : score;
}

/* A running softmax; out: the lane's columns. */
struct attention_state {
    float maximum, sum, out[8];
};

struct attention_shared {
    float q[ATTENTION_HEAD_DIM];
    float maxima[ATTENTION_WARPS], sums[ATTENTION_WARPS];
    float outs[ATTENTION_WARPS][ATTENTION_HEAD_DIM];
};

/* Eight columns of a row from `column` on, zeros after head_dim, not yet converted, so that several
 * loads are in flight. T: 16-bit floats at multiples of 16 bytes; DTYPE_COUNT: any type, as `type`
 * says, loaded when used. */
template <dtype T> struct attention_eight {
    uint4 all;

    __device__ __forceinline__ void fetch(const char *row, int column, int head_dim)
    {
        all = make_uint4(0, 0, 0, 0);
        if (column < head_dim) all = *(const uint4 *)(row + 2 * column);
    }
    __device__ __forceinline__ void load(dtype, int, int, float *out) const
    {
        decode_words<T>(all, out);
    }
};
/* F8 at multiples of 8 bytes. */
template <> struct attention_eight<DTYPE_F8> {
    uint2 all;

    __device__ __forceinline__ void fetch(const char *row, int column, int head_dim)
    {
        all = make_uint2(0, 0);
        if (column < head_dim) all = *(const uint2 *)(row + column);
    }
    __device__ __forceinline__ void load(dtype, int, int, float *out) const
    {
        decode_f8_four(all.x, out);
        decode_f8_four(all.y, out + 4);
    }
};
template <> struct attention_eight<DTYPE_COUNT> {
    const char *row;

    __device__ __forceinline__ void fetch(const char *from, int, int) { row = from; }
    __device__ __forceinline__ void load(dtype type, int column, int head_dim, float *out) const
    {
        if (type == DTYPE_F32)
            decode8_of<DTYPE_F32>(type, row, column, head_dim, out);
        else if (type == DTYPE_F16)
            decode8_of<DTYPE_F16>(type, row, column, head_dim, out);
        else if (type == DTYPE_F8)
            decode8_of<DTYPE_F8>(type, row, column, head_dim, out);
        else
            decode8_of<DTYPE_BF16>(type, row, column, head_dim, out);
    }
};

/* Where the lane's rows of a tile are. */
struct attention_place {
    int page, slot;
};

DEVICE_FN attention_place attention_place_of(const device_source &source, int position)
{
    int page = position / source.page_size, slot = position % source.page_size;
    return attention_place{source.pages ? source.pages[page] : page, slot};
}

DEVICE_FN const char *attention_row_of(const tensor &cache, const device_source &source,
                                       const attention_place &at, int64_t kv_head)
{
    return (const char *)cache.data + (source.first_page + at.page) * cache.stride[0] +
           at.slot * cache.stride[1] + kv_head * cache.stride[2];
}

/* Adds the positions from `first` on, ATTENTION_STEPS for each group of L lanes. */
template <int L, dtype T, typename HEAD>
DEVICE_FN void attention_tile(const device_source &source, const HEAD &head, const float *q,
                              int first, attention_state &state)
{
    const int beside = WARP / L;
    int lane = threadIdx.x % WARP, column = lane % L * 8;
    attention_eight<T> keys[ATTENTION_STEPS], values[ATTENTION_STEPS];
    float scores[ATTENTION_STEPS], maximum = -CUDART_INF_F;
#pragma unroll
    for (int i = 0; i < ATTENTION_STEPS; i++) {
        int position = first + i * beside + lane / L;
        attention_place at = attention_place_of(source, min(position, head.n_visible - 1));
        keys[i].fetch(attention_row_of(*source.k, source, at, head.kv_head), column, head.head_dim);
        values[i].fetch(attention_row_of(*source.v, source, at, head.kv_head), column,
                        head.head_dim);
    }
#pragma unroll
    for (int i = 0; i < ATTENTION_STEPS; i++) {
        float k[8];
        keys[i].load(source.k->type, column, head.head_dim, k);
        scores[i] = 0;
        for (int j = 0; j < 8; j++)
            scores[i] = fmaf(q[j], k[j], scores[i]);
    }
#pragma unroll
    for (int i = 0; i < ATTENTION_STEPS; i++) {
        for (int step = L / 2; step > 0; step /= 2)
            scores[i] += __shfl_xor_sync(ALL_LANES, scores[i], step);
        scores[i] = attention_capped(head, scores[i]);
        if (!attention_sees(head, first + i * beside + lane / L)) scores[i] = -CUDART_INF_F;
        maximum = fmaxf(maximum, scores[i]);
    }
    for (int step = L; step < WARP; step *= 2)
        maximum = fmaxf(maximum, __shfl_xor_sync(ALL_LANES, maximum, step));
    maximum = fmaxf(maximum, state.maximum);
    float base = maximum == -CUDART_INF_F ? 0 : maximum, shrink = exp2f(state.maximum - base);
    state.maximum = maximum;
    state.sum = __fmul_rn(state.sum, shrink);
    for (int j = 0; j < 8; j++)
        state.out[j] = __fmul_rn(state.out[j], shrink);
#pragma unroll
    for (int i = 0; i < ATTENTION_STEPS; i++) {
        float v[8], weight = exp2f(scores[i] - base);
        values[i].load(source.v->type, column, head.head_dim, v);
        bool seen = attention_sees(head, first + i * beside + lane / L);
        state.sum += seen ? weight : 0;
        for (int j = 0; j < 8; j++)
            state.out[j] = seen ? fmaf(weight, v[j], state.out[j]) : state.out[j];
    }
}

/* A warp's tiles, from the round on that has the first position seen; afterwards every lane has the
 * sum over its groups. Called, not inlined, because there are twelve instances. */
template <int L, dtype T, typename HEAD>
__device__ __noinline__ attention_state attention_walk(const device_source &source,
                                                       const HEAD &head, const float *shared)
{
    const int tile = WARP / L * ATTENTION_STEPS, round = ATTENTION_WARPS * tile;
    int warp = threadIdx.x / WARP, column = threadIdx.x % L * 8;
    float q[8];
    attention_state state = {-CUDART_INF_F, 0, {0}};
    __builtin_assume(__isShared(shared));
    for (int j = 0; j < 8; j++)
        q[j] = column + j < head.head_dim ? shared[column + j] : 0;
    for (int first = attention_first(head) / round * round + warp * tile; first < head.n_visible;
         first += round)
        attention_tile<L, T>(source, head, q, first, state);
    for (int step = L; step < WARP; step *= 2) {
        state.sum += __shfl_xor_sync(ALL_LANES, state.sum, step);
        for (int j = 0; j < 8; j++)
            state.out[j] += __shfl_xor_sync(ALL_LANES, state.out[j], step);
    }
    return state;
}

DEVICE_FN bool attention_rows_aligned(const tensor &cache)
{
    uint64_t all = (uint64_t)cache.data | (uint64_t)cache.stride[0] | (uint64_t)cache.stride[1] |
                   (uint64_t)cache.stride[2];
    return all % 16 == 0 && cache.shape[3] % 8 == 0;
}

/* Stores the warp's state in shared memory. */
template <int L, typename HEAD>
DEVICE_FN void attention_warp(const device_source &source, const HEAD &head,
                              attention_shared &shared)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    bool whole = source.k->type == source.v->type && attention_rows_aligned(*source.k) &&
                 attention_rows_aligned(*source.v);
    attention_state state;
    if (whole && source.k->type == DTYPE_F16)
        state = attention_walk<L, DTYPE_F16>(source, head, shared.q);
    else if (whole && source.k->type == DTYPE_BF16)
        state = attention_walk<L, DTYPE_BF16>(source, head, shared.q);
    else if (!HEAD::IS_LIMITED && whole && source.k->type == DTYPE_F8)
        state = attention_walk<L, DTYPE_F8>(source, head, shared.q);
    else
        state = attention_walk<L, DTYPE_COUNT>(source, head, shared.q);
    if (lane < L)
        for (int j = 0; j < 8; j++)
            if (lane * 8 + j < head.head_dim) shared.outs[warp][lane * 8 + j] = state.out[j];
    if (lane == 0) {
        shared.maxima[warp] = state.maximum;
        shared.sums[warp] = state.sum;
    }
}

/* Merges the warps' states and writes the result. */
DEVICE_FN void attention_finish(const device_head &head, const attention_shared &shared)
{
    float maximum = -CUDART_INF_F, sum = 0;
    for (int w = 0; w < ATTENTION_WARPS; w++)
        maximum = fmaxf(maximum, shared.maxima[w]);
    float base = maximum == -CUDART_INF_F ? 0 : maximum, weights[ATTENTION_WARPS];
    for (int w = 0; w < ATTENTION_WARPS; w++) {
        weights[w] = exp2f(shared.maxima[w] - base);
        sum = fmaf(weights[w], shared.sums[w], sum);
    }
    for (int i = threadIdx.x; i < head.head_dim; i += blockDim.x) {
        float value = 0;
        for (int w = 0; w < ATTENTION_WARPS; w++)
            value = fmaf(weights[w], shared.outs[w][i], value);
        device_store(head.out_type, head.out, i, sum == 0 ? 0 : value / sum);
    }
    if (threadIdx.x == 0 && head.lse) *head.lse = sum == 0 ? -CUDART_INF_F : base + log2f(sum);
}

/* One head of one token, by the whole block of ATTENTION_WARPS warps. */
template <typename HEAD>
DEVICE_FN void attention_head_block(const device_source &source, const HEAD &head,
                                    attention_shared &shared)
{
    __syncthreads();
    for (int i = threadIdx.x; i < head.head_dim; i += blockDim.x)
        shared.q[i] = device_load(head.q_type, head.q, i) * head.scale;
    __syncthreads();
    if (head.head_dim <= 64)
        attention_warp<8>(source, head, shared);
    else if (head.head_dim <= 128)
        attention_warp<16>(source, head, shared);
    else
        attention_warp<32>(source, head, shared);
    __syncthreads();
    attention_finish(head, shared);
}

/* What is the same for all heads of a call: q, out, lse and the scale. */
DEVICE_FN device_head attention_head_of(const tensor &q, const tensor &out, const tensor &lse,
                                        int64_t n_kv_heads, double sm_scale, int64_t unit)
{
    int64_t t = unit / q.shape[1], h = unit % q.shape[1];
    device_head head = {device_row2(q, t, h),
                        device_row2(out, t, h),
                        q.type,
                        out.type,
                        nullptr,
                        h / (q.shape[1] / n_kv_heads),
                        0,
                        (int)q.shape[2],
                        0};
    if (lse.rank) head.lse = (float *)(device_row(lse, t) + h * lse.stride[1]);
    float scale = sm_scale != 0 ? (float)sm_scale : 1.0f / sqrtf((float)q.shape[2]);
    head.scale = scale * CUDART_L2E_F;
    return head;
}

DEVICE_FN int attention_visible_of(bool causal, int64_t i, int64_t qo_length, int64_t kv_length)
{
    int64_t visible = causal ? kv_length - qo_length + i + 1 : kv_length;
    return visible < 0 ? 0 : (int)visible;
}

/* The limits of query i of sequence b, which has qo_length queries and kv_length positions. All
 * threads of the block call it. */
DEVICE_FN void attention_limit(device_head &, const attention_limits &, const int32_t *,
                               const int32_t *, const int32_t *, int, int64_t, int64_t, int64_t,
                               int64_t)
{
}
DEVICE_FN void attention_limit(limited_head &head, const attention_limits &limits,
                               const int32_t *qo_indptr, const int32_t *kv_indptr,
                               const int32_t *last, int page_size, int64_t b, int64_t i,
                               int64_t qo_length, int64_t kv_length)
{
    int64_t after_own = kv_length - qo_length + i + 1;
    bool slides = limits.window > 0 && after_own > limits.window;
    head.first = slides ? (int)(after_own - limits.window) : 0;
    head.cap = limits.cap * CUDART_L2E_F;
    head.mask = limits.mask;
    head.bit = i * kv_length;
    if (head.mask) head.mask += mask_words_before(qo_indptr, kv_indptr, last, page_size, (int)b);
}

/* Positions in the cache of sequence b. */
DEVICE_FN int64_t paged_length(const int32_t *kv_indptr, const int32_t *last, int64_t b,
                               int page_size)
{
    int64_t pages = kv_indptr[b + 1] - kv_indptr[b];
    return pages ? (pages - 1) * page_size + last[b] : 0;
}
