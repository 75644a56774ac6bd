/* Attention over a cache in F16 or BF16: a warp has eight positions of a chunk. */
#pragma once

#include "vm/mega/attention.cuh"

/* Steps of 16 columns whose queries stay in registers from chunk to chunk, because loads of queries
 * are most of what a chunk loads from shared memory. Weights of 16 bits and several rows leave no
 * registers for them, and a cache in BF16, which has three parts of a query, leaves too few. */
template <int DIM, bool HALF> MEGA_FN constexpr int kept_steps()
{
    return MEGA_QUANT_TYPES && HALF && !MEGA_SEVERAL ? DIM / 16 : 0;
}

/* A lane's part of the queries. */
template <int DIM, bool HALF> struct kept_queries {
    enum { KEPT = kept_steps<DIM, HALF>(), PARTS = HALF ? 4 : 6 };
    uint32_t row, third; /* address of the lane's row of the first two parts; bytes to the third */
    uint32_t kept[KEPT ? KEPT : 1][PARTS];

    MEGA_FN void load_step(int step, uint32_t *parts) const
    {
        uint32_t q[4];
        load_matrices(parts, row + step * 32);
        if (HALF) return;
        load_matrices(q, row + step * 32 + third);
        parts[PARTS - 2] = q[0], parts[PARTS - 1] = q[2];
    }
    MEGA_FN void load(const mega_arguments &a, const mega_block &b, int heads)
    {
        typedef attention_inputs<DIM> inputs;
        row = b.own + a.shared.qkv + inputs::QUERIES + (b.lane >> 4) * 16 +
              ((b.lane >> 3 & 1) * heads + min(b.lane & 7, heads - 1)) * inputs::PITCH;
        third = 2 * heads * inputs::PITCH;
#pragma unroll
        for (int step = 0; step < KEPT; step++)
            load_step(step, kept[step]);
    }
    /* sum += the queries' columns of a step times those of a key, two registers of 16 bits. */
    MEGA_FN void multiply(float *sum, int step, uint32_t low, uint32_t high) const
    {
        uint32_t q[PARTS];
        if (step >= KEPT) load_step(step, q);
#pragma unroll
        for (int i = 0; i < PARTS && step < KEPT; i++)
            q[i] = kept[step < KEPT ? step : 0][i];
        multiply_16<HALF>(sum, q[0], q[1], q[2], q[3], low, high);
        if (!HALF) multiply_16<HALF>(sum, q[PARTS - 2], 0, q[PARTS - 1], 0, low, high);
    }
};

/* Adds eight positions, of which those from `seen` to `valid` count for this lane's head, and the
 * first `all` for some head. `keys`, `values`: addresses of the rows of keys and of this warp's
 * values. */
template <int DIM, bool HALF>
MEGA_FN void attention_step(const mega_arguments &a, const mega_block &b, head_states<DIM> &s,
                            int heads, const kept_queries<DIM, HALF> &queries, uint32_t keys,
                            uint32_t values, int seen, int valid, int all)
{
    int t = b.lane & 3;
    float c[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll
    for (int k = 0; k < DIM / 16; k += 2) {
        uint32_t m[4];
        load_matrices(m, keys + k * 32);
#pragma unroll
        for (int i = 0; i < 2; i++)
            queries.multiply(c[DIM == 64 ? i : k / 4], k + i, m[2 * i], m[2 * i + 1]);
    }
    int head = min(b.lane >> 2, heads - 1) * (DIM / 64);
    const float *factors = b.at<float>(a.shared.qkv + attention_inputs<DIM>::FACTORS) + head;
    float score[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        score[i] =
            (c[0][i] + c[0][i + 2]) * factors[0] + (c[1][i] + c[1][i + 2]) * factors[DIM / 64 - 1];
        if (2 * t + i >= valid) score[i] = -INFINITY;
    }
    leave_unseen(seen, t, score);
    cache_parts<HALF> p[EIGHTS];
    float f = weigh_positions<DIM, HALF>(s, score, p);
    uint32_t kept = kept_positions(t, all);
#pragma unroll
    for (int j = 0; j < s.TILES; j++) {
        uint32_t m[4];
        if (j % 4 == 0) load_matrices_transposed(m, values + j * 16);
        uint32_t v = m[j % 4] & kept;
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.out[j][i] *= f;
        multiply_16_8<HALF>(s.out[j], p->of[0], p->of[1], v);
        if (!HALF) multiply_16_8<HALF>(s.out[j], p->of[2], 0, v);
    }
}

#if MEGA_SEVERAL
/* In batch.cuh. */
template <int DIM>
MEGA_FN void add_new_positions(const mega_arguments &a, const mega_block &b, int old, int chunk);
#endif

/* Attention over the chunks, and over the newest position if they end with the context; `low`: the
 * first position that it sees. Of two
 * joined rows the heads of the first have one position less than `old`, and the number of their
 * newest is `others` at that address. */
template <int DIM, bool HALF>
MEGA_FN void attend(const mega_arguments &a, mega_block &b, int old, int low, int first, int chunks,
                    head_states<DIM> &s, int joined = 1, uint32_t others = 0)
{
    typedef attention_chunk<DIM> shape;
    const int share = b.warp % shape::SHARES, set = b.warp / shape::SHARES,
              heads = joined * a.group;
    const int piece = b.lane & 7, column = (b.lane >> 3) * 16;
    /* Positions that this lane's head lacks. */
    const int lacks = MEGA_SEVERAL && joined > 1 && (b.lane >> 2) < a.group;
    kept_queries<DIM, HALF> queries;
    queries.load(a, b, heads);
    begin_state(s);
    bool newest = share == shape::SHARES - 1 && first + chunks == context_chunks<DIM>(old);
    int end = chunks + (newest ? joined : 0);
#pragma unroll 1
    for (int c = 0; c < end; c++) {
        bool cached = c < chunks, last = !MEGA_SEVERAL || c + 1 == end;
        uint32_t keys = cached ? acquire_chunk(a, b) + piece * shape::PITCH + share * DIM * 2
                        : last ? b.own + a.shared.qkv
                               : others;
        uint32_t values = keys + (cached ? 8 * shape::PITCH : DIM * 2) + set * shape::WIDTH * 2;
#if MEGA_SEVERAL
        if (cached) add_new_positions<DIM>(a, b, old, first + c);
#endif
        int left = old - (first + c) * shape::POSITIONS - share;
        int all = cached ? (left + shape::PIECE - 1) / shape::PIECE : 1;
        const int seen =
            cached && MEGA_FAMILIES ? (low - old + left + shape::PIECE - 1) / shape::PIECE : 0;
        int valid = !MEGA_SEVERAL ? all
                    : cached      ? (left - lacks + shape::PIECE - 1) / shape::PIECE
                                  : joined == 1 || lacks != last;
        if (!cached || (left > 0 && (!MEGA_FAMILIES || seen < min(all, 8))))
            attention_step<DIM, HALF>(a, b, s, heads, queries, keys + column, values + column, seen,
                                      valid, all);
        if (cached) release_chunk(a, b);
    }
    finish_state<DIM>(s);
}
