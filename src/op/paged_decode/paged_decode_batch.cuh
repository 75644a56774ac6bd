/* paged_decode on tensor cores, bound by reading the cache once.
 *
 * A block takes PAGED_CHUNK positions of one sequence and one KV head, for all heads of the group;
 * its warps take 16 positions by turns, straight from the cache to the registers of mma.sync.
 * Shared memory is not needed, because the order of an mma's summands is free: a lane reads 16
 * bytes of a key where the fragment would have it read four times 4, and reads the query in the
 * same order; of the values a lane reads 16 bytes of four positions, and which column an output
 * belongs to does not matter until the end. In the first product heads are rows, of which a group
 * of 8 leaves 8 empty; the second product is transposed, heads are columns, because the weights are
 * in the registers that both need.
 *
 * The warps' parts, and then the chunks' if a sequence has several, are merged in the order of
 * positions by the block that ends last; each block counts itself in `arrived`. How a sequence is
 * cut depends on its length alone, so its result does not depend on the batch. A remainder of less
 * than half a chunk belongs to the last chunk, because a block for it would cost more than it
 * reads.
 *
 * If the longest sequence is not known, a grid with room for the longest possible times all
 * sequences would consist almost only of empty blocks, which take as long as the reading. Blocks
 * then search for their part.
 *
 * Beside paged_prefill of the same batch's other rows (`beside`) the kernel runs while that one's
 * last blocks do, because it reads nothing of theirs. paged_prefill then lets it begin only after
 * the kernels before have ended, whose rows and positions both read. The last block waits for
 * paged_prefill, so that this kernel ends after it.
 */
#ifndef QUIPU_OP_PAGED_DECODE_BATCH_CUH
#define QUIPU_OP_PAGED_DECODE_BATCH_CUH

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

/* Where the sixteens of a chunk begin in the two caches, in bytes. */
typedef struct decode_place {
    int64_t k, v;
} decode_place;

/* The warp's part of a chunk of n_seen positions, of which the first `hidden` are not seen: DEPTH
 * sixteens, then those after the other warps'. */
template <typename T, int HEAD_DIM, int WARPS, typename LIMITS>
__device__ __forceinline__ void
decode_warp(const paged_attention &call, const LIMITS &limits, const char *query_row, int kv_head,
            const decode_place *place, int hidden, int n_seen, decode_part<HEAD_DIM> *part)
{
    constexpr int DEPTH = decode_form<T, HEAD_DIM>::DEPTH;
    int g = (int)threadIdx.x % 32 / 4;
    bool is_head = g < call.group;
    float scale = limits_scale(limits, call);
    const char *k_cache = call.k + kv_head * call.k_strides.head;
    const char *v_cache = call.v + kv_head * call.v_strides.head;
    decode_keys<T, HEAD_DIM> keys[DEPTH];
    decode_values<T, HEAD_DIM> values[DEPTH];
    uint4 query[HEAD_DIM / 32];
    int n = (n_seen + 15) / 16, i = (int)threadIdx.x / 32 * DEPTH;
    /* Loads what earlier passes stored in the cache while this pass's previous kernels run. */
#pragma unroll
    for (int when = 0; when < 2; when++) {
        if (when == 1 && !call.beside) device_wait_for_last();
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (when == 0 ? i + d >= n - 1 : i + d != n - 1) continue;
            decode_load_keys(keys[d], k_cache + place[i + d].k, call.k_strides.position);
            decode_load_values(values[d], v_cache + place[i + d].v, call.v_strides.position,
                               n_seen - (i + d) * 16);
        }
    }
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; i++)
        query[i] = is_head ? load_query<typename product_of<T>::type>(
                                 call.q_type, query_row + g * call.q_strides.head,
                                 decode_column<T>(i), call.sm_scale < 0 ? -1.0f : 1.0f)
                           : make_uint4(0, 0, 0, 0);

    decode_sums<HEAD_DIM> sums;
    for (; i < n; i += WARPS * DEPTH) {
        int next = i + WARPS * DEPTH;
        float s[DEPTH][2][4], highest = sums.maximum;
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            decode_scores(s[d], query, keys[d]);
            if (next + d < n)
                decode_load_keys(keys[d], k_cache + place[next + d].k, call.k_strides.position);
            decode_limit(s[d], limits, call, (i + d) * 16, hidden);
            highest = decode_highest(s[d], (i + d) * 16, n_seen, highest);
        }
        float base = decode_rise<HEAD_DIM>(sums, highest, scale);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (i + d >= n) continue;
            decode_add(sums, s[d], values[d], base, scale);
            if (next + d < n)
                decode_load_values(values[d], v_cache + place[next + d].v, call.v_strides.position,
                                   n_seen - (next + d) * 16);
        }
    }
    decode_leave<HEAD_DIM>(sums, scale, part);
}

/* A block's part: a chunk of a sequence. */
typedef struct decode_cut {
    int sequence, chunk, n_chunks; /* chunk >= n_chunks: there is no part */
    int first_part; /* the number of the sequence's first part, counted over all sequences */
} decode_cut;

/* Sixteens before the first that the sequence's token sees; chunks are counted from there. */
template <typename LIMITS>
__device__ __forceinline__ int decode_skipped(const LIMITS &limits, int length)
{
    return limits_first(limits, length, 0) / 16;
}

template <typename LIMITS>
__device__ __forceinline__ int decode_chunks(const paged_attention &call, const LIMITS &limits,
                                             int sequence)
{
    int length = page_walk_of(call, sequence).length;
    length -= decode_skipped(limits, length) * 16;
    return PAGED_DECODE_CHUNKS(length, PAGED_CHUNK);
}

/* Which part is this block's: from its place in the grid, or by counting the chunks of the
 * sequences before. */
template <typename LIMITS>
__device__ __forceinline__ decode_cut decode_find(const paged_attention &call, const LIMITS &limits)
{
    decode_cut cut = {(int)blockIdx.y, (int)blockIdx.z, 0, 0};
    if (!call.search) {
        cut.first_part = cut.sequence * (int)gridDim.z;
        cut.n_chunks = decode_chunks(call, limits, cut.sequence);
        return cut;
    }
    int lane = (int)threadIdx.x % 32, wanted = (int)blockIdx.y;
    for (int first = 0; first < call.n_sequences; first += 32) {
        int own = first + lane < call.n_sequences ? decode_chunks(call, limits, first + lane) : 0;
        int through = own;
        for (int step = 1; step < 32; step *= 2) {
            int before = __shfl_up_sync(0xffffffffu, through, step);
            if (lane >= step) through += before;
        }
        unsigned reached = __ballot_sync(0xffffffffu, through > wanted);
        if (reached == 0) {
            wanted -= __shfl_sync(0xffffffffu, through, 31);
            continue;
        }
        int owner = __ffs((int)reached) - 1;
        cut.sequence = first + owner;
        cut.n_chunks = __shfl_sync(0xffffffffu, own, owner);
        cut.chunk = wanted - __shfl_sync(0xffffffffu, through - own, owner);
        cut.first_part = (int)blockIdx.y - cut.chunk;
        return cut;
    }
    return cut;
}

/* Grid: n_kv_heads, n_sequences, the most chunks of a sequence; or, if blocks search, n_kv_heads
 * and at least as many as there are chunks. `partial`: a decode_part for each sequence, chunk of
 * the grid and head, `arrived`: a counter for each sequence and KV head, 0 before the first launch
 * and again after each; neither is needed if no sequence has two chunks. */
template <typename T, int HEAD_DIM, int WARPS, typename LIMITS>
__device__ __forceinline__ void decode_block(const paged_attention &call, const LIMITS &limits)
{
    constexpr int THREADS = WARPS * 32, MERGED = 8;
    __shared__ decode_place place[PAGED_CHUNK / 16 + PAGED_CHUNK / 32];
    __shared__ decode_part<HEAD_DIM> parts[WARPS][PAGED_DECODE_MAX_GROUP];
    __shared__ bool is_last;
    decode_cut cut = decode_find(call, limits);
    if (cut.chunk >= cut.n_chunks) return;
    page_walk walk = page_walk_of(call, cut.sequence);
    int hidden = limits_first(limits, walk.length, 0), skipped = hidden / 16;
    walk.length -= skipped * 16;
    int kv_head = (int)blockIdx.x;
    int n_seen = cut.chunk + 1 < cut.n_chunks ? PAGED_CHUNK : walk.length - cut.chunk * PAGED_CHUNK;
    for (int i = (int)threadIdx.x; i * 16 < n_seen; i += THREADS) {
        uint32_t sixteen = (uint32_t)(skipped + cut.chunk * (PAGED_CHUNK / 16) + i);
        place[i].k = page_offset(walk, call.k_strides, sixteen);
        place[i].v = page_offset(walk, call.v_strides, sixteen);
    }
    __syncthreads(); /* the places are known */
    int first_head = kv_head * call.group;
    decode_warp<T, HEAD_DIM, WARPS>(call, limits,
                                    (const char *)call.q + cut.sequence * call.q_strides.token +
                                        first_head * call.q_strides.head,
                                    kv_head, place, cut.chunk == 0 ? hidden % 16 : 0, n_seen,
                                    parts[threadIdx.x / 32]);
    __syncthreads(); /* the warps' parts are there */

    int n_heads = call.n_kv_heads * call.group;
    decode_part<HEAD_DIM> *partial =
        (decode_part<HEAD_DIM> *)call.partial + (int64_t)cut.first_part * n_heads + first_head;
    for (int i = (int)threadIdx.x; i < call.group * HEAD_DIM / 2; i += THREADS) {
        int head = i / (HEAD_DIM / 2), element = i % (HEAD_DIM / 2) * 2;
        decode_state state = decode_merge<HEAD_DIM, true, WARPS>(
            &parts[0][head], PAGED_DECODE_MAX_GROUP, WARPS, element);
        if (cut.n_chunks == 1) {
            decode_store<HEAD_DIM>(call, cut.sequence, first_head + head, element, state);
            continue;
        }
        decode_part<HEAD_DIM> *part = partial + (int64_t)cut.chunk * n_heads + head;
        if (element == 0) part->base = state.base, part->sum = state.sum;
        *(float2 *)(part->out + element) = state.out;
    }
    if (cut.n_chunks == 1) return;

    __threadfence();
    __syncthreads(); /* the chunk's part is written before it is counted */
    uint32_t *arrived = call.arrived + cut.sequence * call.n_kv_heads + kv_head;
    if (threadIdx.x == 0) {
        is_last = atomicAdd(arrived, 1) == (uint32_t)cut.n_chunks - 1;
        if (is_last) *arrived = 0;
        __threadfence();
    }
    __syncthreads(); /* is_last is known */
    if (!is_last) return;
    for (int i = (int)threadIdx.x; i < call.group * HEAD_DIM / 2; i += THREADS) {
        int head = i / (HEAD_DIM / 2), element = i % (HEAD_DIM / 2) * 2;
        decode_store<HEAD_DIM>(
            call, cut.sequence, first_head + head, element,
            decode_merge<HEAD_DIM, false, MERGED>(partial + head, n_heads, cut.n_chunks, element));
    }
}

template <typename T, int HEAD_DIM, int WARPS, typename LIMITS>
__device__ __forceinline__ void paged_decode_batch(const paged_attention &call,
                                                   const LIMITS &limits)
{
    device_let_next_begin();
    decode_block<T, HEAD_DIM, WARPS>(call, limits);
    const bool is_last =
        blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y && blockIdx.z + 1 == gridDim.z;
    if (call.beside && is_last) device_wait_for_last();
}

#endif
