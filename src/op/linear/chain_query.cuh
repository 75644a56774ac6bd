/* Queries, new keys and new values of a chain's attention (chain_attention.cuh), in shared memory:
 * copied, or made from the parts of the product before. */
#pragma once

#include "op/attention/paged.cuh"
#include "op/linear/chain_cache.cuh"
#include "op/linear/chain_rope.cuh"

/* Two numbers of the products' type, which is the cache's except for FP8; and four. */
DEVICE_FN uint32_t chain_pack(const chain_attention &c, float low, float high)
{
    return c.type == DTYPE_BF16 ? pack_pair(__nv_bfloat16(), low, high)
                                : pack_pair(__half(), low, high);
}
DEVICE_FN uint2 chain_narrow(const chain_attention &c, const float4 &v)
{
    return make_uint2(chain_pack(c, v.x, v.y), chain_pack(c, v.z, v.w));
}

/* Heads of an item in shared memory: its group's queries, then its new key and value. */
DEVICE_FN int chain_own_heads(const chain_attention &c)
{
    return c.group + 2;
}

/* Stores elements [i, i + 4) of a head of the block's items, one after another, as rows of 128
 * bytes of boxes in shared memory. */
DEVICE_FN void chain_put(uint32_t heads, int head, int i, uint2 d)
{
    const int row = head * CHAIN_BOXES + i / 64;
    uint32_t to = heads + row * 128 + (i % 64 / 8 ^ row % 8) * 16 + i % 8 * 2;
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(d.x), "r"(d.y) : "memory");
}
DEVICE_FN void chain_put_query(const chain_attention &c, uint32_t heads, int head, int i,
                               const float4 &v)
{
    float sign = c.sm_scale < 0 ? -1.0f : 1.0f; /* as load_query() */
    chain_put(heads, head, i,
              chain_narrow(c, make_float4(v.x * sign, v.y * sign, v.z * sign, v.w * sign)));
}

/* Stores elements [i, i + 4) of a new key or value, in the cache at `to` and in shared memory. In
 * FP8 they fill a part of a row of 128 bytes. */
DEVICE_FN void chain_put_cached(const chain_attention &c, uint32_t heads, int head, char *to, int i,
                                const float4 &v)
{
    if (c.type != DTYPE_F8) {
        const uint2 d = chain_narrow(c, v);
        *(uint2 *)(to + i * 2) = d;
        chain_put(heads, head, i, d);
        return;
    }
    const uint32_t d = device_pack4_f8(v.x, v.y, v.z, v.w);
    const int row = head * CHAIN_BOXES;
    *(uint32_t *)(to + i) = d;
    asm volatile(
        "st.shared.u32 [%0], %1;" ::"r"(heads + row * 128 + (i / 16 ^ row % 8) * 16 + i % 16),
        "r"(d)
        : "memory");
}

/* The worker threads: copy the queries that others stored in q. */
DEVICE_FN void chain_take_queries(const chain_attention &c, uint32_t queries)
{
    const int fours = c.group * CHAIN_HEAD / 4, n = chain_own_items(c) * fours;
    for (int i = threadIdx.x; i < n; i += CHAIN_WORKERS) {
        int item = (int)blockIdx.x + i / fours * (int)gridDim.x;
        const float *q = c.q + item / c.n_kv * (int64_t)c.q_pitch +
                         (item % c.n_kv * c.group * CHAIN_HEAD + i % fours * 4);
        const int head = i / fours * chain_own_heads(c) + i % fours / (CHAIN_HEAD / 4);
        chain_put_query(c, queries, head, i % (CHAIN_HEAD / 4) * 4, __ldcg((const float4 *)q));
    }
}

/* An eight of the block's items: first those of an item's queries, then of its key and of its
 * value. */
struct chain_own_eight {
    chain_eight of;
    int head;     /* in shared memory */
    bool queries; /* else a key or a value: */
    char *to;     /* its place in the cache */
};

DEVICE_FN chain_own_eight chain_own_eight_of(const chain_attention &c, const chain_rope &rope,
                                             const chain_place *places, int i)
{
    const int heads = chain_own_heads(c), eights = CHAIN_HEAD / 8;
    int n = i / eights / heads, h = i / eights % heads;
    int item = (int)blockIdx.x + n * (int)gridDim.x, kv_head = item % c.n_kv;
    int head = h < c.group ? kv_head * c.group + h : rope.n_q + (h - c.group) * c.n_kv + kv_head;
    int token = item / c.n_kv;
    chain_own_eight own;
    own.head = n * heads + h;
    own.queries = h < c.group;
    chain_place place = n < CHAIN_PLACES ? places[n] : chain_place_of(rope, token);
    own.of = chain_eight_of(rope, CHAIN_HEAD, token, head * eights + i % eights, place.angles);
    own.to = chain_cached(rope, own.of, place);
    return own;
}

/* The worker threads: rotate and append this block's items, for the nth rope step. What they need
 * besides the product's parts they load while the product is computed. */
DEVICE_FN void chain_turn_own(const linear_chain &call, int s, int nth, uint32_t queries,
                              chain_looked_up *up)
{
    const chain_attention &c = call.steps[s].of.attention;
    const chain_rope &rope = call.steps[s - 1].of.rope;
    const int n = chain_own_items(c) * chain_own_heads(c) * (CHAIN_HEAD / 8);
    const chain_place *places = chain_places(nth, up);
    chain_own_eight own = chain_own_eight_of(c, rope, places, min((int)threadIdx.x, n - 1));
    chain_known(own.of.from_a), chain_known(own.of.from_b), chain_known(own.to);
    if (CHAIN_FAMILIES) chain_known(own.of.biased), chain_known(own.of.normed);
    chain_wait_all(call, s - 1);
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += CHAIN_WORKERS) {
        if (i >= CHAIN_WORKERS) own = chain_own_eight_of(c, rope, places, i);
        chain_fours fours = chain_turned(rope, own.of, CHAIN_HEAD);
        if (own.queries) {
            chain_put_query(c, queries, own.head, own.of.a, fours.x);
            chain_put_query(c, queries, own.head, own.of.b, fours.y);
        } else {
            chain_put_cached(c, queries, own.head, own.to, own.of.a, fours.x);
            chain_put_cached(c, queries, own.head, own.to, own.of.b, fours.y);
        }
    }
}
