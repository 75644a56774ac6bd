/* Attention of two to eight rows over parts of their contexts, several parts at a time.
 *
 * A team of warps has a part. A warp weighs the positions of some shares (the eight positions of a
 * chunk that one warp has in attention.cuh); then, after a barrier of the team, it adds up some
 * columns of the values of all shares. So a chunk takes two barriers of a few warps, and only
 * weights go through shared memory. attend() and merge_shares() have barriers of the block before
 * and after the outputs of all shares, of one part at a time. Of a part of one chunk all sums are
 * theirs, in the same order, to the same bits.
 */
#pragma once

#include "vm/mega/heads.cuh"

template <int DIM> struct part_shape {
    enum {
        /* Quantised weights with heads of 128 leave teams too few registers. */
        TEAMS = !MEGA_QUANT_TYPES || DIM == 64,
        /* Chunks in a part, until there are as many parts as the KV head has blocks. Without teams
         * more than one where the bits need not be those of one row's kernel: a block stores the
         * states of each part. They depend on no other row. */
        CHUNKS = TEAMS ? 1 : 4
    };
};

/* Releases the next chunks, which other teams read: the ring counts all warps. */
MEGA_FN void skip_chunks(const mega_arguments &a, mega_block &b, int n)
{
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        acquire_chunk(a, b);
        release_chunk(a, b);
    }
}

/* The warps that have one of a block's parts. */
struct part_team {
    int count, index, warps, warp; /* teams; this one; its warps; which of them this is */

    /* All warps as one team. */
    MEGA_FN part_team(const mega_block &b) : count(1), index(0), warps(MEGA_WARPS), warp(b.warp) {}
    /* Teams for `parts` parts of one row, or of two joined ones. */
    MEGA_FN part_team(const mega_block &b, int joined, int parts)
    {
        const int shift = parts == 1 ? 4 : joined > 1 || parts == 2 ? 3 : 2;
        count = MEGA_WARPS >> shift, warps = 1 << shift;
        index = b.warp >> shift, warp = b.warp & (warps - 1);
    }
    /* Barrier 1 is the consumer warps'. */
    MEGA_FN void sync() const
    {
        asm volatile("bar.sync %0, %1;" ::"r"(2 + index), "r"(32 * warps) : "memory");
    }
};

/* A chunk that a team attends to, with the rows' newest positions if their context ends there. */
struct attended_part {
    uint32_t chunk, others; /* addresses; others: the newest of the first of two rows */
    int joined;             /* rows */
    int left;               /* positions of the context from the chunk's first on */
    int unseen;             /* positions from there on that are before the window */

    template <int DIM> MEGA_FN bool newest() const
    {
        return left <= attention_chunk<DIM>::POSITIONS;
    }
};

/* The weights of a team's positions in shared memory, where attend() has outputs: for each share,
 * then for each newest position, a lane's two weights as parts of the cache's type. The fourth
 * number is, of a share, its maximum (t = 0) or its sum; of a newest position, the factor of what
 * the last share had before. */
template <int DIM> struct part_weights {
    typedef attention_chunk<DIM> shape;
    /* Of four teams for one row, or of two teams for two; products of quantised weights have more
     * room there. */
    static_assert(MEGA_QUANT_TYPES || 4 * (shape::PIECE + 2) * 4 * (int)sizeof(uint4) <=
                                          shape::PIECE * (DIM + 8) * (int)sizeof(float),
                  "a head's weights fit where its outputs would be");
    uint32_t base; /* address of this team's */
    int heads;

    MEGA_FN part_weights(const mega_arguments &a, const mega_block &b, const part_team &team,
                         int joined)
    {
        heads = joined * a.group;
        base = b.own + a.shared.planes + team.index * (shape::PIECE + 2) * heads * 64;
    }
    /* Of head `head`, from position 2 t of the share's eight on. */
    MEGA_FN uint32_t at(int share, int head, int t) const
    {
        return base + ((share * heads + head) * 4 + t) * (int)sizeof(uint4);
    }
};

/* The queries' fragments of a KV head, for all shares of a warp. */
template <int DIM, bool HALF> struct query_fragments {
    uint32_t of[DIM / 16][4], third[DIM / 16][2];

    MEGA_FN void load(const mega_arguments &a, const mega_block &b, int heads)
    {
        typedef attention_inputs<DIM> inputs;
        const uint32_t at =
            b.own + a.shared.qkv + inputs::QUERIES + (b.lane >> 4) * 16 +
            ((b.lane >> 3 & 1) * heads + min(b.lane & 7, heads - 1)) * inputs::PITCH;
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            uint32_t q[4];
            load_matrices(of[k], at + k * 32);
            if (HALF) continue;
            load_matrices(q, at + k * 32 + 2 * heads * inputs::PITCH);
            third[k][0] = q[0], third[k][1] = q[2];
        }
    }
    /* The scores of eight positions, two of this lane's head: as attention_step() has them. */
    MEGA_FN void multiply(uint32_t keys, const float *factors, float *score) const
    {
        float c[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll
        for (int k = 0; k < DIM / 16; k += 2) {
            uint32_t m[4];
            load_matrices(m, keys + k * 32);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t *q = of[k + i];
                float *sum = c[DIM == 64 ? i : k / 4];
                multiply_16<HALF>(sum, q[0], q[1], q[2], q[3], m[2 * i], m[2 * i + 1]);
                if (!HALF)
                    multiply_16<HALF>(sum, third[k + i][0], 0, third[k + i][1], 0, m[2 * i],
                                      m[2 * i + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            score[i] = (c[0][i] + c[0][i + 2]) * factors[0] +
                       (c[1][i] + c[1][i + 2]) * factors[DIM / 64 - 1];
    }
};

/* Stores the weights of the warp's shares of the positions. */
template <int DIM, bool HALF>
MEGA_FN void weigh_part(const mega_arguments &a, const mega_block &b, const part_team &team,
                        const attended_part &part)
{
    typedef attention_chunk<DIM> shape;
    const part_weights<DIM> weights(a, b, team, part.joined);
    const int piece = b.lane & 7, column = (b.lane >> 3) * 16, t = b.lane & 3;
    const int head = min(b.lane >> 2, weights.heads - 1);
    const bool writes = b.lane >> 2 < weights.heads;
    /* Positions that this lane's head lacks: see attend(). */
    const int lacks = part.joined > 1 && head < a.group;
    const float *factors =
        b.at<float>(a.shared.qkv + attention_inputs<DIM>::FACTORS) + head * (DIM / 64);
    query_fragments<DIM, HALF> queries;
    queries.load(a, b, weights.heads);
#pragma unroll 1
    for (int share = team.warp; share < shape::PIECE; share += team.warps) {
        const bool newest = part.newest<DIM>() && share == shape::PIECE - 1;
        uint32_t keys = part.chunk + piece * shape::PITCH + share * DIM * 2;
        int valid = (part.left - share - lacks + shape::PIECE - 1) / shape::PIECE;
        float most = -INFINITY, sum = 0;
#pragma unroll 1
        for (int step = 0;;) {
            float score[2];
            queries.multiply(keys + column, factors, score);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (2 * t + i >= valid) score[i] = -INFINITY;
            if (step == 0)
                leave_unseen((part.unseen - share + shape::PIECE - 1) / shape::PIECE, t, score);
            const float before = most;
            most = fmaxf(score[0], score[1]);
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(fmaxf(most, __shfl_xor_sync(~0u, most, 2)), before);
            /* A share may have no position of a row: its sums stay 0. */
            const float from = most == -INFINITY ? 0 : most, f = exp2_fast(before - from);
            const float x = exp2_fast(score[0] - from), y = exp2_fast(score[1] - from);
            sum = fmaf(sum, f, x + y);
            const cache_parts<HALF> p(x, y);
            if (writes)
                store_shared_16(weights.at(share + step, head, t),
                                make_uint4(p.of[0], p.of[1], p.of[2], __float_as_uint(f)));
            if (!newest || step == part.joined) break;
            step++;
            const int last = step == part.joined;
            keys = last ? b.own + a.shared.qkv : part.others;
            valid = part.joined == 1 || lacks != last;
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (writes) store_shared(weights.at(share, head, t) + 12, t ? sum : most);
    }
}

/* Adds a lane's two of eight positions' values, by their weights. */
template <bool HALF> MEGA_FN void add_eight_values(float *c, const uint4 &weights, uint32_t values)
{
    multiply_16_8<HALF>(c, weights.x, weights.y, values);
    if (!HALF) multiply_16_8<HALF>(c, weights.z, 0, values);
}

/* What a warp of a team adds up of a part: 16 columns of values at a time, `PAIRS` times, for this
 * lane's head; as merge_shares() adds, shares with even numbers and those with odd ones. */
template <int DIM, bool HALF> struct value_sums {
    typedef attention_chunk<DIM> shape;
    enum { PAIRS = DIM / 64 };
    float2 out[PAIRS][2][2];
    float sum[2], most;

    MEGA_FN value_sums() : out{}, sum{0, 0}, most(-INFINITY) {}

    /* Raises the maximum to that of a chunk's shares, and scales what earlier chunks added. */
    MEGA_FN void scale(const part_weights<DIM> &weights, int head, int t)
    {
        const float before = most;
#pragma unroll
        for (int share = 0; share < shape::PIECE; share += 4)
            most = fmaxf(most, __uint_as_float(load_shared(weights.at(share + t, head, 0) + 12)));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        if (!MEGA_QUANT_TYPES) return; /* a part is one chunk */
        const float f = exp2_fast(before - most);
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            sum[odd] *= f;
#pragma unroll
            for (int i = 0; i < 2 * PAIRS; i++)
                out[i / 2][odd][i % 2].x *= f, out[i / 2][odd][i % 2].y *= f;
        }
    }

    /* Adds the values of a chunk's positions by their weights. */
    MEGA_FN void add(const mega_arguments &a, const mega_block &b, const part_team &team,
                     const attended_part &part)
    {
        const part_weights<DIM> weights(a, b, team, part.joined);
        const int t = b.lane & 3, head = min(b.lane >> 2, weights.heads - 1);
        scale(weights, head, t);
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
            if (team.warp + i * team.warps < DIM / 16)
                add_pair(a, b, weights, part, team.warp + i * team.warps, i > 0, out[i]);
    }

    /* `again`: the weights' sums are there already. */
    MEGA_FN void add_pair(const mega_arguments &a, const mega_block &b,
                          const part_weights<DIM> &weights, const attended_part &part, int pair,
                          bool again, float2 (*to)[2])
    {
        const int t = b.lane & 3, head = min(b.lane >> 2, weights.heads - 1);
        const int first = part.left - 2 * t * shape::PIECE; /* shares below have position 2 t */
        const uint32_t mine = weights.at(0, head, t), states = weights.at(0, head, 0) + 12;
        const uint32_t pitch = weights.at(1, 0, 0) - weights.at(0, 0, 0);
        const int columns = 32 * pair + (b.lane >> 3 & 1) * 16; /* bytes */
        const uint32_t values =
            part.chunk + (8 + (b.lane & 7)) * shape::PITCH + (b.lane >> 4) * DIM * 2 + columns;
#pragma unroll 2
        for (int share = 0; share < shape::PIECE; share += 2) {
            uint32_t m[4];
            load_matrices_transposed(m, values + share * DIM * 2);
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const uint32_t of = (share + odd) * pitch;
                const float f = exp2_fast(__uint_as_float(load_shared(states + of)) - most);
                const uint4 p = load_shared_16(mine + of);
                const uint32_t kept = share + odd < first - shape::PIECE ? ~0u
                                      : share + odd < first              ? 0xffff
                                                                         : 0;
                if (!again)
                    sum[odd] = fmaf(f, __uint_as_float(load_shared(states + of + 16)), sum[odd]);
                float c[2][4];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
                    add_eight_values<HALF>(c[i], p,
                                           m[2 * odd + i] & kept); /* the rest may be NaN */
                }
                if (odd && share == shape::PIECE - 2 && part.newest<DIM>())
                    add_newest(a, b, part, mine + of, pitch, columns, c);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    to[odd][i].x = fmaf(f, c[i][0] + c[i][2], to[odd][i].x);
                    to[odd][i].y = fmaf(f, c[i][1] + c[i][3], to[odd][i].y);
                }
            }
        }
    }
    /* Adds the newest positions' values to those of the last share, whose weights are at `at`. */
    MEGA_FN void add_newest(const mega_arguments &a, const mega_block &b, const attended_part &part,
                            uint32_t at, uint32_t pitch, int columns, float (*c)[4])
    {
#pragma unroll 1
        for (int step = 1; step <= part.joined; step++) {
            const uint32_t key = step == part.joined ? b.own + a.shared.qkv : part.others;
            const uint4 p = load_shared_16(at + step * pitch);
            uint32_t m[4];
            load_matrices_transposed(m, key + DIM * 2 + columns);
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    c[i][j] *= __uint_as_float(p.w);
                add_eight_values<HALF>(c[i], p, b.lane & 3 ? 0 : m[i] & 0xffff);
            }
        }
    }

    /* Stores the states of a part of `joined` rows for all blocks of the KV head. */
    MEGA_FN void store(const mega_arguments &a, const mega_block &b, const part_team &team,
                       int first, int joined, int part) const
    {
        const int g = b.lane >> 2, t = b.lane & 3, slot = g >= a.group, head = g - slot * a.group;
        const int row = (first + slot) * a.n_kv_heads + b.current().weights.kv_head;
        const uint32_t tag = part_tag(a, b, b.current().in);
        if (g >= joined * a.group) return;
        int64_t *states = part_states<DIM>(a, row, part);
        int64_t *to = states + 2 * a.group + head * DIM + 2 * t;
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) {
            const int pair = team.warp + i / 2 * team.warps;
            const float2 *even = out[i / 2][0], *odd = out[i / 2][1];
            if (pair < DIM / 16)
                store_relaxed_two(to + 16 * pair + 8 * (i % 2),
                                  part_state(even[i % 2].x + odd[i % 2].x, tag),
                                  part_state(even[i % 2].y + odd[i % 2].y, tag));
        }
        if (team.warp == 0 && t == 0)
            store_relaxed_two(states + 2 * head, part_state(most, tag),
                              part_state(sum[0] + sum[1], tag));
    }
};
