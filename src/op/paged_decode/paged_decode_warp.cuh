/* A warp's arithmetic of paged_decode on tensor cores: 16 positions of a KV head at a time, for all
 * heads of its group.
 *
 * Keys and values go straight from the cache to the registers of mma.sync. Shared memory is not
 * needed, because the order of an mma's summands is free: a lane reads 16 bytes of a key where the
 * fragment would have it read four times 4, and reads the query in the same order; of the values a
 * lane reads 16 bytes of four positions, and which column an output belongs to does not matter
 * until the end. In the first product heads are rows, of which a group of 8 leaves 8 empty; the
 * second product is transposed, heads are columns, because the weights are in the registers that
 * both need.
 */
#pragma once

#include "op/attention/limits.cuh"
#include "op/device.cuh"

__device__ __forceinline__ void load_once(uint4 &d, const char *from)
{
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
                 : "l"(from));
}
__device__ __forceinline__ void load_once(uint2 &d, const char *from)
{
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(d.x), "=r"(d.y)
                 : "l"(from));
}

/* What a lane reads of 16 positions, in the type of the cache: of keys, rows g and g + 8, pieces of
 * 16 bytes t, t + 4 .. of each; of values, positions 2 t, 2 t + 1, 2 t + 8, 2 t + 9, eights of
 * elements g, g + 8 .. of each. */
template <typename T, int HEAD_DIM> struct decode_keys {
    enum { PIECES = HEAD_DIM * (int)sizeof(T) / 64 };
    uint4 piece[2][PIECES];
};
template <typename T, int HEAD_DIM> struct decode_values {
    typename eight_of<T>::type eight[4][HEAD_DIM / 64];
};

/* How much of it is in flight, and how many blocks registers have room for. */
template <typename T, int HEAD_DIM> struct decode_form {
    enum {
        DEPTH = HEAD_DIM / 64 * (2 / (int)sizeof(T)), /* sixteens of a warp */
        BLOCKS = HEAD_DIM == 128  ? 2
                 : sizeof(T) == 1 ? 4
                                  : 5,
    };
};

/* All rows are loaded; scores of positions that are not seen are dropped whatever they are. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void decode_load_keys(decode_keys<T, HEAD_DIM> &keys, const char *rows,
                                                 int64_t stride)
{
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < decode_keys<T, HEAD_DIM>::PIECES; i++)
            load_once(keys.piece[r][i], rows + (g + r * 8) * stride + (i * 4 + t) * 16);
}

template <typename T, int HEAD_DIM>
__device__ __forceinline__ void decode_load_values(decode_values<T, HEAD_DIM> &values,
                                                   const char *rows, int64_t stride, int n_seen)
{
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int position = t * 2 + r % 2 + r / 2 * 8;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 64; i++) {
            values.eight[r][i] = {};
            if (position < n_seen)
                load_once(values.eight[r][i],
                          rows + position * stride + (i * 8 + g) * 8 * (int)sizeof(T));
        }
    }
}

__device__ __forceinline__ uint32_t word_of(const uint4 &piece, int i)
{
    return i == 0 ? piece.x : i == 1 ? piece.y : i == 2 ? piece.z : piece.w;
}
__device__ __forceinline__ uint32_t word_of(const uint2 &piece, int i)
{
    return i == 0 ? piece.x : piece.y;
}

/* The first column of the i-th eight that a lane has of a query and of keys. */
template <typename T> __device__ __forceinline__ int decode_column(int i)
{
    int t = (int)threadIdx.x % 4;
    return sizeof(T) == 1 ? (i / 2 * 4 + t) * 16 + i % 2 * 8 : (i * 4 + t) * 8;
}

/* The i-th eight of keys, in the type of the products. */
template <typename T, int PIECES>
__device__ __forceinline__ uint4 decode_eight(T, const uint4 (&piece)[PIECES], int i)
{
    return piece[i];
}
template <int PIECES>
__device__ __forceinline__ uint4 decode_eight(element_f8, const uint4 (&piece)[PIECES], int i)
{
    const uint4 &from = piece[i / 2];
    uint32_t low = i % 2 ? from.z : from.x, high = i % 2 ? from.w : from.y;
    return make_uint4(decode_f8x2(low), decode_f8x2(low >> 16), decode_f8x2(high),
                      decode_f8x2(high >> 16));
}

/* Columns 2 i and 2 i + 1 of an eight of four positions, as the first operand of their product with
 * weights, whose rows are columns of the values. */
template <typename T>
__device__ __forceinline__ void decode_columns(T, uint32_t (&a)[4], const uint4 (&of)[4], int i)
{
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
        uint32_t one = word_of(of[r], i), next = word_of(of[r + 1], i);
        a[r] = __byte_perm(one, next, 0x5410);
        a[r + 1] = __byte_perm(one, next, 0x7632);
    }
}
__device__ __forceinline__ void decode_columns(element_f8, uint32_t (&a)[4], const uint2 (&of)[4],
                                               int i)
{
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
        uint32_t pairs =
            __byte_perm(word_of(of[r], i / 2), word_of(of[r + 1], i / 2), i % 2 ? 0x7362 : 0x5140);
        a[r] = decode_f8x2(pairs);
        a[r + 1] = decode_f8x2(pairs >> 16);
    }
}

/* Scores of 16 positions: s[i] of positions 8 i + 2 t and + 1, for head g. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void decode_scores(float (&s)[2][4], const uint4 (&query)[HEAD_DIM / 32],
                                              const decode_keys<T, HEAD_DIM> &keys)
{
    typedef typename product_of<T>::type product;
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[r][j] = 0;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; i++) {
            uint32_t low[4] = {query[i].x, 0, query[i].y, 0};
            uint32_t high[4] = {query[i].z, 0, query[i].w, 0};
            const uint4 key = decode_eight(T(), keys.piece[r], i);
            mma_16816(product(), s[r], low, key.x, key.y);
            mma_16816(product(), s[r], high, key.z, key.w);
        }
    }
}

/* o (HEAD_DIM, 8) += v^T (HEAD_DIM, 16) weights^T (16, 8): o[4 p + i] has the heads 2 t and 2 t + 1
 * of column 64 p + 8 g + 2 i, then those of the next column. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void decode_add_values(float (&o)[HEAD_DIM / 16][4],
                                                  const float (&s)[2][4],
                                                  const decode_values<T, HEAD_DIM> &values)
{
    typedef typename product_of<T>::type product;
    uint32_t near = pack_pair(product(), s[0][0], s[0][1]);
    uint32_t far = pack_pair(product(), s[1][0], s[1][1]);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
        typename eight_of<T>::type of[4];
        uint32_t a[4];
#pragma unroll
        for (int r = 0; r < 4; r++)
            of[r] = values.eight[r][i / 4];
        decode_columns(T(), a, of, i % 4);
        mma_16816(product(), o[i], a, near, far);
    }
}

/* The softmax of a warp, a chunk or a head: relative to 2^base; base -inf: nothing seen. */
typedef struct decode_state {
    float base, sum;
    float2 out;
} decode_state;

/* Floats of a part: base, sum, and the outputs. */
template <int HEAD_DIM> struct decode_part {
    float base, sum, out[HEAD_DIM];
};

template <bool SHARED> __device__ __forceinline__ float read_part(const float *from)
{
    return SHARED ? *from : __ldcg(from); /* what other blocks wrote is not in the L1 cache */
}
template <bool SHARED> __device__ __forceinline__ float2 read_part2(const float *from)
{
    return SHARED ? *(const float2 *)from : __ldcg((const float2 *)from);
}

/* Elements `element` and the next of n parts merged in order, AT_ONCE of them in flight at a time;
 * parts are `stride` apart. */
template <int HEAD_DIM, bool SHARED, int AT_ONCE>
__device__ __forceinline__ decode_state decode_merge(const decode_part<HEAD_DIM> *part, int stride,
                                                     int n, int element)
{
    decode_state state = {-INFINITY, 0, {0, 0}};
    for (int first = 0; first < n; first += AT_ONCE) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i < n)
                state.base = fmaxf(state.base, read_part<SHARED>(&part[(first + i) * stride].base));
    }
    float base = state.base == -INFINITY ? 0 : state.base;
    for (int first = 0; first < n; first += AT_ONCE) {
        float own_base[AT_ONCE], sum[AT_ONCE];
        float2 out[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const decode_part<HEAD_DIM> *from = part + (first + i) * stride;
            bool there = first + i < n;
            own_base[i] = there ? read_part<SHARED>(&from->base) : -INFINITY;
            sum[i] = there ? read_part<SHARED>(&from->sum) : 0;
            out[i] = there ? read_part2<SHARED>(from->out + element) : make_float2(0, 0);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (first + i >= n) continue;
            float factor = exp2_fast(own_base[i] - base);
            state.sum = fmaf(factor, sum[i], state.sum);
            state.out.x = fmaf(factor, out[i].x, state.out.x);
            state.out.y = fmaf(factor, out[i].y, state.out.y);
        }
    }
    return state;
}

template <int HEAD_DIM>
__device__ __forceinline__ void decode_store(const paged_attention &call, int sequence, int head,
                                             int element, const decode_state &state)
{
    if (!is_wanted(call, sequence, head)) return;
    char *out = (char *)call.out + sequence * call.out_strides.token + head * call.out_strides.head;
    float factor = state.sum == 0 ? 0 : 1 / state.sum;
    store_pair(call.out_type, out, element, state.out.x * factor, state.out.y * factor);
    if (call.narrowed) {
        int64_t row = (int64_t)sequence * call.n_kv_heads * call.group + head;
        store_pair(DTYPE_BF16, (char *)call.narrowed + row * HEAD_DIM * 2, element,
                   state.out.x * factor, state.out.y * factor);
    }
    if (call.lse && element == 0)
        *(float *)((char *)call.lse + sequence * call.lse_strides.token +
                   head * call.lse_strides.head) =
            state.sum == 0 ? -INFINITY : state.base + log2f(state.sum);
}

/* A warp's sums over its positions so far, for head g; the outputs in decode_add_values()'s order.
 */
template <int HEAD_DIM> struct decode_sums {
    float o[HEAD_DIM / 16][4] = {}, maximum = -INFINITY, sum = 0;
};

/* The maximum of `highest` and of the scores of 16 positions from `first` on; unseen positions are
 * dropped. */
__device__ __forceinline__ float decode_highest(float (&s)[2][4], int first, int n_seen,
                                                float highest)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float &score = s[j / 2][j % 2];
        if (first + j / 2 * 8 + (int)threadIdx.x % 4 * 2 + j % 2 >= n_seen) score = -INFINITY;
        highest = fmaxf(highest, score);
    }
    return highest;
}

/* Makes the sums relative to the highest score of all, which the scores' exponents then subtract.
 */
template <int HEAD_DIM>
__device__ __forceinline__ float decode_rise(decode_sums<HEAD_DIM> &sums, float highest,
                                             float scale)
{
    int t = (int)threadIdx.x % 4;
    highest = quad_max(highest);
    float base = softmax_base(highest, scale), shrink = softmax_shrink(sums.maximum, scale, base);
    sums.maximum = highest;
    sums.sum = __fmul_rn(sums.sum, shrink);
    float shrinks[2] = {__shfl_sync(0xffffffffu, shrink, t * 8),
                        __shfl_sync(0xffffffffu, shrink, t * 8 + 4)};
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 4; j++)
        sums.o[j / 4][j % 4] *= shrinks[j % 2];
    return base;
}

/* 16 positions. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void decode_add(decode_sums<HEAD_DIM> &sums, float (&s)[2][4],
                                           const decode_values<T, HEAD_DIM> &values, float base,
                                           float scale)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float &score = s[j / 2][j % 2];
        score = exp2_fast(fmaf(score, scale, -base));
        sums.sum += score;
    }
    decode_add_values(sums.o, s, values);
}

/* Stores the part of the first HEADS heads of the group. */
template <int HEAD_DIM, int HEADS = PAGED_DECODE_MAX_GROUP>
__device__ __forceinline__ void decode_leave(decode_sums<HEAD_DIM> &sums, float scale,
                                             decode_part<HEAD_DIM> *part)
{
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    sums.sum = quad_sum(sums.sum);
    if (t == 0 && g < HEADS) {
        part[g].base = sums.maximum == -INFINITY ? -INFINITY : sums.maximum * scale;
        part[g].sum = sums.sum;
    }
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 4; j++)
        if (t * 2 + j % 2 < HEADS)
            part[t * 2 + j % 2].out[j / 16 * 64 + g * 8 + j / 4 % 4 * 2 + j / 2 % 2] =
                sums.o[j / 4][j % 4];
}

/* Limits the scores of 16 positions from `first` on, of which the first `hidden` are before the
 * window. */
__device__ __forceinline__ void decode_limit(float (&)[2][4], const no_limits &,
                                             const paged_attention &, int, int)
{
}
__device__ __forceinline__ void decode_limit(float (&s)[2][4], const attention_limits &limits,
                                             const paged_attention &call, int first, int hidden)
{
    float inner = limits_inner(limits, call);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float &score = s[j / 2][j % 2];
        if (inner != 0) score = tanh_of(score * inner);
        if (first + j / 2 * 8 + (int)threadIdx.x % 4 * 2 + j % 2 < hidden) score = -INFINITY;
    }
}
