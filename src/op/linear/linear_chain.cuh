/* The products of a batch and the operators between them, as one kernel: see linear_chain.h.
 *
 * One producer warp copies weights, through all steps and as far ahead as its ring has room, so
 * that memory is busy while blocks wait for one another. Another copies x, for which a step waits
 * for the step before. Eight warps multiply, add and norm. Sums of one block that are input of
 * another go through global memory; blocks count in a step's counter when they end it.
 *
 * A row's bits depend on the weights' shapes alone: sums are added in steps along the row, then the
 * parts in their order, by one thread each.
 */
#ifndef QUIPU_OP_LINEAR_CHAIN_CUH
#define QUIPU_OP_LINEAR_CHAIN_CUH

#include "op/linear/chain_attention.cuh"
#include "op/linear/chain_block.cuh"
#include "op/linear/chain_likeliest.cuh"
#include "op/linear/chain_packed.cuh"
#include "op/linear/chain_reduce.cuh"
#include "op/linear/chain_rope.cuh"
#include "op/linear/linear_stream.cuh"
#include "op/rms_norm/rms_norm.cuh"

/* 1 in kernels for quantised weights. */
#ifndef CHAIN_PACKED
#define CHAIN_PACKED 0
#endif

/* 1 in kernels for several GPUs, whose rows may be summed over ranks. */
#ifndef CHAIN_RANKS
#define CHAIN_RANKS 0
#endif

/* 1 in kernels for rows of up to CHAIN_WIDE_ROW features. */
#ifndef CHAIN_WIDE
#define CHAIN_WIDE 0
#endif

/* ---- fetching ------------------------------------------------------------------------------ */

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

/* ---- products ------------------------------------------------------------------------------ */

/* Only the first warpgroup multiplies a low tile; with both, reading shared memory would take
 * longer. The groups meet before the second one reads a stage again. With few columns a stage is
 * released while the tensor cores multiply the next one, so that they never pause. */
template <int COLUMNS, bool LOW>
DEVICE_FN void chain_multiply(const chain_item &item, chain_ring &weights, chain_ring &xs,
                              stream_sums<COLUMNS> &sums)
{
    const int DEPTHS = LOW ? CHAIN_X_DEPTHS : 1, X_STEP = CHAIN_X_BYTES(COLUMNS) / CHAIN_X_DEPTHS;
    const int WEIGHT_STEP = CHAIN_WEIGHT_BYTES / DEPTHS, READERS = CHAIN_READERS / (LOW ? 1 : 2);
    const int LATER = COLUMNS == 16;
    const int group = threadIdx.x / 128;
    bool one = threadIdx.x % 128 == 0, ended = false;
    if (LOW && group > 0) {
        chain_ring_skip(weights, item.n / DEPTHS);
        chain_ring_skip(xs, item.n / DEPTHS);
        return;
    }
    chain_ring done = weights, x_done = xs; /* the last stages whose products are under way */
    for (int i = 0; i < item.n; i += DEPTHS) {
        int depth = i % CHAIN_X_DEPTHS, next = depth + DEPTHS;
        bool ends = next == CHAIN_X_DEPTHS || i + DEPTHS == item.n;
        uint64_t weight =
            wgmma_operand(chain_uniform(chain_stage(weights) + group * CHAIN_WEIGHT_BYTES / 2), 64);
        uint64_t x = wgmma_operand(chain_uniform(chain_stage(xs) + depth * X_STEP), 64);
        chain_ring_wait(weights);
        if (depth == 0) chain_ring_wait(xs);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < DEPTHS * LINEAR_STREAM_DEPTH / 16; k++)
            wgmma_scores(__nv_bfloat16(), sums.of,
                         wgmma_further(weight, k / 4 * WEIGHT_STEP + k % 4 * 32),
                         wgmma_further(x, k / 4 * X_STEP + k % 4 * 32), i > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<LATER>();
        if (one && (!LATER || i > 0)) {
            chain_ring_give(LATER ? done : weights, READERS);
            if (LATER ? ended : ends) chain_ring_give(LATER ? x_done : xs, READERS);
        }
        done = weights, x_done = xs, ended = ends;
        chain_ring_next(weights);
        if (ends) chain_ring_next(xs);
    }
    if (LATER) {
        wgmma_wait<0>();
        if (one) chain_ring_give(done, READERS), chain_ring_give(x_done, READERS);
    }
    wgmma_hold(sums.of);
}

/* gate and up are in the same thread: stores rows [first, first + CHAIN_TURN_ROWS) of x in BF16. */
template <int COLUMNS>
DEVICE_FN void chain_leave_activated(const chain_product &p, const chain_item &item,
                                     const stream_sums<COLUMNS> &sums, float *space)
{
    const int PITCH = LINEAR_STREAM_ROWS / 2 + 8;
    int lane = threadIdx.x % WARP, eight = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    uint16_t *rows = (uint16_t *)space;
    chain_meet(); /* no thread reads the space any more */
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            rows[(q * 8 + t * 2 + j) * PITCH + eight * 8 + g] =
                (uint16_t)chain_narrow2(silu(sums.of[q][j]) * sums.of[q][2 + j], 0);
    chain_meet();                     /* rows are complete */
    const int eights = p.weight_step; /* of features in a tile */
    int feature = (item.tile * eights + (int)threadIdx.x % 8) * 8;
    if ((int)threadIdx.x % 8 >= eights) return;
    for (int row = (int)threadIdx.x / 8; row < p.n_rows; row += CHAIN_WORKERS / 8)
        if (feature < p.n_features)
            *(uint4 *)(p.narrowed + (int64_t)row * p.n_features + feature) =
                *(const uint4 *)(rows + row * PITCH + threadIdx.x % 8 * 8);
}

/* A thread has rows g and g + 8 of 16 rows of the tile, which has HIGH rows, times rows 8 q + 2 t
 * and the next of x; stores them as whole rows. */
template <int COLUMNS, int HIGH>
DEVICE_FN void chain_leave(const chain_product &p, const chain_item &item,
                           const stream_sums<COLUMNS> &sums, float *space)
{
    const int ROWS = CHAIN_TURN_ROWS(HIGH), PITCH = CHAIN_TURN_PITCH(HIGH), FOURS = HIGH / 4;
    int lane = threadIdx.x % WARP, sixteen = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int four = threadIdx.x % FOURS * 4, feature = item.tile * HIGH + four;
    float *to = p.out + (int64_t)item.rank * p.n_rows * p.out_pitch + feature;
#pragma unroll
    for (int first = 0; first < COLUMNS; first += ROWS) {
        chain_meet(); /* no thread reads the space any more */
#pragma unroll
        for (int q = 0; q < ROWS / 8 && q < COLUMNS / 8; q++)
#pragma unroll
            for (int j = 0; j < 4 && sixteen < HIGH / 16; j++)
                space[(q * 8 + t * 2 + j % 2) * PITCH + sixteen * 16 + g + j / 2 * 8] =
                    sums.of[first / 8 + q][j];
        chain_meet(); /* rows are complete */
        for (int r = threadIdx.x / FOURS; r < ROWS && first + r < p.n_rows;
             r += CHAIN_WORKERS / FOURS)
            if (feature < p.n_features)
                *(float4 *)(to + (first + r) * p.out_pitch) =
                    *(const float4 *)(space + r * PITCH + four);
    }
}

/* The likeliest of the features in a thread's sums: two of each tile. */
template <int COLUMNS>
DEVICE_FN void chain_likeliest_step(const linear_chain &call, const chain_product &p,
                                    chain_ring &weights, chain_ring &xs, float *space)
{
    likeliest_best<COLUMNS> best;
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++)
        best.feature[q][0] = best.feature[q][1] = -1;
    for (int i = blockIdx.x; i < p.n_tiles; i += gridDim.x) {
        chain_item item = chain_item_of(p, i);
        stream_sums<COLUMNS> sums = {};
        if (CHAIN_PACKED)
            packed_multiply<COLUMNS>(p, item.tile, item.n, weights, xs, sums);
        else
            chain_multiply<COLUMNS, false>(item, weights, xs, sums);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            int row = threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4 + part * 8;
            int feature = item.tile * p.weight_step + row;
            if (row < p.weight_step && feature < p.n_features)
                likeliest_take<COLUMNS>(best, sums, part, feature);
        }
    }
    likeliest_tell<COLUMNS>(call, best, (uint64_t *)space);
}

template <int COLUMNS>
DEVICE_FN void chain_product_step(const chain_product &p, chain_ring &weights, chain_ring &xs,
                                  float *space)
{
    for (int i = blockIdx.x; i < p.n_tiles * p.ranks; i += gridDim.x) {
        chain_item item = chain_item_of(p, i);
        /* Initialised here: else their registers would be occupied in every step. */
        stream_sums<COLUMNS> sums = {};
        if (CHAIN_PACKED) packed_multiply<COLUMNS>(p, item.tile, item.n, weights, xs, sums);
        if (p.low) {
            if (!CHAIN_PACKED) chain_multiply<COLUMNS, true>(item, weights, xs, sums);
            chain_leave<COLUMNS, LINEAR_STREAM_LOW_ROWS>(p, item, sums, space);
            continue;
        }
        if (!CHAIN_PACKED) chain_multiply<COLUMNS, false>(item, weights, xs, sums);
        if (p.end == CHAIN_SILU)
            chain_leave_activated<COLUMNS>(p, item, sums, space);
        else
            chain_leave<COLUMNS, LINEAR_STREAM_ROWS>(p, item, sums, space);
    }
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* Where a row comes from and goes to. */
struct chain_row {
    const float *parts; /* the first of them */
    const char *x;      /* of the residual, or of the embedding table */
    float *out;         /* or NULL */
};

DEVICE_FN chain_row chain_row_of(const chain_rows &c, int64_t row)
{
    int64_t from = c.rows ? c.rows[row] : row;
    chain_row r = {c.parts.data + from * c.parts.n_features, (const char *)c.table, nullptr};
    r.x = c.table                      ? r.x + from * c.residual_pitch
          : CHAIN_RANKS && !c.residual ? nullptr
                                       : (const char *)(c.residual + from * c.residual_pitch);
    if (c.out) r.out = c.out + row * c.out_pitch;
    return r;
}

/* Copies the norm's weight to shared memory, while others end the step before. Not to the L1 cache,
 * because each poll of a counter invalidates it. */
DEVICE_FN void chain_bring_weight(const chain_rows &c, char *weight)
{
    const int bytes = c.parts.n_features * (c.weight_type == DTYPE_F32 ? 4 : 2);
    for (int i = 8 * (int)threadIdx.x; i < bytes; i += 8 * CHAIN_WORKERS)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(weight + i)),
                     "l"((const char *)c.weight + i)
                     : "memory");
}

/* Elements [i, i + 4) of a row, at a multiple of their size. */
DEVICE_FN float4 chain_load4(dtype type, const void *row, int i)
{
    const char *at = (const char *)row + i * (type == DTYPE_F32 ? 4 : 2);
    __builtin_assume(device_aligned(at, 8));
    if (type == DTYPE_F32) __builtin_assume(device_aligned(at, 16));
    return device_load4(type, at, 0, 4);
}

/* Elements [i, i + 4) and [j, j + 4) of a row's parts, added in their order, then of x; all loads
 * are in flight together. */
DEVICE_FN void chain_add_parts(const chain_parts &parts, const float *from, const float *x, int i,
                               int j, float4 (&sum)[2])
{
    const int64_t step = (int64_t)parts.n_rows * parts.n_features;
    float4 part[2][CHAIN_MAX_PARTS], residual[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int at = k ? j : i;
        residual[k] =
            CHAIN_RANKS && !x ? make_float4(0, 0, 0, 0) : __ldcg((const float4 *)(x + at));
#pragma unroll
        for (int r = 0; r < CHAIN_MAX_PARTS; r++)
            part[k][r] = r < parts.n_parts ? __ldcg((const float4 *)(from + r * step + at))
                                           : make_float4(0, 0, 0, 0);
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

/* Adds 256 elements of a row, parts and x, and stores them in out and in `space`; a lane has fours
 * from i and from i + 128 on. Returns the sum of their squares. Elements after the row are zeros.
 */
DEVICE_FN float chain_rows_add(const chain_rows &c, const chain_row &row, float *space, int i)
{
    float4 sum[2] = {};
    float squares[2] = {};
    const int n = c.parts.n_features, second = i + 128 < n ? i + 128 : i;
    if (c.table && i < n) {
        sum[0] = chain_load4((dtype)c.table_type, row.x, i);
        sum[1] = chain_load4((dtype)c.table_type, row.x, second);
    } else if (i < n) {
        chain_add_parts(c.parts, row.parts, (const float *)row.x, i, second, sum);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float4 &v = sum[k];
        int at = i + k * 128;
        if (at >= n) break;
        if (row.out) *(float4 *)(row.out + at) = v;
        *(float4 *)(space + at) = v;
        squares[k] = norm_squares4(v.x, v.y, v.z, v.w);
    }
    return norm_sum_of_fours(squares[0], squares[1]);
}

/* Adds 256 elements of a row's parts into `space`, and pushes them to the other ranks. */
DEVICE_FN void chain_rows_push(const chain_rows &c, const exchange &e, uint32_t round, int64_t row,
                               const chain_row &of, float *space, int i)
{
    const int n = c.parts.n_features;
    float4 sum[2];
    if (i >= n) return;
    chain_add_parts(c.parts, of.parts, (const float *)of.x, i, i + 128 < n ? i + 128 : i, sum);
    *(float4 *)(space + i) = sum[0];
    if (i + 128 < n) *(float4 *)(space + i + 128) = sum[1];
    chain_push(e, round, row, i, sum);
}

/* Adds what the other ranks have pushed of them, as chain_rows_add() adds parts and x. */
DEVICE_FN float chain_rows_take(const chain_rows &c, const exchange &e, uint32_t round, int64_t row,
                                const chain_row &of, float *space, int i)
{
    const int n = c.parts.n_features;
    float4 sum[2] = {};
    float squares[2] = {};
    if (i < n) {
        sum[0] = *(const float4 *)(space + i);
        if (i + 128 < n) sum[1] = *(const float4 *)(space + i + 128);
        chain_take(e, round, row, i, sum);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float4 &v = sum[k];
        int at = i + k * 128;
        if (at >= n) break;
        if (of.out) *(float4 *)(of.out + at) = v;
        *(float4 *)(space + at) = v;
        squares[k] = norm_squares4(v.x, v.y, v.z, v.w);
    }
    return norm_sum_of_fours(squares[0], squares[1]);
}

/* A row that is summed over ranks: the block pushes all of it before it waits, so that it waits
 * once. */
DEVICE_FN void chain_rows_reduce(const linear_chain &call, const chain_rows &c, int64_t row,
                                 const chain_row &of, float *space, float *cells)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = CHAIN_WORKERS / WARP;
    const int n = c.parts.n_features, first = 256 * warp + 4 * lane, step = 256 * n_warps;
    const uint32_t round = *chain_round(call.ranks, row) + 1;
#pragma unroll 1
    for (int cell = warp, i = first; cell < (n + 255) / 256; cell += n_warps, i += step)
        chain_rows_push(c, call.ranks, round, row, of, space, i);
#pragma unroll 1
    for (int cell = warp, i = first; cell < (n + 255) / 256; cell += n_warps, i += step) {
        float squares = chain_rows_take(c, call.ranks, round, row, of, space, i);
        if (lane == 0) cells[cell] = squares;
    }
    chain_meet(); /* all threads have read the counter */
    if (threadIdx.x == 0) *chain_round(call.ranks, row) = round;
}

/* `space`: shared memory for a row, where each thread keeps its own elements, and after it the sums
 * of squares of each 256 elements, which are added as in op/rms_norm/rms_norm.cuh. `weight`: room
 * for the norm's CHAIN_ROW floats, in the memory of x, which is free between two products. */
DEVICE_FN void chain_rows_step(const linear_chain &call, int s, float *space, char *weight)
{
    const chain_rows &c = call.steps[s].of.rows;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = CHAIN_WORKERS / WARP;
    const int n = c.parts.n_features, first = 256 * warp + 4 * lane, step = 256 * n_warps;
    const int n_cells = (n + 255) / 256;
    float *cells = space + (CHAIN_WIDE ? CHAIN_WIDE_ROW : CHAIN_ROW);
    if (c.weight) chain_bring_weight(c, weight);
    chain_row of = chain_row_of(c, blockIdx.x);
    chain_known(of.parts), chain_known(of.x), chain_known(of.out);
    chain_wait_all(call, s);
    for (int64_t row = blockIdx.x; row < c.n_rows; row += gridDim.x) {
        if (row > blockIdx.x) of = chain_row_of(c, row);
        if (CHAIN_RANKS && c.reduced) chain_rows_reduce(call, c, row, of, space, cells);
#pragma unroll 1
        for (int cell = warp, i = first; cell < n_cells && !(CHAIN_RANKS && c.reduced);
             cell += n_warps, i += step) {
            float squares = chain_rows_add(c, of, space, i);
            if (lane == 0) cells[cell] = squares;
        }
        if (!c.weight) continue;
        asm volatile("cp.async.wait_all;" ::: "memory");
        chain_meet(); /* sums of squares and weight are complete */
        float scale = norm_scale(warp_sum(lane < n_cells ? cells[lane] : 0.0f), n, c.eps);
        if (row + gridDim.x < c.n_rows) chain_meet(); /* and no longer read */
        for (int cell = warp, i = first; cell < n_cells; cell += n_warps, i += step)
#pragma unroll
            for (int at = i; at < i + 256 && at < n; at += 128) {
                float4 f = chain_load4((dtype)c.weight_type, weight, at);
                chain_narrow4(c.narrowed + row * n + at,
                              norm_apply4(*(const float4 *)(space + at), scale, f));
            }
    }
    /* Copies will write x there again. */
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- a block ------------------------------------------------------------------------------- */

/* All worker threads: whether this is the last block to end. That block resets the counters; no
 * other reads them then. */
DEVICE_FN bool chain_ends_last(const linear_chain &call, uint32_t *space)
{
    chain_meet(); /* no thread reads the space any more */
    if (threadIdx.x == 0) {
        __threadfence();
        *space = atomicAdd(call.arrived + CHAIN_MAX_STEPS, 1) + 1;
        __threadfence();
    }
    chain_meet();
    return *space == gridDim.x;
}

template <int COLUMNS>
DEVICE_FN void chain_work(const linear_chain &call, chain_ring weights, chain_ring xs, char *x_room,
                          float *space, chain_looked_up *up)
{
    int n_ropes = 0;
    for (int s = 0; s < call.n_steps; s++) {
        if ((int)blockIdx.x >= call.steps[s].blocks) continue;
        chain_delay(s);
        if (call.steps[s].kind == CHAIN_PRODUCT && call.steps[s].of.product.end == CHAIN_LIKELIEST)
            chain_likeliest_step<COLUMNS>(call, call.steps[s].of.product, weights, xs, space);
        else if (call.steps[s].kind == CHAIN_PRODUCT)
            chain_product_step<COLUMNS>(call.steps[s].of.product, weights, xs, space);
        else if (call.steps[s].kind == CHAIN_ROWS)
            chain_rows_step(call, s, space, x_room);
        else if (call.steps[s].kind == CHAIN_ROPE)
            chain_rope_step(call, s, n_ropes++, up);
        else
            chain_attend<COLUMNS == 16>(call, s, n_ropes, weights, xs.stages, space, up);
        if (call.steps[s].kind == CHAIN_ATTENTION && chain_turns(call, s)) n_ropes++;
        chain_signal(call.arrived + s);
    }
    if (!chain_ends_last(call, (uint32_t *)space)) return;
    likeliest_leave(call);
    if (threadIdx.x > 0) return;
    for (int s = 0; s < call.n_steps; s++)
        call.arrived[s] = 0;
    call.arrived[CHAIN_MAX_STEPS] = 0;
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
    chain_looked_up *up = (chain_looked_up *)((char *)space + CHAIN_SPACE(CHAIN_WIDE) - sizeof *up);
    device_let_next_begin();
    if (threadIdx.x == CHAIN_WORKERS) {
        barrier_init(shared_address(&up->meeting), CHAIN_FETCHERS);
        for (int i = 0; i < 2; i++) {
            barrier_init(shared_address(&up->found[i]), 1);
            barrier_init(shared_address(&up->used[i]), 1);
        }
        for (int i = 0; i < CHAIN_MAX_STAGES; i++) {
            barrier_init(weights.full + 8 * i, 1);
            barrier_init(xs.full + 8 * i, 1);
            barrier_init(weights.empty + 8 * i, CHAIN_READERS);
            barrier_init(xs.empty + 8 * i, CHAIN_READERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads(); /* the mbarriers are initialised */
    chain_fetcher own = {(int)threadIdx.x / WARP - CHAIN_WORKERS / WARP, 0,
                         shared_address(&up->meeting)};
    if (own.number != 0) device_wait_for_last(); /* weights may be copied before */
    if (own.number >= 0) return chain_fetch(call, own, weights, xs, up);
    chain_work<COLUMNS>(call, weights, xs, shared + (xs.stages - at), space, up);
}

/* One block per multiprocessor, by its shared memory; half the registers are left to blocks of the
 * next kernel, which start early. */
#define LINEAR_CHAIN(columns, suffix) LINEAR_CHAIN_(columns, suffix)
#define LINEAR_CHAIN_(columns, suffix)                                                             \
    extern "C" __global__ void __launch_bounds__(CHAIN_THREADS, 1)                                 \
        run_linear_chain_##columns##suffix(const __grid_constant__ linear_chain call)              \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        linear_chain_run<columns>(call, shared);                                                   \
    }

#endif
