/* Attention over a cache in F8: a warp has 16 positions of a chunk, two eights, from which
 * registers get its numbers as F16. */
#pragma once

#include "vm/mega/attention.cuh"

/* What follows from the result is computed here, and needs no register elsewhere. */
MEGA_FN int anew(int v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* The scores of two eights of positions. `keys`: the address of the lane's row of the first;
 * `queries`: the lane's row of their first two parts. */
template <int DIM>
MEGA_FN void multiply_keys(const mega_arguments &a, const mega_block &b, uint32_t queries,
                           uint32_t keys, const int *valid, float *score)
{
#pragma unroll
    for (int part = 0; part < DIM / 64; part++) {
        uint32_t m[EIGHTS][4], q[4], pairs[2];
        float sums[EIGHTS][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll
        for (int e = 0; e < EIGHTS; e++)
            load_matrices(m[e], keys + e * attention_chunk<DIM>::NEXT + part * 64);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            load_matrices(q, queries + (4 * part + k) * 32);
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) {
                half_numbers(m[e][k], pairs);
                multiply_16<true>(sums[e], q[0], q[1], q[2], q[3], pairs[0], pairs[1]);
            }
        }
        /* Lanes without a head get any number. */
        float factor =
            __uint_as_float(load_shared(b.own + a.shared.qkv + attention_inputs<DIM>::FACTORS +
                                        (anew(b.lane) >> 2) * (DIM / 16) + 4 * part));
#pragma unroll
        for (int i = 0; i < 2 * EIGHTS; i++) {
            const float *sum = sums[i / 2];
            score[i] = (part ? score[i] : 0) + (sum[i % 2] + sum[i % 2 + 2]) * factor;
            if (2 * (b.lane & 3) + i % 2 >= valid[i / 2]) score[i] = -INFINITY;
        }
    }
}

/* Adds values to the outputs, which are multiplied by f before. `values`: the address of the lane's
 * row of an eight, by lane / 8 % 2, and of 16 columns. A load brings 16 columns of an eight, of
 * each position two neighbours to a lane: they are columns of two tiles, the even ones and the odd
 * ones.
 */
template <int DIM>
MEGA_FN void add_values(const mega_block &b, head_states<DIM> &s, uint32_t values, const int *valid,
                        const cache_parts<true> *p, float f)
{
    uint32_t kept[EIGHTS];
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        kept[e] = kept_positions(b.lane & 3, valid[e]);
#pragma unroll
    for (int j = 0; j < s.TILES; j += 4) {
        uint32_t m[4], one[2], next[2];
        load_matrices_transposed(m, values + j * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i % 2 == 0) {
                half_numbers(__byte_perm(m[i] & kept[0], 0, 0x3120), one);
                half_numbers(__byte_perm(m[i + 1] & kept[1], 0, 0x3120), next);
            }
            float *out = s.out[j + i];
#pragma unroll
            for (int k = 0; k < 4; k++)
                out[k] *= f;
            multiply_16<true>(out, p[0].of[0], p[0].of[1], p[1].of[0], p[1].of[1], one[i % 2],
                              next[i % 2]);
        }
    }
}

/* Attention over the chunks, and over the newest position if they end with the context: as the
 * first of 16, of which the others do not count. `low`: the first position that it sees. */
template <int DIM, bool HALF>
MEGA_FN void attend(const mega_arguments &a, mega_block &b, int old, int low, int first, int chunks,
                    head_states<DIM> &s)
{
    typedef attention_chunk<DIM> shape;
    typedef attention_inputs<DIM> inputs;
    uint32_t queries = b.own + a.shared.qkv + inputs::QUERIES + (b.lane >> 4) * 16 +
                       ((b.lane >> 3 & 1) * a.group + min(b.lane & 7, a.group - 1)) * inputs::PITCH;
    const bool ends = first + chunks == context_chunks<DIM>(old);
    auto end_of = [&](int share) {
        return chunks + (share % shape::SHARES == shape::SHARES - 1 && ends);
    };
    begin_state(s);
#pragma unroll 1
    for (int c = 0; c < end_of(anew(b.warp)); c++) {
        const bool cached = c < chunks;
        const int lane = anew(b.lane), warp = anew(b.warp);
        const int share = warp % shape::SHARES, set = warp / shape::SHARES;
        uint32_t keys = cached ? acquire_chunk(a, b) + (lane & 7) * shape::PITCH + share * DIM
                               : b.own + a.shared.qkv;
        uint32_t values = keys + (cached ? 8 * shape::PITCH : DIM) + set * shape::WIDTH +
                          (lane & 16) + (lane >> 3 & 1) * shape::NEXT;
        int left = old - (first + c) * shape::POSITIONS - share, valid[EIGHTS];
#pragma unroll
        for (int e = 0; e < EIGHTS; e++)
            valid[e] =
                cached ? (left - e * shape::SHARES + shape::PIECE - 1) / shape::PIECE : e == 0;
        int seen[EIGHTS];
        bool any = !cached;
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            const int unseen = low - old + left - e * shape::SHARES;
            seen[e] =
                cached && MEGA_FAMILIES ? max((unseen + shape::PIECE - 1) / shape::PIECE, 0) : 0;
            any = any || seen[e] < min(valid[e], 8);
        }
        if (any) {
            float score[2 * EIGHTS];
            cache_parts<true> p[EIGHTS];
            multiply_keys<DIM>(a, b, queries, keys + (lane >> 3) * 16, valid, score);
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
                leave_unseen(seen[e], lane & 3, score + 2 * e);
            float f = weigh_positions<DIM, true>(s, score, p);
            add_values<DIM>(b, s, values, valid, p, f);
        }
        if (cached) release_chunk(a, b);
    }
    finish_state<DIM>(s);
}
