/* Attention of one KV head in one block: its query heads over a range of old positions that come
 * through the ring, and perhaps the newest, which came with the queries.
 *
 * A warp has two query heads and a share of each chunk's positions; 8 dimensions of a position are
 * a lane's. Scores are taken times log2 e. At the end every warp's maximum, sum and output lie in
 * shared memory and are merged, as partitions are.
 */
#ifndef QUIPU_VM_MEGA_ATTENTION_CUH
#define QUIPU_VM_MEGA_ATTENTION_CUH

#include "vm/mega/block.cuh"

/* How warps share a KV head: sets of two query heads, and positions. */
struct attention_shape {
    int sets, shares;
};
MEGA_FN attention_shape attention_shape_of(const mega_arguments &a)
{
    int sets = a.group <= 2 ? 1 : a.group <= 4 ? 2 : 4;
    return {sets, MEGA_WARPS / sets};
}

/* Positions of a chunk: half of it keys, half values. */
enum { CACHE_CHUNK = MEGA_BRICKS ? MEGA_CACHE_BRICKS : MEGA_BOX };
template <int DIM> struct attention_chunk {
    enum { POSITIONS = CACHE_CHUNK / 4 / DIM };
};

/* Chunks of a context. */
template <int DIM> MEGA_FN int context_chunks(int old)
{
    const int each = attention_chunk<DIM>::POSITIONS;
    return (old + each - 1) / each;
}

/* Chunks of an instruction, from the first; none when it recomputes nothing or has no part. */
template <int DIM>
MEGA_FN int attention_chunks(const mega_arguments &a, const instruction &in, int old, int *first)
{
    int n = context_chunks<DIM>(old);
    *first = 0;
    bool alone = old + 1 <= a.recompute;
    if (in.opcode == OP_ATTENTION_PARTIAL) {
        if (alone) return 0;
        *first = n * in.part / in.parts;
        return n * (in.part + 1) / in.parts - *first;
    }
    return alone ? n : 0;
}

/* The j-th part that has chunks: all of them, or as many as there are chunks. */
MEGA_FN int used_part(int j, int chunks, int parts)
{
    return chunks >= parts ? j : (j * parts + parts + chunks - 1) / chunks - 1;
}

template <bool HALF> MEGA_FN float2 cache_pair(uint32_t w)
{
    if (HALF) return __half22float2(*(const __half2 *)&w);
    return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000));
}
template <bool HALF> MEGA_FN void cache_values(uint4 w, float *v)
{
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = cache_pair<HALF>(words[i]);
        v[2 * i] = pair.x;
        v[2 * i + 1] = pair.y;
    }
}

/* Two query heads' state over the positions that a group of lanes has seen. */
struct head_states {
    float q[2][8], out[2][8], most[2], sum[2];
};

/* N more positions, the first `valid` of which count; all lanes of the warp call it. Scores first,
 * then one step of the state for all of them: each step waits for the one before. */
template <int DIM, int N, typename VALUES>
MEGA_FN void attention_step(head_states &s, const float (*k)[8], VALUES values, int valid)
{
    float score[N][2];
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float even = 0, odd = 0;
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                even = fmaf(s.q[h][i], k[j][i], even);
                odd = fmaf(s.q[h][i + 1], k[j][i + 1], odd);
            }
            score[j][h] = even + odd;
        }
#pragma unroll
    for (int o = DIM / 16; o; o >>= 1)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                score[j][h] += __shfl_xor_sync(~0u, score[j][h], o);
    if (valid <= 0) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = s.most[h];
#pragma unroll
        for (int j = 0; j < N; j++)
            if (j < valid) most = fmaxf(most, score[j][h]);
        float old = exp2_fast(s.most[h] - most);
        s.most[h] = most;
        s.sum[h] *= old;
#pragma unroll
        for (int i = 0; i < 8; i++)
            s.out[h][i] *= old;
#pragma unroll
        for (int j = 0; j < N; j++) {
            score[j][h] = j < valid ? exp2_fast(score[j][h] - most) : 0;
            s.sum[h] += score[j][h];
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (j >= valid) continue; /* its values may be no numbers */
        float v[8];
        values(j, v);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                s.out[h][i] = fmaf(score[j][h], v[i], s.out[h][i]);
    }
}

/* The warp's share of the chunks. */
template <int DIM, bool HALF>
MEGA_FN void attention_walk(const mega_arguments &a, mega_block &b, head_states &s, int old,
                            int first, int chunks)
{
    const int lanes = DIM / 8, beside = 32 / lanes, each = attention_chunk<DIM>::POSITIONS;
    const int at_once = each / 8 / beside; /* what a lane has of a chunk with eight shares */
    attention_shape shape = attention_shape_of(a);
    int share = b.warp % shape.shares, mine = each / shape.shares;
    for (int c = 0; c < chunks; c++) {
        uint32_t at = take_chunk(a, b) + share * mine * DIM * 2 + b.lane * 16;
        int position = (first + c) * each + share * mine, end = min(mine, old - position);
#pragma unroll 1
        for (int i = 0; i < end; i += at_once * beside) {
            float k[at_once][8];
            uint4 words[at_once];
#pragma unroll
            for (int j = 0; j < at_once; j++)
                words[j] = load_shared_16(at + (i + j * beside) * DIM * 2);
#pragma unroll
            for (int j = 0; j < at_once; j++) {
                cache_values<HALF>(words[j], k[j]);
                words[j] = load_shared_16(at + (i + j * beside) * DIM * 2 + CACHE_CHUNK / 2);
            }
            attention_step<DIM, at_once>(
                s, k, [&](int j, float *v) { cache_values<HALF>(words[j], v); },
                (end - i - b.lane / lanes + beside - 1) / beside);
        }
        give_chunk(a, b);
    }
}

/* Merges a warp's groups of lanes, and leaves its state in shared memory. */
template <int DIM>
MEGA_FN void attention_leave(const mega_arguments &a, mega_block &b, head_states &s, int head)
{
    const int lanes = DIM / 8;
    float *outputs = b.at<float>(a.shared.planes), *states = b.at<float>(a.shared.states);
    int share = b.warp % attention_shape_of(a).shares;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = s.most[h];
#pragma unroll
        for (int o = lanes; o < 32; o <<= 1)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
        float f = s.most[h] == -INFINITY ? 0 : exp2_fast(s.most[h] - most);
        s.sum[h] *= f;
#pragma unroll
        for (int i = 0; i < 8; i++)
            s.out[h][i] *= f;
#pragma unroll
        for (int o = lanes; o < 32; o <<= 1) {
            s.sum[h] += __shfl_xor_sync(~0u, s.sum[h], o);
#pragma unroll
            for (int i = 0; i < 8; i++)
                s.out[h][i] += __shfl_xor_sync(~0u, s.out[h][i], o);
        }
        if (b.lane >= lanes || head + h >= a.group) continue;
        float4 *to = (float4 *)(outputs + (share * a.group + head + h) * DIM + 8 * b.lane);
        to[0] = make_float4(s.out[h][0], s.out[h][1], s.out[h][2], s.out[h][3]);
        to[1] = make_float4(s.out[h][4], s.out[h][5], s.out[h][6], s.out[h][7]);
        if (b.lane == 0) {
            states[(share * a.group + head + h) * 2] = most;
            states[(share * a.group + head + h) * 2 + 1] = s.sum[h];
        }
    }
    b.sync();
}

/* Attention over the chunks, and the newest position with `newest`; states of the shares are in
 * shared memory then. The queries lie in shared memory, behind them the newest key and value. */
template <int DIM, bool HALF>
MEGA_FN void attend(const mega_arguments &a, mega_block &b, int old, int first, int chunks,
                    bool newest)
{
    const int lanes = DIM / 8;
    attention_shape shape = attention_shape_of(a);
    int head = 2 * (b.warp / shape.shares), d = 8 * (b.lane % lanes);
    const float *qkv = b.at<float>(a.shared.qkv);
    head_states s;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s.most[h] = -INFINITY;
        s.sum[h] = 0;
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            float4 q = *(const float4 *)(qkv + min(head + h, a.group - 1) * DIM + d + i);
            s.q[h][i] = q.x * a.scale, s.q[h][i + 1] = q.y * a.scale;
            s.q[h][i + 2] = q.z * a.scale, s.q[h][i + 3] = q.w * a.scale;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            s.out[h][i] = 0;
    }
    attention_walk<DIM, HALF>(a, b, s, old, first, chunks);
    if (newest && b.warp % shape.shares == shape.shares - 1) {
        float k[1][8];
        const float *newest_key = qkv + a.group * DIM + d;
#pragma unroll
        for (int i = 0; i < 8; i++)
            k[0][i] = newest_key[i];
        attention_step<DIM, 1>(
            s, k,
            [&](int, float *v) {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] = newest_key[DIM + i];
            },
            b.lane < lanes);
    }
    attention_leave<DIM>(a, b, s, head);
}

/* One output of a head of `n` states, states[i * stride] being maximum and sum, out[i * pitch] the
 * output: not divided yet. */
template <typename LOAD>
MEGA_FN void merge_outputs(int n, LOAD load, float *most, float *sum, float *out)
{
    *most = -INFINITY;
#pragma unroll 4
    for (int i = 0; i < n; i++)
        *most = fmaxf(*most, load(i, 0));
    *sum = *out = 0;
#pragma unroll 4
    for (int i = 0; i < n; i++) {
        float m = load(i, 0), f = m == -INFINITY ? 0 : exp2_fast(m - *most);
        *sum = fmaf(f, load(i, 1), *sum);
        *out = fmaf(f, load(i, 2), *out);
    }
}

#endif
