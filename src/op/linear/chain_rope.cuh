/* Rope and kv_append of a chain: the parts of q, k and v added, q and k turned, k and v put into
 * the cache. By blocks of a step of its own; or, where attention is the step behind and needs just
 * these tokens, by the blocks that attend to them: then the step has no blocks.
 */
#ifndef QUIPU_OP_CHAIN_ROPE_CUH
#define QUIPU_OP_CHAIN_ROPE_CUH

#include "op/linear/chain_block.cuh"
#include "op/rope/rope.cuh"

DEVICE_FN void add_to(float4 &sum, const float4 &v)
{
    sum.x += v.x, sum.y += v.y;
    sum.z += v.z, sum.w += v.w;
}

/* Elements [i, i + 4) of a row's parts, added in their order. */
DEVICE_FN float4 chain_add_four(const chain_parts &parts, int64_t row, int i)
{
    const float *from = parts.data + row * parts.n_features + i;
    const int64_t step = (int64_t)parts.n_rows * parts.n_features;
    float4 part[CHAIN_MAX_PARTS], sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < CHAIN_MAX_PARTS; r++)
        part[r] =
            r < parts.n_parts ? __ldcg((const float4 *)(from + r * step)) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < CHAIN_MAX_PARTS; r++)
        if (r < parts.n_parts) add_to(sum, part[r]);
    return sum;
}

/* ---- places -------------------------------------------------------------------------------- */

/* Where a token's k and v go, and its angles. */
struct chain_place {
    char *k, *v;
    const float *angles;
};

/* Of token t, which is sequence b's. */
DEVICE_FN chain_place chain_place_in(const chain_rope &c, int t, int64_t b)
{
    int position = c.positions[t];
    int64_t page = c.kv_indices[c.kv_indptr[b] + position / c.page_size];
    int64_t slot = position % c.page_size;
    return chain_place{c.k_cache + page * c.k_page + slot * c.k_slot,
                       c.v_cache + page * c.v_page + slot * c.v_slot,
                       c.table + c.table_rows[t] * c.table_pitch};
}

DEVICE_FN chain_place chain_place_of(const chain_rope &c, int t)
{
    return chain_place_in(c, t, device_sequence(c.qo_indptr, c.n_sequences, t));
}

/* Places of this block's first token, in shared memory, for one rope step and the next in turn; and
 * other barriers of a block. */
struct chain_looked_up {
    chain_place place[2];
    uint64_t found[2], used[2]; /* barriers */
    uint64_t meeting;           /* and that of the warps that fetch */
    uint64_t appended;          /* and of those who wait for k and v that this block appends */
};

/* Looks up the first token's place for the nth rope step, while products are made. */
DEVICE_FN void chain_look_up(const chain_rope &c, int nth, chain_looked_up *up)
{
    if (nth > 1) barrier_wait(shared_address(&up->used[nth % 2]), nth / 2 % 2 ^ 1);
    chain_place place = chain_place_of(c, (int)blockIdx.x / c.cuts);
    if (threadIdx.x % WARP > 0) return;
    up->place[nth % 2] = place;
    barrier_arrive(shared_address(&up->found[nth % 2]));
}

/* ---- turning ------------------------------------------------------------------------------- */

/* Eight elements of a head, [a, a + 4) and [b, b + 4): of halves that turn together, or
 * neighbours. */
struct chain_eight {
    int head, a, b; /* heads: those of q, of k and of v */
    float4 x, y;
};

/* The ith of a token, turned, or where it is v's as it is. */
DEVICE_FN chain_eight chain_eight_of(const chain_rope &c, int t, int i, const float *angles)
{
    int half = c.head_dim / 2, head = i * 4 / half, pair = i * 4 % half;
    bool is_v = head >= c.n_q + c.n_kv, neighbours = c.interleaved || is_v;
    int a = neighbours ? 2 * pair : pair, b = neighbours ? a + 4 : a + half;
    float4 x = chain_add_four(c.parts, t, head * c.head_dim + a);
    float4 y = chain_add_four(c.parts, t, head * c.head_dim + b);
    if (!is_v) {
        float4 cosine = *(const float4 *)(angles + pair);
        float4 sine = *(const float4 *)(angles + half + pair);
        if (neighbours) {
            rope_pair(&x.x, &x.y, cosine.x, sine.x);
            rope_pair(&x.z, &x.w, cosine.y, sine.y);
            rope_pair(&y.x, &y.y, cosine.z, sine.z);
            rope_pair(&y.z, &y.w, cosine.w, sine.w);
        } else {
            rope_pair(&x.x, &y.x, cosine.x, sine.x);
            rope_pair(&x.y, &y.y, cosine.y, sine.y);
            rope_pair(&x.z, &y.z, cosine.z, sine.z);
            rope_pair(&x.w, &y.w, cosine.w, sine.w);
        }
    }
    return chain_eight{head, a, b, x, y};
}

/* What is k's or v's to the cache. */
DEVICE_FN void chain_append(const chain_rope &c, const chain_eight &of, const chain_place &place)
{
    int head = of.head - c.n_q;
    bool is_v = head >= c.n_kv;
    char *to = is_v ? place.v + (head - c.n_kv) * c.v_head : place.k + head * c.k_head;
    dtype type = (dtype)(is_v ? c.v_type : c.k_type);
    device_store4(type, to, of.a, c.head_dim, of.x);
    device_store4(type, to, of.b, c.head_dim, of.y);
}

DEVICE_FN void chain_rope_eight(const chain_rope &c, int t, int i, const chain_place &place)
{
    chain_eight of = chain_eight_of(c, t, i, place.angles);
    if (of.head >= c.n_q) return chain_append(c, of, place);
    float *q = c.q + t * c.q_pitch + of.head * c.head_dim;
    *(float4 *)(q + of.a) = of.x;
    *(float4 *)(q + of.b) = of.y;
}

/* The nth rope step. */
DEVICE_FN void chain_rope_step(const linear_chain &call, int s, int nth, chain_looked_up *up)
{
    const chain_rope &c = call.steps[s].of.rope;
    int n = (c.n_q + 2 * c.n_kv) * c.head_dim / 8;
    barrier_wait(shared_address(&up->found[nth % 2]), nth / 2 % 2);
    chain_place place = up->place[nth % 2];
    chain_wait_all(call, s); /* and the place is read */
    if (threadIdx.x == 0) barrier_arrive(shared_address(&up->used[nth % 2]));
    for (int item = blockIdx.x; item < c.n_tokens * c.cuts; item += gridDim.x) {
        int t = item / c.cuts, first = item % c.cuts * CHAIN_WORKERS + (int)threadIdx.x;
        if (item != (int)blockIdx.x) place = chain_place_of(c, t);
        for (int i = first; i < n; i += c.cuts * CHAIN_WORKERS)
            chain_rope_eight(c, t, i, place);
    }
}

#endif
