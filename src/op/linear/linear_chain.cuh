/* Products of a batch and what stands between them: see linear_chain.h.
 *
 * One warp fetches weights, through all steps and as far ahead as its ring has room, so that memory
 * is busy while blocks wait for one another; one fetches x, of which a step waits for the step
 * before; eight warps multiply, add and norm. Where one block's sums are another's input they go
 * through global memory, and the blocks of a step are counted as they end it.
 *
 * A row's bits depend on the weights' shapes alone: sums are added in steps along the row, then the
 * parts in their order, by one thread each.
 */
#ifndef QUIPU_OP_LINEAR_CHAIN_CUH
#define QUIPU_OP_LINEAR_CHAIN_CUH

#include "op/linear/linear_chain.h"
#include "op/linear/linear_stream.cuh"
#include "op/rms_norm/rms_norm.cuh"
#include "op/rope/rope.cuh"

/* ---- blocks that wait for one another ------------------------------------------------------- */

enum { CHAIN_PATIENCE = 1 << 23 }; /* polls, some seconds: then something is wrong */

/* One thread: waits until `n` blocks have ended a step. What they wrote may be read afterwards, by
 * copies too. */
DEVICE_FN void chain_wait(const uint32_t *arrived, uint32_t n)
{
    uint32_t found;
    for (int i = 0;; i++) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(arrived) : "memory");
        if (found >= n) break;
        if (i == CHAIN_PATIENCE) __trap();
    }
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* The workers meet. */
DEVICE_FN void chain_meet(void)
{
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

/* All workers: what this block had to do in a step is done. */
DEVICE_FN void chain_signal(uint32_t *arrived)
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
    chain_meet(); /* every worker has written */
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
}

/* All workers: waits for the step before step s. */
DEVICE_FN void chain_wait_all(const linear_chain &call, int s)
{
    if (s > 0 && threadIdx.x == 0) chain_wait(call.arrived + s - 1, call.steps[s - 1].blocks);
    chain_meet();
}

/* ---- fetching ------------------------------------------------------------------------------ */

/* A ring of stages in shared memory. */
struct chain_ring {
    uint32_t stages, full, empty; /* addresses */
    int bytes, n;
    uint32_t at; /* 2 * stage, and whether this is an odd round */
};

DEVICE_FN void chain_ring_next(chain_ring &ring)
{
    ring.at += 2;
    if (ring.at >= 2 * (uint32_t)ring.n) ring.at = (ring.at & 1) ^ 1;
}
DEVICE_FN uint32_t chain_stage(const chain_ring &ring)
{
    return ring.stages + (ring.at >> 1) * ring.bytes;
}
DEVICE_FN void chain_ring_wait(const chain_ring &ring)
{
    barrier_wait(ring.full + 4 * (ring.at & ~1u), ring.at & 1);
}
DEVICE_FN void chain_ring_give(const chain_ring &ring)
{
    barrier_arrive(ring.empty + 4 * (ring.at & ~1u));
}

/* Takes a stage that nobody reads any more; in the first round none has been read. */
DEVICE_FN uint32_t chain_ring_take(const chain_ring &ring)
{
    uint32_t full = ring.full + 4 * (ring.at & ~1u);
    barrier_wait(ring.empty + 4 * (ring.at & ~1u), (ring.at & 1) ^ 1);
    barrier_expect(full, ring.bytes);
    return full;
}

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

/* One thread. */
DEVICE_FN void chain_fetch_weights(const linear_chain &call, chain_ring ring)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    for (int s = 0; s < call.n_steps; s++) {
        if (call.steps[s].kind != CHAIN_PRODUCT) continue;
        const chain_product &p = call.steps[s].of.product;
        for (int item = blockIdx.x; item < p.n_tiles * p.ranks; item += gridDim.x) {
            chain_item of = chain_item_of(p, item);
            int at = of.tile * p.weight_step;
            for (int i = 0; i < of.n; i++) {
                uint32_t full = chain_ring_take(ring);
                stream_copy_5d(chain_stage(ring), p.weight_map, chain_column(of, i),
                               p.weight_dimension == 1 ? at : 0, p.weight_dimension == 3 ? at : 0,
                               full, policy);
                chain_ring_next(ring);
            }
        }
    }
}

/* One thread. */
DEVICE_FN void chain_fetch_x(const linear_chain &call, chain_ring ring)
{
    for (int s = 0; s < call.n_steps; s++) {
        if (call.steps[s].kind != CHAIN_PRODUCT) continue;
        const chain_product &p = call.steps[s].of.product;
        int n_items = p.n_tiles * p.ranks;
        if (s > 0 && (int)blockIdx.x < n_items)
            chain_wait(call.arrived + s - 1, call.steps[s - 1].blocks);
        for (int item = blockIdx.x; item < n_items; item += gridDim.x) {
            chain_item of = chain_item_of(p, item);
            for (int i = 0; i < of.n; i++) {
                uint32_t full = chain_ring_take(ring);
                stream_copy_2d(chain_stage(ring), p.x_map, chain_column(of, i), 0, full);
                chain_ring_next(ring);
            }
        }
    }
}

/* ---- products ------------------------------------------------------------------------------ */

template <int COLUMNS>
DEVICE_FN void chain_multiply(const chain_item &item, chain_ring &weights, chain_ring &xs,
                              stream_sums<COLUMNS> &sums)
{
    const uint32_t group = threadIdx.x / 128 * 64 * LINEAR_STREAM_DEPTH * 2;
    bool one = threadIdx.x % 128 == 0;
    for (int i = 0; i < item.n; i++) {
        uint64_t weight = wgmma_operand(chain_stage(weights) + group, 64);
        uint64_t x = wgmma_operand(chain_stage(xs), 64);
        chain_ring_wait(weights);
        chain_ring_wait(xs);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < LINEAR_STREAM_DEPTH / 16; k++)
            wgmma_scores(__nv_bfloat16(), sums.of, weight + 2 * k, x + 2 * k, i > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        if (one) {
            chain_ring_give(weights);
            chain_ring_give(xs);
        }
        chain_ring_next(weights);
        chain_ring_next(xs);
    }
    wgmma_hold(sums.of);
}

/* gate and up meet in a thread: rows [first, first + CHAIN_TURN_ROWS) of x leave in BF16. */
template <int COLUMNS>
DEVICE_FN void chain_leave_activated(const chain_product &p, const chain_item &item,
                                     const stream_sums<COLUMNS> &sums, float *space)
{
    const int PITCH = LINEAR_STREAM_ROWS / 2 + 8;
    int lane = threadIdx.x % WARP, eight = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    __nv_bfloat16 *rows = (__nv_bfloat16 *)space;
    chain_meet(); /* nobody reads the space any more */
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            rows[(q * 8 + t * 2 + j) * PITCH + eight * 8 + g] =
                __float2bfloat16_rn(silu(sums.of[q][j]) * sums.of[q][2 + j]);
    chain_meet(); /* rows are whole */
    int feature = item.tile * (LINEAR_STREAM_ROWS / 2) + (int)threadIdx.x % 8 * 8;
    for (int row = (int)threadIdx.x / 8; row < p.n_rows; row += CHAIN_WORKERS / 8)
        if (feature < p.n_features)
            *(uint4 *)(p.narrowed + (int64_t)row * p.n_features + feature) =
                *(const uint4 *)(rows + row * PITCH + threadIdx.x % 8 * 8);
}

/* A thread has rows g and g + 8 of a sixteen of the tile, times rows 8 q + 2 t and the next of x;
 * they leave in whole rows. */
template <int COLUMNS>
DEVICE_FN void chain_leave(const chain_product &p, const chain_item &item,
                           const stream_sums<COLUMNS> &sums, float *space)
{
    int lane = threadIdx.x % WARP, sixteen = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int feature = item.tile * LINEAR_STREAM_ROWS + lane * 4;
    float *to = p.out + (int64_t)item.rank * p.n_rows * p.out_pitch + feature;
#pragma unroll
    for (int first = 0; first < COLUMNS; first += CHAIN_TURN_ROWS) {
        chain_meet(); /* nobody reads the space any more */
#pragma unroll
        for (int q = 0; q < CHAIN_TURN_ROWS / 8 && q < COLUMNS / 8; q++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                space[(q * 8 + t * 2 + j % 2) * CHAIN_TURN_PITCH + sixteen * 16 + g + j / 2 * 8] =
                    sums.of[first / 8 + q][j];
        chain_meet(); /* rows are whole */
        for (int r = sixteen; r < CHAIN_TURN_ROWS && first + r < p.n_rows;
             r += CHAIN_WORKERS / WARP)
            if (feature < p.n_features)
                *(float4 *)(to + (first + r) * p.out_pitch) =
                    *(const float4 *)(space + r * CHAIN_TURN_PITCH + lane * 4);
    }
}

template <int COLUMNS>
DEVICE_FN void chain_product_step(const chain_product &p, chain_ring &weights, chain_ring &xs,
                                  float *space)
{
    for (int i = blockIdx.x; i < p.n_tiles * p.ranks; i += gridDim.x) {
        chain_item item = chain_item_of(p, i);
        stream_sums<COLUMNS> sums;
        chain_multiply<COLUMNS>(item, weights, xs, sums);
        if (p.end == CHAIN_SILU)
            chain_leave_activated<COLUMNS>(p, item, sums, space);
        else
            chain_leave<COLUMNS>(p, item, sums, space);
    }
}

/* ---- rows ---------------------------------------------------------------------------------- */

DEVICE_FN void add_to(float4 &sum, const float4 &v)
{
    sum.x += v.x, sum.y += v.y;
    sum.z += v.z, sum.w += v.w;
}

/* Elements [i, i + 4) and [j, j + 4) of a row's parts, added in their order, then of x: all on
 * their way at once. */
DEVICE_FN void chain_add_parts(const chain_parts &parts, int64_t row, const float *x, int i, int j,
                               float4 (&sum)[2])
{
    const float *from = parts.data + row * parts.n_features;
    const int64_t step = (int64_t)parts.n_rows * parts.n_features;
    float4 part[2][CHAIN_MAX_PARTS], residual[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int at = k ? j : i;
        residual[k] = __ldcg((const float4 *)(x + at));
#pragma unroll
        for (int r = 0; r < CHAIN_MAX_PARTS; r++)
            if (r < parts.n_parts) part[k][r] = __ldcg((const float4 *)(from + r * step + at));
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        sum[k] = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < CHAIN_MAX_PARTS; r++)
            if (r < parts.n_parts) add_to(sum[k], part[k][r]);
        add_to(sum[k], residual[k]);
    }
}

/* The sum over the workers, in every one; `cells` has a float a warp. */
DEVICE_FN float chain_sum(float value, float *cells)
{
    int lane = threadIdx.x % WARP;
    value = warp_sum(value);
    chain_meet(); /* the cells of a sum before this one are no longer read */
    if (lane == 0) cells[threadIdx.x / WARP] = value;
    chain_meet();
    return warp_sum(lane < CHAIN_WORKERS / WARP ? cells[lane] : 0.0f);
}

/* `space`: shared memory, where a row is kept, by every worker its own. */
DEVICE_FN void chain_rows_step(const linear_chain &call, int s, float *space)
{
    const chain_rows &c = call.steps[s].of.rows;
    const int n = c.parts.n_features, first = 4 * (int)threadIdx.x, step = CHAIN_WORKERS * 4;
    if (c.weight) /* comes while others end the step before */
        for (int i = first; i < n; i += step)
            asm volatile("prefetch.global.L1 [%0];" ::"l"(
                (const char *)c.weight + i * (c.weight_type == DTYPE_F32 ? 4 : 2)));
    chain_wait_all(call, s);
    for (int64_t row = blockIdx.x; row < c.n_rows; row += gridDim.x) {
        int64_t from = c.rows ? c.rows[row] : row;
        float squares = 0;
#pragma unroll 1
        for (int i = first; i < n; i += 2 * step) {
            float4 sum[2];
            bool second = i + step < n;
            chain_add_parts(c.parts, from, c.residual + from * c.residual_pitch, i,
                            second ? i + step : i, sum);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float4 &v = sum[k];
                if (k == 1 && !second) break;
                if (c.out) *(float4 *)(c.out + row * c.out_pitch + i + k * step) = v;
                *(float4 *)(space + i + k * step) = v;
                squares = rms_norm_add_squares(squares, v);
            }
        }
        if (!c.weight) continue;
        float scale = 1.0f / sqrtf(chain_sum(squares, space + CHAIN_ROW) / (float)n + c.eps);
        for (int i = first; i < n; i += step) {
            float4 f = device_load4((dtype)c.weight_type, c.weight, i, n);
            device_narrow(c.narrowed + row * n + i,
                          rms_norm_apply(*(const float4 *)(space + i), scale, f));
        }
    }
}

/* ---- rope ---------------------------------------------------------------------------------- */

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
                       c.v_cache + page * c.v_page + slot * c.v_slot,
                       c.table + c.table_rows[t] * c.table_pitch};
}

/* Elements [i, i + 4) of a row's parts, added in their order. */
DEVICE_FN float4 chain_add_four(const chain_parts &parts, int64_t row, int i)
{
    const float *from = parts.data + row * parts.n_features + i;
    const int64_t step = (int64_t)parts.n_rows * parts.n_features;
    float4 part[CHAIN_MAX_PARTS], sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < CHAIN_MAX_PARTS; r++)
        if (r < parts.n_parts) part[r] = __ldcg((const float4 *)(from + r * step));
#pragma unroll
    for (int r = 0; r < CHAIN_MAX_PARTS; r++)
        if (r < parts.n_parts) add_to(sum, part[r]);
    return sum;
}

/* Eight elements of a token's head, as two fours: of halves that turn together, or neighbours. */
DEVICE_FN void chain_rope_eight(const chain_rope &c, int t, int i, const chain_place &place)
{
    int half = c.head_dim / 2, head = i * 4 / half, pair = i * 4 % half;
    bool is_v = head >= c.n_q + c.n_kv, neighbours = c.interleaved || is_v;
    int a = neighbours ? 2 * pair : pair, b = neighbours ? a + 4 : a + half;
    float4 x = chain_add_four(c.parts, t, head * c.head_dim + a);
    float4 y = chain_add_four(c.parts, t, head * c.head_dim + b);
    if (!is_v) {
        float4 cosine = *(const float4 *)(place.angles + pair);
        float4 sine = *(const float4 *)(place.angles + half + pair);
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
    if (head < c.n_q) {
        float *q = c.q + t * c.q_pitch + head * c.head_dim;
        *(float4 *)(q + a) = x;
        *(float4 *)(q + b) = y;
        return;
    }
    head -= c.n_q;
    char *to = is_v ? place.v + (head - c.n_kv) * c.v_head : place.k + head * c.k_head;
    dtype type = (dtype)(is_v ? c.v_type : c.k_type);
    device_store4(type, to, a, c.head_dim, x);
    device_store4(type, to, b, c.head_dim, y);
}

/* Of this block's first token, in shared memory; `found`: a barrier that is passed once it is. */
struct chain_looked_up {
    chain_place place;
    uint64_t found;
};

__device__ static __noinline__ void chain_rope_step(const linear_chain &call, int s,
                                                    const chain_looked_up *up)
{
    const chain_rope &c = call.steps[s].of.rope;
    int n = (c.n_q + 2 * c.n_kv) * c.head_dim / 8;
    barrier_wait((uint32_t)__cvta_generic_to_shared(&up->found), 0);
    chain_wait_all(call, s);
    for (int item = blockIdx.x; item < c.n_tokens * c.cuts; item += gridDim.x) {
        int t = item / c.cuts, first = item % c.cuts * CHAIN_WORKERS + (int)threadIdx.x;
        chain_place at = item == (int)blockIdx.x ? up->place : chain_place_of(c, t);
        for (int i = first; i < n; i += c.cuts * CHAIN_WORKERS)
            chain_rope_eight(c, t, i, at);
    }
}

/* A warp: looks up the first token's place while products are made. */
DEVICE_FN void chain_look_up(const linear_chain &call, chain_looked_up *up)
{
    const chain_step &last = call.steps[call.n_steps - 1];
    if (last.kind != CHAIN_ROPE || (int)blockIdx.x >= last.blocks) return;
    chain_place place = chain_place_of(last.of.rope, (int)blockIdx.x / last.of.rope.cuts);
    if (threadIdx.x % WARP > 0) return;
    up->place = place;
    barrier_arrive((uint32_t)__cvta_generic_to_shared(&up->found));
}

/* ---- a block ------------------------------------------------------------------------------- */

template <int COLUMNS>
DEVICE_FN void chain_work(const linear_chain &call, chain_ring weights, chain_ring xs, float *space,
                          const chain_looked_up *up)
{
    for (int s = 0; s < call.n_steps; s++) {
        if ((int)blockIdx.x >= call.steps[s].blocks) continue;
        if (call.steps[s].kind == CHAIN_PRODUCT)
            chain_product_step<COLUMNS>(call.steps[s].of.product, weights, xs, space);
        else if (call.steps[s].kind == CHAIN_ROWS)
            chain_rows_step(call, s, space);
        else
            chain_rope_step(call, s, up);
        chain_signal(call.arrived + s);
    }
    /* The last block to end leaves the counters as they were found: nobody looks at them now. */
    if (threadIdx.x > 0) return;
    uint32_t *ended = call.arrived + CHAIN_MAX_STEPS;
    __threadfence();
    if (atomicAdd(ended, 1) + 1 < gridDim.x) return;
    for (int s = 0; s <= CHAIN_MAX_STEPS; s++)
        call.arrived[s] = 0;
}

template <int COLUMNS> DEVICE_FN void linear_chain_run(const linear_chain &call, char *shared)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    chain_ring weights = {at, 0, 0, CHAIN_WEIGHT_BYTES, call.weight_stages, 0}, xs = weights;
    xs.stages = at + weights.n * weights.bytes;
    xs.bytes = CHAIN_X_BYTES(COLUMNS), xs.n = call.x_stages;
    weights.full = xs.stages + xs.n * xs.bytes;
    weights.empty = weights.full + 8 * CHAIN_MAX_STAGES;
    xs.full = weights.empty + 8 * CHAIN_MAX_STAGES;
    xs.empty = xs.full + 8 * CHAIN_MAX_STAGES;
    float *space = (float *)(shared + (xs.empty + 8 * CHAIN_MAX_STAGES - at));
    chain_looked_up *up = (chain_looked_up *)((char *)space + CHAIN_SPACE - sizeof *up);
    device_let_next_begin();
    if (threadIdx.x == CHAIN_WORKERS) {
        barrier_init((uint32_t)__cvta_generic_to_shared(&up->found), 1);
        for (int i = 0; i < CHAIN_MAX_STAGES; i++) {
            barrier_init(weights.full + 8 * i, 1);
            barrier_init(xs.full + 8 * i, 1);
            barrier_init(weights.empty + 8 * i, 2);
            barrier_init(xs.empty + 8 * i, 2);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads(); /* the barriers are there */
    if (threadIdx.x == CHAIN_WORKERS) chain_fetch_weights(call, weights);
    if (threadIdx.x == CHAIN_WORKERS + WARP) {
        device_wait_for_last();
        chain_fetch_x(call, xs);
    }
    if (threadIdx.x >= CHAIN_WORKERS + 2 * WARP) {
        device_wait_for_last();
        chain_look_up(call, up);
    }
    if (threadIdx.x >= CHAIN_WORKERS) return;
    device_wait_for_last();
    chain_work<COLUMNS>(call, weights, xs, space, up);
}

#endif
