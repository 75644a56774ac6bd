/* Attention of one head of one token on the GPU, in float32: what the three attention operators
 * share.
 *
 * A block computes it. Its warps take tiles of 32 positions in turn, counted from position 0, each
 * with a running softmax of its own; these are merged in the warps' order. So the value depends on
 * q and on the keys and values seen, never on pages, chunks or neighbours.
 */
#ifndef QUIPU_OP_ATTENTION_CUH
#define QUIPU_OP_ATTENTION_CUH

#include "op/device.cuh"

enum {
    ATTENTION_WARPS = 8,
    ATTENTION_HEAD_DIM = 256, /* at most */
    ATTENTION_COLUMNS = ATTENTION_HEAD_DIM / WARP,
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
};

/* A running softmax; out holds columns lane, lane + 32, .. */
struct attention_state {
    float maximum, sum, out[ATTENTION_COLUMNS];
};

struct attention_shared {
    float q[ATTENTION_HEAD_DIM];
    float maxima[ATTENTION_WARPS], sums[ATTENTION_WARPS];
    float outs[ATTENTION_WARPS][ATTENTION_HEAD_DIM];
};

DEVICE_FN const char *attention_row_of(const tensor &cache, const device_source &source,
                                       int position, int64_t kv_head)
{
    int64_t page = position / source.page_size, slot = position % source.page_size;
    page = source.first_page + (source.pages ? source.pages[page] : page);
    return (const char *)cache.data + page * cache.stride[0] + slot * cache.stride[1] +
           kv_head * cache.stride[2];
}

/* The dot product of q with a key. */
DEVICE_FN float attention_score(const float *q, dtype type, const char *key, int head_dim)
{
    float sum = 0;
    if (type != DTYPE_F32 && head_dim % 8 == 0 && device_aligned(key, 16)) {
        for (int i = 0; i < head_dim; i += 8) {
            uint4 words = *(const uint4 *)(key + 2 * i);
            uint32_t word[4] = {words.x, words.y, words.z, words.w};
            for (int j = 0; j < 8; j++) {
                uint16_t half = (uint16_t)(word[j / 2] >> 16 * (j & 1));
                float value =
                    type == DTYPE_BF16 ? bf16_to_f32(half) : __half2float(__ushort_as_half(half));
                sum = fmaf(q[i + j], value, sum);
            }
        }
        return sum;
    }
    for (int i = 0; i < head_dim; i++)
        sum = fmaf(q[i], device_load(type, key, i), sum);
    return sum;
}

/* Adds the tile of positions [first, first + 32) to a warp's softmax. */
DEVICE_FN void attention_tile(const device_source &source, const device_head &head, const float *q,
                              int first, attention_state &state)
{
    int lane = threadIdx.x % WARP, position = first + lane;
    bool seen = position < head.n_visible;
    float score = -CUDART_INF_F;
    if (seen)
        score = attention_score(q, source.k->type,
                                attention_row_of(*source.k, source, position, head.kv_head),
                                head.head_dim);
    float maximum = score;
    for (int step = WARP / 2; step > 0; step /= 2)
        maximum = fmaxf(maximum, __shfl_xor_sync(ALL_LANES, maximum, step));
    maximum = fmaxf(maximum, state.maximum);
    float base = maximum == -CUDART_INF_F ? 0 : maximum;
    float shrink = exp2f(state.maximum - base), weight = seen ? exp2f(score - base) : 0;
    state.maximum = maximum;
    state.sum = state.sum * shrink + warp_sum(weight);
    for (int c = 0; c < ATTENTION_COLUMNS; c++)
        state.out[c] *= shrink;
    int count = min(WARP, head.n_visible - first);
    for (int i = 0; i < count; i++) {
        const char *row = attention_row_of(*source.v, source, first + i, head.kv_head);
        float of_row = __shfl_sync(ALL_LANES, weight, i);
        for (int c = 0; c < ATTENTION_COLUMNS; c++)
            if (lane + WARP * c < head.head_dim)
                state.out[c] =
                    fmaf(of_row, device_load(source.v->type, row, lane + WARP * c), state.out[c]);
    }
}

/* Merges the warps' states and writes what comes of them. */
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
DEVICE_FN void attention_head_block(const device_source &source, const device_head &head,
                                    attention_shared &shared)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    __syncthreads();
    for (int i = threadIdx.x; i < head.head_dim; i += blockDim.x)
        shared.q[i] = device_load(head.q_type, head.q, i) * head.scale;
    __syncthreads();
    attention_state state = {-CUDART_INF_F, 0, {0}};
    for (int first = warp * WARP; first < head.n_visible; first += ATTENTION_WARPS * WARP)
        attention_tile(source, head, shared.q, first, state);
    for (int c = 0; c < ATTENTION_COLUMNS; c++)
        if (lane + WARP * c < head.head_dim) shared.outs[warp][lane + WARP * c] = state.out[c];
    if (lane == 0) {
        shared.maxima[warp] = state.maximum;
        shared.sums[warp] = state.sum;
    }
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

/* Positions in the cache of sequence b. */
DEVICE_FN int64_t paged_length(const int32_t *kv_indptr, const int32_t *last, int64_t b,
                               int page_size)
{
    int64_t pages = kv_indptr[b + 1] - kv_indptr[b];
    return pages ? (pages - 1) * page_size + last[b] : 0;
}

#endif
