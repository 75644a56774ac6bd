/* head_norm, rope and kv_append in a chain: adds the parts of q, k and v, normalises the heads of q
 * and k in models that do, rotates them in layers that do, and stores k and v in the cache. Either
 * the blocks of a step of its own do it; or, if attention is the next step and needs just these
 * tokens, the blocks that attend to them, and the step has no blocks. */
#pragma once

#include "op/linear/chain_block.cuh"
#include "op/rms_norm/rms_norm.cuh"
#include "op/rope/rope.cuh"

/* ---- layers that do not rotate ----------------------------------------------------------------
 */

/* A row of the table for them: cosines of 1, then sines of 0, for heads of up to
 * CHAIN_WIDEST_HEAD elements. So they need no branch. */
struct chain_still_row {
    float of[CHAIN_WIDEST_HEAD];
    constexpr chain_still_row() : of()
    {
        for (int i = 0; i < CHAIN_WIDEST_HEAD / 2; i++)
            of[i] = 1;
    }
};
__device__ const chain_still_row chain_still;

DEVICE_FN const float *chain_angles(const chain_rope &c, int t)
{
    return c.table ? c.table + c.table_rows[t] * c.table_pitch
                   : chain_still.of + (CHAIN_WIDEST_HEAD - c.head_dim) / 2;
}

/* ---- places -------------------------------------------------------------------------------- */

/* Where a token's k and v go, and its angles. */
struct chain_place {
    char *k, *v;
    const float *angles;
};

DEVICE_FN chain_place chain_place_of(const chain_rope &c, int t)
{
    int64_t b = device_sequence(c.qo_indptr, c.n_sequences, t);
    int position = c.positions[t];
    int64_t page = c.kv_indices[c.kv_indptr[b] + position / c.page_size];
    int64_t slot = position % c.page_size;
    return chain_place{c.k_cache + page * c.k_page + slot * c.k_slot,
                       c.v_cache + page * c.v_page + slot * c.v_slot, chain_angles(c, t)};
}

/* Places of the tokens of this block's first items, in shared memory, alternately for one rope step
 * and the next; and other mbarriers of a block. */
struct chain_looked_up {
    chain_place place[2][CHAIN_PLACES];
    uint64_t found[2], used[2]; /* mbarriers */
    uint64_t meeting;           /* of the producer warps */
};

static_assert(sizeof(chain_looked_up) == CHAIN_LOOKED_UP, "its room");

/* A warp looks up the places for the nth rope step while products are computed. */
DEVICE_FN void chain_look_up(const chain_rope &c, int nth, chain_looked_up *up)
{
    int lane = (int)threadIdx.x % WARP, item = (int)blockIdx.x + lane * (int)gridDim.x;
    if (nth > 1) barrier_wait(shared_address(&up->used[nth % 2]), nth / 2 % 2 ^ 1);
    if (lane < CHAIN_PLACES && item < c.n_tokens * c.cuts)
        up->place[nth % 2][lane] = chain_place_of(c, item / c.cuts);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&up->found[nth % 2]));
}

/* The worker threads wait for the places; they must signal when they have read them. */
DEVICE_FN const chain_place *chain_places(int nth, chain_looked_up *up)
{
    barrier_wait(shared_address(&up->found[nth % 2]), nth / 2 % 2);
    return up->place[nth % 2];
}
DEVICE_FN void chain_places_used(int nth, chain_looked_up *up)
{
    if (threadIdx.x == 0) barrier_arrive(shared_address(&up->used[nth % 2]));
}

/* ---- rotating ------------------------------------------------------------------------------ */

/* Eight elements of a token's head, [a, a + 4) and [b, b + 4): the halves of pairs, or neighbours.
 */
struct chain_eight {
    int head, a, b; /* heads of q, then of k, then of v */
    bool turns, neighbours, biased, normed;
    float4 cosine, sine;
    const float *from_a, *from_b; /* in the product's first part */
};

/* The ith of token t, of heads of `dim` elements: all that is known before the product is computed.
 */
DEVICE_FN chain_eight chain_eight_of(const chain_rope &c, int dim, int t, int i,
                                     const float *angles)
{
    int half = dim / 2, pair = i * 4 % half;
    chain_eight of;
    of.head = i * 4 / half;
    of.turns = of.head < c.n_q + c.n_kv;
    of.biased = chain_is_biased(c.parts);
    of.normed = CHAIN_FAMILIES && c.q_norm && of.turns;
    of.neighbours = c.interleaved || !of.turns;
    of.a = of.neighbours ? 2 * pair : pair;
    of.b = of.neighbours ? of.a + 4 : of.a + half;
    of.cosine = __ldg((const float4 *)(angles + pair));
    of.sine = __ldg((const float4 *)(angles + half + pair));
    const float *head = c.parts.data + (int64_t)t * c.parts.n_features + of.head * dim;
    of.from_a = head + of.a, of.from_b = head + of.b;
    return of;
}

/* Its two fours. */
struct chain_fours {
    float4 x, y;
};

/* The sums of the product's parts, in their order, and its bias; all loads are in flight together.
 */
DEVICE_FN chain_fours chain_sums(const chain_parts &parts, const chain_eight &of, int dim)
{
    const int64_t step = (int64_t)parts.n_rows * parts.n_features;
    const float *a = of.from_a, *b = of.from_b;
    float4 part[CHAIN_MAX_PARTS][2] = {};
    chain_fours sums = {};
    const float4 bias[2] = {chain_bias4(parts, of.biased, of.head * dim + of.a),
                            chain_bias4(parts, of.biased, of.head * dim + of.b)};
#pragma unroll
    for (int r = 0; r < CHAIN_MAX_PARTS; r++, a += step, b += step)
        if (r < parts.n_parts)
            part[r][0] = __ldcg((const float4 *)a), part[r][1] = __ldcg((const float4 *)b);
#pragma unroll
    for (int r = 0; r < CHAIN_MAX_PARTS; r++)
        if (r < parts.n_parts) add_to(sums.x, part[r][0]), add_to(sums.y, part[r][1]);
    if (of.biased) add_to(sums.x, bias[0]), add_to(sums.y, bias[1]);
    return sums;
}

/* Normalises a head of q or k, whose eights neighbouring lanes have; the sum of its squares has
 * op/head_norm/head_norm.cu's order. */
DEVICE_FN void chain_norm_head(const chain_rope &c, const chain_eight &of, int dim,
                               chain_fours &fours)
{
    const int n = dim / 8, lane = (int)threadIdx.x % WARP;
    const uint32_t lanes = (n == WARP ? ALL_LANES : (1u << n) - 1) << (lane & ~(n - 1));
    const void *weight = of.head < c.n_q ? c.q_norm : c.k_norm;
    const float4 x = chain_load4((dtype)c.norm_type, weight, of.a);
    const float4 y = chain_load4((dtype)c.norm_type, weight, of.b);
    float squares = norm_squares4(fours.x.x, fours.x.y, fours.x.z, fours.x.w) +
                    norm_squares4(fours.y.x, fours.y.y, fours.y.z, fours.y.w);
    for (int step = n / 2; step > 0; step /= 2)
        squares += __shfl_xor_sync(lanes, squares, step);
    const float scale = norm_scale(squares, dim, c.eps);
    fours.x = norm_apply4(fours.x, scale, x);
    fours.y = norm_apply4(fours.y, scale, y);
}

/* The sums; if they are of q or k, normalised and rotated. */
DEVICE_FN chain_fours chain_turned(const chain_rope &c, const chain_eight &of, int dim)
{
    chain_fours sums = chain_sums(c.parts, of, dim);
    if (of.normed) chain_norm_head(c, of, dim, sums);
    float4 &x = sums.x, &y = sums.y;
    const float4 &cosine = of.cosine, &sine = of.sine;
    if (of.turns && of.neighbours) {
        rope_pair(&x.x, &x.y, cosine.x, sine.x);
        rope_pair(&x.z, &x.w, cosine.y, sine.y);
        rope_pair(&y.x, &y.y, cosine.z, sine.z);
        rope_pair(&y.z, &y.w, cosine.w, sine.w);
    } else if (of.turns) {
        rope_pair(&x.x, &y.x, cosine.x, sine.x);
        rope_pair(&x.y, &y.y, cosine.y, sine.y);
        rope_pair(&x.z, &y.z, cosine.z, sine.z);
        rope_pair(&x.w, &y.w, cosine.w, sine.w);
    }
    return sums;
}

/* Where an eight's head of k or v is in the cache. */
DEVICE_FN char *chain_cached(const chain_rope &c, const chain_eight &of, const chain_place &place)
{
    int head = of.head - c.n_q;
    return of.turns ? place.k + head * c.k_head : place.v + (head - c.n_kv) * c.v_head;
}

DEVICE_FN void chain_rope_eight(const chain_rope &c, int t, int i, const chain_place &place)
{
    chain_eight of = chain_eight_of(c, c.head_dim, t, i, place.angles);
    chain_fours fours = chain_turned(c, of, c.head_dim);
    bool is_q = of.head < c.n_q;
    dtype type = is_q ? DTYPE_F32 : (dtype)(of.turns ? c.k_type : c.v_type);
    void *to =
        is_q ? (char *)(c.q + t * c.q_pitch + of.head * c.head_dim) : chain_cached(c, of, place);
    device_store4(type, to, of.a, c.head_dim, fours.x);
    device_store4(type, to, of.b, c.head_dim, fours.y);
}

/* The nth rope step. */
DEVICE_FN void chain_rope_step(const linear_chain &call, int s, int nth, chain_looked_up *up)
{
    const chain_rope &c = call.steps[s].of.rope;
    int n = (c.n_q + 2 * c.n_kv) * c.head_dim / 8;
    chain_place place = chain_places(nth, up)[0];
    chain_wait_all(call, s); /* and the place has been read */
    chain_places_used(nth, up);
    for (int item = blockIdx.x; item < c.n_tokens * c.cuts; item += gridDim.x) {
        int t = item / c.cuts, first = item % c.cuts * CHAIN_WORKERS + (int)threadIdx.x;
        if (item != (int)blockIdx.x) place = chain_place_of(c, t);
#pragma unroll 1
        for (int i = first; i < n; i += c.cuts * CHAIN_WORKERS)
            chain_rope_eight(c, t, i, place);
    }
}
