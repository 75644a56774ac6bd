/* The producer warps of a chain's blocks: what they copy in each step, weights, x and the cache. */
#pragma once

#include "op/linear/chain_cache.cuh"
#include "op/linear/chain_packed.cuh"
#include "op/linear/chain_rope.cuh"
#include "op/linear/linear_stream.cuh"

/* A tile of a product's weight, and n steps along its row. */
struct chain_item {
    int tile, rank, first, n;
};

DEVICE_FN chain_item chain_item_of(const chain_product &p, int item)
{
    chain_item i;
    i.tile = item % p.n_tiles;
    i.rank = item / p.n_tiles;
    i.first = p.n_depths * i.rank / p.ranks;
    i.n = p.n_depths * (i.rank + 1) / p.ranks - i.first;
    return i;
}
DEVICE_FN int chain_column(const chain_item &i, int step)
{
    return (i.first + step) * LINEAR_STREAM_DEPTH;
}

/* Steps along a row in a stage of weights. */
DEVICE_FN int chain_depths(const chain_product &p)
{
    return p.low ? CHAIN_X_DEPTHS : 1;
}

/* One thread: copies a stage of so many bytes. */
DEVICE_FN void chain_copy_weight(const chain_product &p, const chain_item &item, int step,
                                 int bytes, uint32_t to, uint32_t full, uint64_t policy)
{
    int at = item.tile * p.weight_step;
    if (p.tiled) {
        const int64_t before = (int64_t)item.tile * p.n_depths + item.first + step; /* steps */
        packed_copy(to, (const char *)p.tiles + before * (bytes / chain_depths(p)), bytes, full,
                    policy);
    } else if (p.low) {
        stream_copy_3d_with(to, p.weight_map, at, item.first + step, full, policy);
    } else {
        stream_copy_5d(to, p.weight_map, chain_column(item, step), p.weight_dimension == 1 ? at : 0,
                       p.weight_dimension == 3 ? at : 0, full, policy);
    }
}

/* `n`: stages of the step so far. */
DEVICE_FN void chain_fetch_item(const linear_chain &call, const chain_product &p,
                                const chain_item &item, int &n, chain_ring &ring, uint64_t policy)
{
    const int bytes = chain_tile_rows(&p) * chain_depths(p) * LINEAR_STREAM_DEPTH * 2;
    for (int i = 0; i < item.n; i += chain_depths(p), n++) {
        chain_ring_await(ring, chain_most_in_flight(call, n));
        uint32_t full = chain_ring_take(ring, bytes);
        chain_copy_weight(p, item, i, bytes, chain_stage(ring), full, policy);
        chain_ring_next(ring);
    }
}

/* One thread. */
DEVICE_FN void chain_fetch_weight(const linear_chain &call, const chain_product &p,
                                  chain_ring &ring, uint64_t policy)
{
    int n = 0;
    for (int item = blockIdx.x; item < p.n_tiles * p.ranks; item += gridDim.x) {
        chain_item of = chain_item_of(p, item);
        if (CHAIN_PACKED)
            packed_fetch(p, of.tile, of.first, of.n, ring, policy);
        else
            chain_fetch_item(call, p, of, n, ring, policy);
    }
}

/* Stages of weights that a block takes in a product. */
DEVICE_FN int chain_stages_of(const chain_product &p)
{
    int n = 0;
    for (int item = blockIdx.x; item < p.n_tiles * p.ranks; item += gridDim.x) {
        chain_item of = chain_item_of(p, item);
        n += CHAIN_PACKED ? packed_stages(p, of.tile, of.n) : of.n / chain_depths(p);
    }
    return n;
}

/* One thread: copies x of a product. It computes and announces the first copy before it waits for
 * the step before, because the four divisions would delay all blocks after that wait. */
DEVICE_FN void chain_fetch_x(const linear_chain &call, int s, chain_ring &ring)
{
    const chain_product &p = call.steps[s].of.product;
    int n_items = p.n_tiles * p.ranks;
    bool waited = s == 0;
    for (int item = blockIdx.x; item < n_items; item += gridDim.x) {
        chain_item of = chain_item_of(p, item);
        for (int i = 0; i < of.n; i += CHAIN_X_DEPTHS) {
            uint32_t full = chain_ring_take(ring, ring.bytes);
            if (!waited) chain_wait(call.arrived + s - 1, call.steps[s - 1].blocks);
            waited = true;
            stream_copy_3d(chain_stage(ring), p.x_map, 0, of.first + i, full);
            chain_ring_next(ring);
        }
    }
}

/* A producer warp: the first copies weights, the second x, the third finds places; all of them copy
 * the cache. That code is called from one place, because the multiprocessor's instruction cache is
 * too small for all of this kernel. */
DEVICE_FN void chain_fetch(const linear_chain &call, chain_fetcher own, chain_ring weights,
                           chain_ring xs, chain_looked_up *up)
{
    const uint64_t policy = chain_read_once();
    const bool one = threadIdx.x % WARP == 0;
    int n_ropes = 0;
    for (int s = 0; s < call.n_steps; s++) {
        const chain_step &step = call.steps[s];
        chain_delay(s);
        if (step.kind == CHAIN_ATTENTION) {
            chain_fetch_cache(call, s, own, weights);
        } else if (step.kind == CHAIN_PRODUCT && own.number == 0) {
            if (one) chain_fetch_weight(call, step.of.product, weights, policy);
            weights.at = __shfl_sync(0xffffffffu, weights.at, 0);
        } else if (step.kind == CHAIN_PRODUCT) {
            chain_ring_skip(weights, chain_stages_of(step.of.product));
            if (one && own.number == 1) chain_fetch_x(call, s, xs);
        } else if (step.kind == CHAIN_ROPE && own.number == 2) {
            const chain_rope &rope = step.of.rope;
            if ((int)blockIdx.x < rope.n_tokens * rope.cuts) chain_look_up(rope, n_ropes++, up);
        }
        __syncwarp();
    }
}
