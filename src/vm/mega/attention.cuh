/* Attention of one KV head in one block: its query heads over a range of earlier positions, which
 * come through the ring, and perhaps the newest position, which came with the queries.
 *
 * On the tensor cores: rows are heads, a query being the sum of two or three numbers of the cache's
 * type; columns are eight positions, one from each piece of a chunk. A warp has eight positions of
 * a chunk for all heads, with all of their values or one set of them. At the end each warp's
 * maximum, sum and output are in shared memory and are merged as partitions are.
 */
#pragma once

#include "vm/mega/block.cuh"

/* A chunk of the cache: keys, then values, each in eight pieces. The pieces are 16 bytes further
 * apart than they are long, so that a row of each piece is in other banks. */
enum {
    CACHE_CHUNK = MEGA_QUANT_TYPES ? MEGA_CACHE_FRAGMENTS : MEGA_BOX,
    CACHE_BYTES = MEGA_CACHE_F8 ? 1 : 2, /* of an element */
    EIGHTS = 2 / CACHE_BYTES             /* eights of positions that a warp has of a chunk */
};
template <int DIM> struct attention_chunk {
    enum {
        POSITIONS = CACHE_CHUNK / (2 * CACHE_BYTES) / DIM,
        PIECE = POSITIONS / 8,   /* positions in a piece */
        SHARES = PIECE / EIGHTS, /* as many warps share a chunk */
        PITCH = PIECE * DIM * CACHE_BYTES + 16,
        SETS = MEGA_WARPS / SHARES, /* sets that a position's values are divided into */
        WIDTH = DIM / SETS,
        NEXT = SHARES * DIM * CACHE_BYTES /* bytes from a warp's first eight to its second */
    };
};

/* Chunks of a context of `old` positions. */
template <int DIM> MEGA_FN int context_chunks(int old)
{
    const int each = attention_chunk<DIM>::POSITIONS;
    return (old + each - 1) / each;
}

/* The first position that the newest one, after `old` others, sees; chunks before its own. */
MEGA_FN int first_seen(int old, int window)
{
    return MEGA_FAMILIES ? max(old + 1 - window, 0) : 0;
}
template <int DIM> MEGA_FN int unseen_chunks(int old, int window)
{
    return (unsigned)first_seen(old, window) / attention_chunk<DIM>::POSITIONS;
}
/* Chunks that it sees. */
template <int DIM> MEGA_FN int seen_chunks(int old, int window)
{
    return context_chunks<DIM>(old) - unseen_chunks<DIM>(old, window);
}

/* n / parts. */
MEGA_FN int part_begin(const mega_arguments &a, int n)
{
    return a.parts_inverse ? __umulhi(n, a.parts_inverse) : n;
}

/* An instruction's chunks, from *first; 0 if it has no part, or recomputes nothing. */
template <int DIM>
MEGA_FN int attention_chunks(const mega_arguments &a, const instruction &in, int old, int window,
                             int *first)
{
    const int n = seen_chunks<DIM>(old, window);
    const bool alone = old + 1 <= a.recompute, part = in.opcode == MEGA_ATTENTION_PART;
    int begin = 0, count = alone ? n : 0;
    if (part && alone) count = 0;
    if (part && !alone) {
        begin = in.part, count = begin < n;
        if (n >= in.parts) {
            begin = part_begin(a, n * in.part);
            count = part_begin(a, n * (in.part + 1)) - begin;
        }
    }
    *first = unseen_chunks<DIM>(old, window) + begin;
    return count;
}

/* Two numbers of the cache's type, as float32. */
template <bool HALF> MEGA_FN float2 cache_pair(uint32_t w)
{
    if (HALF) return __half22float2(*(const __half2 *)&w);
    return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000));
}
template <bool HALF> MEGA_FN uint32_t cache_words(float x, float y)
{
    if (HALF) {
        __half2 pair = __floats2half2_rn(x, y);
        return *(const uint32_t *)&pair;
    }
    __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *(const uint32_t *)&pair;
}
/* Two float32 as sums of numbers of that type: two of 11 bits, or three of 8. */
template <bool HALF> struct cache_parts {
    enum { COUNT = HALF ? 2 : 3 };
    uint32_t of[3];
    MEGA_FN cache_parts() {}
    MEGA_FN cache_parts(float x, float y)
    {
#pragma unroll
        for (int i = 0; i < 3; i++) {
            of[i] = i < COUNT ? cache_words<HALF>(x, y) : 0;
            float2 taken = cache_pair<HALF>(of[i]);
            x -= taken.x, y -= taken.y;
        }
    }
};

/* ---- a KV head's queries, newest key and value, in shared memory ---- */

/* The newest key and value, the queries' factors, for several rows the number of their new
 * positions, then the queries' parts: [part][head][DIM + 8]. */
template <int DIM> struct attention_inputs {
    enum { FACTORS = 4 * DIM, NEW = FACTORS + 64, QUERIES = FACTORS + 80, PITCH = 2 * DIM + 16 };
};

/* Where element `at` of a head is in the rows of queries. A cache in F8 is read in pairs of bytes
 * as if they were elements, so a lane gets four neighbours: columns 2 t, 2 t + 1, 2 t + 8 and 2 t +
 * 9 of the product. */
MEGA_FN int query_column(int at)
{
    if (!MEGA_CACHE_F8) return at;
    return (at & ~15) + (at & 2) * 4 + (at >> 1 & 6) + (at & 1);
}

/* Stores elements i and i + 1 of q, k or v of a KV head with `heads` query heads; a warp has 64
 * elements of one head. Where products have a cache's numbers as F16, queries are scaled by a power
 * of two, so that the largest of a warp's is about 2^12.
 */
template <int DIM, bool HALF>
MEGA_FN void store_input(const mega_arguments &a, const mega_block &b, int heads, int i, float x,
                         float y)
{
    typedef attention_inputs<DIM> inputs;
    char *base = b.at<char>(a.shared.qkv);
    int head = i / DIM, at = i % DIM;
    if (head >= heads) {
        if (MEGA_CACHE_F8)
            *(uint16_t *)(base + i - heads * DIM) = f8_pair(x, y);
        else
            *(uint32_t *)(base + 2 * (i - heads * DIM)) = cache_words<HALF>(x, y);
        return;
    }
    float factor = a.scale;
    if (HALF) {
        uint32_t largest = __float_as_uint(fmaxf(fabsf(x), fabsf(y)));
        uint32_t exponent = max(__reduce_max_sync(~0u, largest) >> 23, 13);
        float scale = __uint_as_float((266 - exponent) << 23);
        x *= scale, y *= scale;
        factor *= __uint_as_float((exponent - 12) << 23);
    }
    if (b.lane == 0) ((float *)(base + inputs::FACTORS))[head * (DIM / 64) + at / 64] = factor;
    cache_parts<HALF> parts(x, y);
#pragma unroll
    for (int p = 0; p < parts.COUNT; p++)
        *(uint32_t *)(base + inputs::QUERIES + (p * heads + head) * inputs::PITCH +
                      2 * query_column(at)) = parts.of[p];
}

/* ---- attention ---- */

/* A warp's running softmax. Lane 4 g + t has head g, and of each eight values those from 2 t on, as
 * the tensor cores return them; the third and fourth number are those of the lower parts. */
template <int DIM> struct head_states {
    enum { TILES = attention_chunk<DIM>::WIDTH / 8 };
    float out[TILES][4], most, sum;
};

/* Leaves out positions of an eight before the window: of its pieces those from `seen` on count. Few
 * chunks have such positions, so warps branch together. */
MEGA_FN void leave_unseen(int seen, int t, float *score)
{
    if (seen <= 0) return;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (MEGA_FAMILIES && 2 * t + i < seen) score[i] = -INFINITY;
}

/* Adds the scores of a warp's eights of positions, of which each lane has two, to the softmax: `p`
 * becomes their weights, and the result is what earlier outputs must be multiplied by. */
template <int DIM, bool HALF>
MEGA_FN float weigh_positions(head_states<DIM> &s, const float *score, cache_parts<HALF> *p)
{
    float most = -INFINITY;
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        most = e ? fmaxf(most, fmaxf(score[2 * e], score[2 * e + 1])) : fmaxf(score[0], score[1]);
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(fmaxf(most, __shfl_xor_sync(~0u, most, 2)), s.most);
    /* Of two rows, one may have no position here or before: its sums stay 0. */
    float from = MEGA_SEVERAL && most == -INFINITY ? 0 : most;
    float f = exp2_fast(s.most - from), sum = 0;
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        float x = exp2_fast(score[2 * e] - from), y = exp2_fast(score[2 * e + 1] - from);
        sum = e ? sum + (x + y) : x + y;
        p[e] = cache_parts<HALF>(x, y);
    }
    s.most = most;
    s.sum = fmaf(s.sum, f, sum);
    return f;
}

/* The bits that count of a lane's two positions of an eight, of which `all` count for some head:
 * the rest may be NaN. */
MEGA_FN uint32_t kept_positions(int t, int all)
{
    return 2 * t + 1 < all ? ~0u : 2 * t < all ? 0xffff : 0;
}

template <int DIM> MEGA_FN void begin_state(head_states<DIM> &s)
{
    s.most = -INFINITY;
    s.sum = 0;
#pragma unroll
    for (int j = 0; j < s.TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.out[j][i] = 0;
}

/* Floats from head to head and from share to share of outputs in shared memory: no bank conflicts
 * for the writers or for the merge. */
template <int DIM> MEGA_FN int share_pitch(const mega_arguments &a)
{
    return ((a.group * (DIM + 8) + 15) & ~31) + 16;
}

/* Sums up what the lanes of a head have. */
template <int DIM> MEGA_FN void finish_state(head_states<DIM> &s)
{
    s.sum += __shfl_xor_sync(~0u, s.sum, 1);
    s.sum += __shfl_xor_sync(~0u, s.sum, 2);
}

/* Stores the warp's state in shared memory, of the heads from `first` on. */
template <int DIM>
MEGA_FN void store_state(const mega_arguments &a, mega_block &b, const head_states<DIM> &s,
                         int first)
{
    typedef attention_chunk<DIM> shape;
    int share = b.warp % shape::SHARES, set = b.warp / shape::SHARES, t = b.lane & 3;
    int g = (b.lane >> 2) - first;
    if (g < 0 || g >= a.group) return;
    float *to = b.at<float>(a.shared.planes) + share * share_pitch<DIM>(a) + g * (DIM + 8) +
                set * shape::WIDTH + 2 * EIGHTS * t;
#if MEGA_CACHE_F8
#pragma unroll
    for (int j = 0; j < s.TILES; j += 2) {
        const float(*out)[4] = s.out + j;
        *(float4 *)(to + 8 * j) = make_float4(out[0][0] + out[0][2], out[1][0] + out[1][2],
                                              out[0][1] + out[0][3], out[1][1] + out[1][3]);
    }
#else
#pragma unroll
    for (int j = 0; j < s.TILES; j++)
        *(float2 *)(to + 8 * j) = make_float2(s.out[j][0] + s.out[j][2], s.out[j][1] + s.out[j][3]);
#endif
    if (t == 0 && set == 0)
        b.at<float2>(a.shared.states)[share * a.group + g] = make_float2(s.most, s.sum);
}

/* Merges the block's own states and calls store(i, out, most, sum) for outputs i and i + 1 of the
 * KV head, not yet divided by the sum. Two lanes have an output, each half of the shares; both get
 * the result. */
template <int DIM, typename STORE>
MEGA_FN void merge_shares(const mega_arguments &a, const mega_block &b, STORE store)
{
    const int each = attention_chunk<DIM>::SHARES / 2;
#pragma unroll 1
    for (int i = b.thread & ~1; i < a.group * DIM; i += MEGA_CONSUMERS) {
        int head = i / DIM, half = b.lane & 1;
        const float *outputs =
            b.at<float>(a.shared.planes) + half * share_pitch<DIM>(a) + head * (DIM + 8) + i % DIM;
        const float2 *states = b.at<float2>(a.shared.states) + half * a.group + head;
        float2 state[each], out = {0, 0};
        float most = -INFINITY, sum = 0;
#pragma unroll
        for (int k = 0; k < each; k++) {
            state[k] = states[2 * k * a.group];
            most = fmaxf(most, state[k].x);
        }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
#pragma unroll
        for (int k = 0; k < each; k++) {
            float2 v = *(const float2 *)(outputs + 2 * k * share_pitch<DIM>(a));
            float f = exp2_fast(state[k].x - most);
            sum = fmaf(f, state[k].y, sum);
            out.x = fmaf(f, v.x, out.x);
            out.y = fmaf(f, v.y, out.y);
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        out.x += __shfl_xor_sync(~0u, out.x, 1);
        out.y += __shfl_xor_sync(~0u, out.y, 1);
        store(i, out, most, sum);
    }
}
