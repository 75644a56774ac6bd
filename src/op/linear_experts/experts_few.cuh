/* linear_experts for few tokens, bound by reading the weights of their experts.
 *
 * As in linear_eight.cuh a tile of 16 rows of weights is one operand of mma; here the other has one
 * row of x, whose three parts of 16 bits are three of its eight columns. A tile has eight features
 * of gate and of up of one expert; or 16 features of down, whose steps go through all experts of
 * the token, with x multiplied by their shares. A warp takes every eighth step of a tile and copies
 * it to shared memory some steps ahead. The warps' sums are added in the order of the warps, so a
 * token's results depend neither on other tokens nor on how features were cut.
 */
#pragma once

#include "op/linear/eight_x.cuh"
#include "op/linear_experts/activate.cuh"
#include "op/linear_experts/experts_few.h"

/* Features of a tile. */
template <bool UP> DEVICE_FN constexpr int experts_outputs(void)
{
    return UP ? EXPERTS_FEATURES / 2 : EXPERTS_FEATURES;
}

/* Warps that share the steps of a tile, and how many such teams a block has. */
template <bool UP> DEVICE_FN constexpr int experts_team(void)
{
    return UP ? EXPERTS_TEAM : EXPERTS_WARPS;
}
template <bool UP> DEVICE_FN constexpr int experts_teams(void)
{
    return EXPERTS_WARPS / experts_team<UP>();
}

/* A warp's place among the steps of its team's tiles, which are every experts_teams()-th of the
 * block's. Tile `index` of gate and up is one of the choice's; of down it has steps of all choices.
 */
template <bool UP> struct experts_place {
    int index, tile, choice, step;

    METHOD void begin(const experts_few &a, int first, int team, int member)
    {
        index = first + team;
        choice = UP ? index / a.tiles : 0;
        tile = UP ? index - choice * a.tiles : index;
        step = member;
        if (!UP) turn(a);
    }
    /* Steps after the last one of a choice's row are the next choice's. */
    METHOD void turn(const experts_few &a)
    {
        for (; step >= a.n_steps; step -= a.n_steps)
            choice++;
    }
    METHOD void advance(const experts_few &a, int member)
    {
        step += experts_team<UP>();
        if constexpr (UP) {
            if (step < a.n_steps) return;
            for (tile += experts_teams<UP>(); tile >= a.tiles; tile -= a.tiles)
                choice++;
        } else {
            turn(a);
            if (choice < a.top_k) return;
            tile += experts_teams<UP>();
            choice = 0;
        }
        index += experts_teams<UP>();
        step = member;
        if (!UP) turn(a);
    }
    /* Where row r of the tile lies, of an expert, in the first matrix or of gate and up the second.
     */
    template <int M> METHOD uint32_t row(const experts_few &a, uint32_t expert, int r) const
    {
        const int feature = min(a.begin + tile * experts_outputs<UP>() + r, a.n_features - 1);
        return expert * a.expert_pitch[M] + (uint32_t)feature * a.row_pitch[M];
    }
};

/* Where a step of a row is in the first 16 bytes that are copied of it. */
template <dtype T> DEVICE_FN int experts_shift(const char *matrix, uint32_t at)
{
    return eight_pieces<T>::WHOLE ? 0 : (int)(((uint32_t)(uintptr_t)matrix + at) & 15);
}

/* Copies a step of eight rows of the tile, from row r of matrix M on, to shared memory. */
template <dtype T, int PITCH, bool UP, int M>
DEVICE_FN void experts_fetch_rows(const experts_few &a, const experts_place<UP> &p, uint32_t expert,
                                  int first, uint32_t to)
{
    typedef eight_pieces<T> pieces;
    typedef eight_place<T, 1> copies;
    const int lane = (int)threadIdx.x % WARP, piece = lane % pieces::LANES;
    const int offset = eight_offset<T>(p.step), own = lane / pieces::LANES;
    const int bytes = min((int)eight_weights<T>::SPAN, a.row_bytes - offset) - 16 * piece;
    const char *matrix = a.weight[M] + eight_piece<T>(p.step, piece);
#pragma unroll
    for (int i = 0; i < EXPERTS_FEATURES / 2; i += pieces::ROWS) {
        const uint32_t row = p.template row<M>(a, expert, first + i + own) + (uint32_t)offset;
        const int shift = experts_shift<T>(a.weight[M], row), there = shift + bytes;
        const char *from = matrix + row - shift;
        const uint32_t at = to + (uint32_t)((i + own) * PITCH + 16 * piece);
        if (there > 0) copy_16(at, from);
        if (pieces::N > pieces::LANES)
            if (there > 16 * pieces::LANES)
                copy_16(at + 16 * pieces::LANES, from + 16 * pieces::LANES);
    }
}

/* Copies a warp's step. */
template <dtype T, int PITCH, bool UP>
DEVICE_FN void experts_fetch(const experts_few &a, const experts_place<UP> &p, uint32_t expert,
                             uint32_t to)
{
    const int half = EXPERTS_FEATURES / 2;
    experts_fetch_rows<T, PITCH, UP, 0>(a, p, expert, 0, to);
    experts_fetch_rows<T, PITCH, UP, UP ? 1 : 0>(a, p, expert, UP ? 0 : half, to + half * PITCH);
}

/* ---- x ------------------------------------------------------------------------------------- */

/* Rows of x in shared memory: of each step eight times 16 columns in three parts, of which lane t
 * has four columns; then the sums of blocks of 32. */
struct experts_x {
    uint2 *parts;
    float *sums;
};

/* Stores four columns of a row as three parts, in the order in which fragments have columns. */
template <dtype T> DEVICE_FN void experts_split(float4 v, uint2 *to)
{
    typedef eight_x<T> x;
    const bool plain = eight_weights<T>::PLAIN;
    float a = v.x, b = plain ? v.y : v.z, c = plain ? v.z : v.y, d = v.w;
    uint2 part;
    part.x = x::template take<0>(&a, &b), part.y = x::template take<0>(&c, &d);
    to[0] = part;
    part.x = x::template take<1>(&a, &b), part.y = x::template take<1>(&c, &d);
    to[4] = part;
    part.x = x::template take<2>(&a, &b), part.y = x::template take<2>(&c, &d);
    to[8] = part;
}

/* Four columns of a row of x, times the choice's share. */
template <bool UP>
DEVICE_FN float4 experts_load_x(const experts_few &a, const float *from, const float *shares, int i,
                                int all, int each)
{
    const int row = i / each, column = 4 * (i - row * each);
    if (i >= all || column >= a.n_columns) return make_float4(0, 0, 0, 0);
    const float4 v = *(const float4 *)(from + (a.x_rows == 1 ? 0 : row * a.x_choice) + column);
    if (UP) return v;
    const float share = shares[row];
    return make_float4(v.x * share, v.y * share, v.z * share, v.w * share);
}

/* Some loads are in flight at a time. */
template <dtype T, bool UP>
DEVICE_FN void experts_fill_x(const experts_few &a, int64_t token, const float *shares,
                              const experts_x &x)
{
    enum { AHEAD = 4, THREADS = EXPERTS_WARPS * WARP };
    const int each = a.n_steps * WARP, all = (UP ? a.x_rows : a.top_k) * each;
    const float *from = a.x + token * a.x_token;
    for (int begin = (int)threadIdx.x; begin < all; begin += AHEAD * THREADS) {
        float4 v[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            v[n] = experts_load_x<UP>(a, from, shares, begin + n * THREADS, all, each);
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const int i = begin + n * THREADS; /* whole warps end together */
            if (i >= all) break;
            experts_split<T>(v[n], x.parts + i / 4 * 12 + i % 4);
            if (!eight_weights<T>::MINIMUM) continue;
            float sum = (v[n].x + v[n].y) + (v[n].z + v[n].w);
            for (int step = 1; step < 8; step *= 2)
                sum += __shfl_xor_sync(ALL_LANES, sum, step);
            if (i % 8 == 0) x.sums[i / 8] = sum;
        }
    }
}

/* ---- products ------------------------------------------------------------------------------- */

/* The lane's part of 16 columns of x; zeros in lanes that have none. Without a branch, so that many
 * loads are in flight. */
DEVICE_FN void experts_part(uint32_t at, bool there, uint32_t (&part)[2])
{
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %3, 0;\n\tmov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\t"
        "@p ld.shared.v2.b32 {%0, %1}, [%2];\n\t}"
        : "=&r"(part[0]), "=&r"(part[1])
        : "r"(at), "r"((uint32_t)there)
        : "memory");
}

/* Adds a step of a tile times a row of x to r: rows g and g + 8 of the tile, parts 2 t and 2 t + 1
 * of x, in two sums of which each has every second product of plain weights. `blocks`: of 32
 * columns, that the step has; WHOLE: it has all of them. */
template <dtype T, bool WHOLE>
DEVICE_FN void experts_step(const eight_weights<T> &w, const uint2 *x, const float *sums,
                            int blocks, float (&r)[2][4])
{
    typedef eight_weights<T> weights;
    const int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4;
    const uint32_t from = (uint32_t)__cvta_generic_to_shared(x + g * 4 + t);
#pragma unroll
    for (int j = 0; j < EIGHT_STEP_BLOCKS; j++) {
        if (!WHOLE && j >= blocks) break;
        float c[4] = {0, 0, 0, 0};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t m[4], part[2];
            w.fragment(j, h, m);
            experts_part(from + (j * 2 + h) * 96, g < EIGHT_PARTS, part);
            multiply_tile<weights::HALF>(weights::PLAIN ? r[h] : c, m, part[0], part[1]);
            if (weights::PLAIN || (!weights::HALVES && h == 0)) continue;
            const float own[2] = {weights::MINIMUM && t == 0 ? sums[j] : 0.0f, 0.0f};
            w.scale(j, h, c, own, r[0]);
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[i] = 0;
        }
    }
}

/* The sums of rows g and g + 8 over the parts of x, in the lanes with t = 0. */
template <dtype T> DEVICE_FN float2 experts_join(float (&both)[2][4])
{
    typedef eight_x<T> x;
    float r[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        r[i] = both[0][i] + both[1][i];
    const float third = __shfl_down_sync(ALL_LANES, r[0], 1);
    const float lower = __shfl_down_sync(ALL_LANES, r[2], 1);
    return make_float2(
        fmaf(r[0], x::part_unit(0), fmaf(r[1], x::part_unit(1), third * x::part_unit(2))),
        fmaf(r[2], x::part_unit(0), fmaf(r[3], x::part_unit(1), lower * x::part_unit(2))));
}

/* ---- outputs -------------------------------------------------------------------------------- */

DEVICE_FN float experts_bias(const experts_few &a, int m, int64_t expert, int o)
{
    const char *bias = (const char *)(m ? a.bias[1] : a.bias[0]);
    if (!bias) return 0;
    return device_load((dtype)(m ? a.bias_type[1] : a.bias_type[0]),
                       bias + expert * (m ? a.bias_pitch[1] : a.bias_pitch[0]), o);
}

/* What a team's warps have of a row of a tile, in the order of the warps. */
template <bool UP> DEVICE_FN float experts_sum(const float *of, int n_warps)
{
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < experts_team<UP>(); warp++)
        if (warp < n_warps) sum += of[warp * EXPERTS_GROUP * EXPERTS_FEATURES];
    return sum;
}

/* Stores the outputs of the n tiles from `group` on; a team has every experts_teams()-th of them.
 */
template <bool UP>
DEVICE_FN void experts_leave(const experts_few &a, int64_t token, const int32_t *ids,
                             const float *shares, const float *sums, int group, int n, int n_warps)
{
    const int outputs = experts_outputs<UP>();
    for (int i = (int)threadIdx.x; i < n * outputs; i += EXPERTS_WARPS * WARP) {
        const int tile = i / outputs, r = i % outputs;
        const int choice = UP ? (group + tile) / a.tiles : 0;
        const int o = a.begin + (group + tile - choice * a.tiles) * outputs + r;
        const int place = tile % experts_teams<UP>() * experts_team<UP>() * EXPERTS_GROUP +
                          tile / experts_teams<UP>();
        const float *of = sums + place * EXPERTS_FEATURES + r;
        float *out = a.out + token * a.out_token + choice * a.out_choice;
        if (o >= a.end) continue;
        float sum = experts_sum<UP>(of, n_warps);
        if constexpr (UP) {
            if (ids[choice] < 0) continue;
            const float gate = sum + experts_bias(a, 0, ids[choice], o);
            const float up =
                experts_sum<UP>(of + outputs, n_warps) + experts_bias(a, 1, ids[choice], o);
            out[o] = experts_activate(gate, up, a.alpha, a.limit, a.added);
        } else {
            for (int j = 0; a.bias[0] && j < a.top_k; j++)
                if (ids[j] >= 0) sum = fmaf(shares[j], experts_bias(a, 0, ids[j], o), sum);
            if (a.residual) sum += a.residual[token * a.residual_pitch + o];
            out[o] = sum;
        }
    }
}

/* ---- a block -------------------------------------------------------------------------------- */

/* Block x of the grid has a share of the tiles of token y. */
template <dtype T, int PITCH, int STAGES, bool UP>
DEVICE_FN void experts_few_block(const experts_few &a)
{
    extern __shared__ __align__(16) char experts_shared[];
    __shared__ int32_t ids[EXPERTS_MOST_CHOICES];
    __shared__ float shares[EXPERTS_MOST_CHOICES];
    const int stage_bytes = EXPERTS_FEATURES * PITCH, tiles = experts_teams<UP>() * EXPERTS_GROUP;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, g = lane / 4;
    const int team = warp / experts_team<UP>(), member = warp % experts_team<UP>();
    const int64_t token = blockIdx.y;
    const int all = UP ? a.top_k * a.tiles : a.tiles;
    const int first = (int)((int64_t)all * blockIdx.x / gridDim.x);
    const int last = (int)((int64_t)all * (blockIdx.x + 1) / gridDim.x);
    const int n_warps = min(UP ? a.n_steps : a.top_k * a.n_steps, experts_team<UP>());
    const int rows = UP ? a.x_rows : a.top_k;
    const char *ring = experts_shared + warp * STAGES * stage_bytes;
    float *sums = (float *)(experts_shared + EXPERTS_RING(PITCH, STAGES));
    const experts_x x = {
        (uint2 *)((char *)sums + EXPERTS_SUMS),
        (float *)((char *)sums + EXPERTS_SUMS + rows * a.n_steps * EXPERTS_STEP_BYTES)};
    experts_place<UP> ahead = {}, at;
    int stage = 0;

    auto fetch = [&]() {
        if (member < n_warps && ahead.index < last) {
            experts_fetch<T, PITCH, UP>(a, ahead, (uint32_t)max(ids[ahead.choice], 0),
                                        (uint32_t)__cvta_generic_to_shared(ring) +
                                            (uint32_t)(stage * stage_bytes));
            ahead.advance(a, member);
        }
        copies_commit();
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    };

    if (!a.early) device_wait_for_last();
    for (int j = (int)threadIdx.x; j < a.top_k; j += EXPERTS_WARPS * WARP) {
        ids[j] = __ldcg(a.ids + token * a.ids_pitch + j);
        if (!UP) shares[j] = ids[j] < 0 ? 0.0f : __ldcg(a.shares + token * a.shares_pitch + j);
    }
    __syncthreads();
    device_let_next_begin(); /* not before ids are there: the next one may read them early */
    ahead.begin(a, first, team, member);
    at = ahead;
    for (int i = 0; i < STAGES; i++)
        fetch();
    if (a.early) device_wait_for_last();
    experts_fill_x<T, UP>(a, token, shares, x);
    __syncthreads();
#pragma unroll 1
    for (int group = first; group < last; group += tiles) {
        const int n_tiles = min(tiles, last - group);
#pragma unroll 1
        for (int tile = team; tile < n_tiles && member < n_warps; tile += experts_teams<UP>()) {
            float r[2][4] = {};
#pragma unroll 1
            while (at.index == group + tile) {
                const int step = (UP && a.x_rows == 1 ? 0 : at.choice * a.n_steps) + at.step;
                const int blocks =
                    (a.n_columns - at.step * LINEAR_EIGHT_COLUMNS) / LINEAR_EIGHT_BLOCK;
                const char *from = ring + stage * stage_bytes + g * PITCH;
                const uint32_t expert = (uint32_t)max(ids[at.choice], 0);
                const uint32_t offset = (uint32_t)eight_offset<T>(at.step);
                const int lower = UP ? g : g + EXPERTS_FEATURES / 2;
                eight_weights<T> w;
                if constexpr (!eight_weights<T>::PLAIN) w.base = (uint32_t)a.number_base;
                copies_arrived<STAGES - 1>();
                __syncwarp();
                w.load_row(
                    0,
                    from + experts_shift<T>(a.weight[0], at.template row<0>(a, expert, g) + offset),
                    lane % 4, at.step);
                w.load_row(1,
                           from + 8 * PITCH +
                               experts_shift<T>(
                                   a.weight[UP ? 1 : 0],
                                   at.template row < UP ? 1 : 0 > (a, expert, lower) + offset),
                           lane % 4, at.step);
                __syncwarp();
                fetch();
                const uint2 *parts = x.parts + step * (EXPERTS_STEP_BYTES / 8);
                const float *x_sums = x.sums + step * EIGHT_STEP_BLOCKS;
                if (blocks >= EIGHT_STEP_BLOCKS)
                    experts_step<T, true>(w, parts, x_sums, blocks, r);
                else
                    experts_step<T, false>(w, parts, x_sums, blocks, r);
                at.advance(a, member);
            }
            const float2 sum = experts_join<T>(r);
            float *to =
                sums + (warp * EXPERTS_GROUP + tile / experts_teams<UP>()) * EXPERTS_FEATURES;
            if (lane % 4 == 0) to[g] = sum.x, to[g + 8] = sum.y;
        }
        __syncthreads();
        experts_leave<UP>(a, token, ids, shares, sums, group, n_tiles, n_warps);
        __syncthreads();
    }
}
