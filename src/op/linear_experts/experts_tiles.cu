/* linear_experts' kernels for many tokens: see experts_tiles.cuh; and grouping their choices by
 * expert before, and adding up their outputs after the products. */
#include "op/linear_experts/experts_tiles.cuh"

#define EXPERTS_TILES(rows, T)                                                                     \
    extern "C" __global__ void __launch_bounds__(EXPERTS_TILE_THREADS, 2)                          \
        run_experts_tiles_up_##T##_##rows(const __grid_constant__ experts_tiles a)                 \
    {                                                                                              \
        experts_tile_block<rows, DTYPE_##T, true>(a);                                              \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(EXPERTS_TILE_THREADS, 2)                          \
        run_experts_tiles_down_##T##_##rows(const __grid_constant__ experts_tiles a)               \
    {                                                                                              \
        experts_tile_block<rows, DTYPE_##T, false>(a);                                             \
    }
#define EXPERTS_TILES_OF(T) EXPERTS_TILES(16, T) EXPERTS_TILES(64, T) EXPERTS_TILES(128, T)
EXPERTS_TILE_TYPES(EXPERTS_TILES_OF)

/* ---- groups --------------------------------------------------------------------------------- */

/* The sums of both over the threads before this one, and of all in `total`. */
DEVICE_FN int2 sum_before(int2 own, int2 *cells, int2 *total)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int2 sum = own;
    for (int step = 1; step < WARP; step *= 2) {
        const int x = __shfl_up_sync(ALL_LANES, sum.x, step);
        const int y = __shfl_up_sync(ALL_LANES, sum.y, step);
        if (lane >= step) sum.x += x, sum.y += y;
    }
    if (lane == WARP - 1) cells[warp] = sum;
    __syncthreads();
    int2 before = make_int2(sum.x - own.x, sum.y - own.y), all = make_int2(0, 0);
    for (int w = 0; w < (int)blockDim.x / WARP; w++) {
        if (w < warp) before.x += cells[w].x, before.y += cells[w].y;
        all.x += cells[w].x, all.y += cells[w].y;
    }
    *total = all;
    return before;
}

/* One block, a thread for each expert; choices of none (-1) are left out. The order of an expert's
 * choices is any: a row's result does not depend on its place. */
extern "C" __global__ void __launch_bounds__(EXPERTS_GROUP_THREADS)
    run_experts_group(const __grid_constant__ experts_grouping a)
{
    __shared__ int32_t counts[EXPERTS_MOST];
    __shared__ int2 cells[MAX_WARPS];
    const int e = (int)threadIdx.x, n_threads = EXPERTS_GROUP_THREADS;
    int2 total;
    counts[e] = 0;
    device_take_turn();
    __syncthreads();
    for (int c = e; c < a.n_choices; c += n_threads) {
        const int expert = a.ids[c / a.top_k * a.ids_pitch + c % a.top_k];
        if (expert >= 0) atomicAdd(&counts[expert], 1);
    }
    __syncthreads();
    const int n_tiles = (counts[e] + a.rows - 1) / a.rows;
    const int2 before = sum_before(make_int2(counts[e], n_tiles), cells, &total);
    if (e < a.n_experts) a.groups.first[e] = before.x;
    if (e == 0) a.groups.first[a.n_experts] = total.x, *a.groups.n_tiles = total.y;
    for (int i = 0; i < n_tiles; i++) {
        a.groups.tiles[2 * (before.y + i)] = e;
        a.groups.tiles[2 * (before.y + i) + 1] = before.x + i * a.rows;
    }
    __syncthreads();
    counts[e] = before.x; /* where the expert's next choice goes */
    __syncthreads();
    for (int c = e; c < a.n_choices; c += n_threads) {
        const int expert = a.ids[c / a.top_k * a.ids_pitch + c % a.top_k];
        if (expert >= 0) a.groups.choices[atomicAdd(&counts[expert], 1)] = c;
    }
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* How many of a token's choices have a lower number of their expert. */
DEVICE_FN int rank_of(const int32_t *ids, int k, int j)
{
    int rank = 0;
    for (int i = 0; i < k; i++)
        rank += ids[i] < ids[j] || (ids[i] == ids[j] && i < j);
    return rank;
}

/* A block a token: its residual and its choices' outputs, in the order of their experts. */
extern "C" __global__ void __launch_bounds__(256)
    run_experts_sum(const __grid_constant__ experts_sums a)
{
    __shared__ int32_t order[EXPERTS_MOST];
    device_take_turn();
    const int64_t token = blockIdx.x;
    const int32_t *ids = a.ids + token * a.ids_pitch;
    for (int j = (int)threadIdx.x; j < a.top_k; j += 256)
        order[rank_of(ids, a.top_k, j)] = j;
    __syncthreads();
    const float *parts = a.parts + token * a.top_k * a.parts_pitch;
    for (int o = 4 * (int)threadIdx.x; o < a.n_features; o += 4 * 256) {
        float4 sum = make_float4(0, 0, 0, 0);
        if (a.residual)
            sum = device_load4(DTYPE_F32, a.residual + token * a.residual_pitch, o, a.n_features);
        for (int j = 0; j < a.top_k; j++) {
            if (ids[order[j]] < 0) continue;
            const float4 part = *(const float4 *)(parts + order[j] * a.parts_pitch + o);
            sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
        }
        device_store4(DTYPE_F32, a.out + token * a.out_pitch, o, a.n_features, sum);
    }
}
