/* Kernels of route: by itself, and after the norm and the router's product in one launch. */
#include "op/rms_norm/rms_norm.cuh"
#include "op/route/route.cuh"

extern "C" __global__ void __launch_bounds__(WARP)
    run_route(const __grid_constant__ route_rows call)
{
    __shared__ route_cells cells;
    device_take_turn();
    route_token<WARP, false>(call, call.begin + blockIdx.x, cells);
}

/* ---- norm, router, route --------------------------------------------------------------------- */

/* Brings the lane's part of a row near. */
DEVICE_FN void prefetch_row(const device_rows &rows, int64_t row, int n, int lane)
{
    const int bytes = n * (rows.type == DTYPE_F32 ? 4 : 2);
    for (int at = 128 * lane; at < bytes; at += 128 * WARP)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(rows.data + row * rows.stride + at));
}

struct norm_product {
    float squares, dot; /* of x; of the router's row with x times the norm's weight */
};

/* A lane's part of both sums. */
DEVICE_FN norm_product multiply_row(const norm_route &a, int64_t token, int expert, int lane)
{
    norm_product sums = {0, 0};
#pragma unroll 8
    for (int i = 8 * lane; i < a.norm.n; i += 8 * WARP) {
        const device_eight raw_w = device_fetch8<true>(a.weight, expert, i, a.norm.n);
        const device_eight raw_n = device_fetch8<true>(a.norm.weight, 0, i, a.norm.n);
        const device_eight raw_x = device_fetch8<true>(a.norm.x, token, i, a.norm.n);
        float w[8], scale[8], x[8];
        device_unpack8(a.weight.type, raw_w, w);
        device_unpack8(a.norm.weight.type, raw_n, scale);
        device_unpack8(a.norm.x.type, raw_x, x);
        sums.squares += norm_squares(x);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sums.dot = fmaf(x[j] * scale[j], w[j], sums.dot);
    }
    return {warp_sum(sums.squares), warp_sum(sums.dot)};
}

/* Stores the normalised row; all threads of a block. */
DEVICE_FN void store_norm(const norm_route &a, int64_t token)
{
    __shared__ float cells[MAX_WARPS];
    float x[8], squares = 0;
    for (int i = 8 * (int)threadIdx.x; i < a.norm.n; i += 8 * (int)blockDim.x) {
        device_unpack8(a.norm.x.type, device_fetch8<true>(a.norm.x, token, i, a.norm.n), x);
        squares += norm_squares(x);
    }
    const float scale = norm_scale(block_sum(squares, cells), a.norm.n, a.norm.eps);
    for (int i = 8 * (int)threadIdx.x; i < a.norm.n; i += 8 * (int)blockDim.x) {
        device_unpack8(a.norm.x.type, device_fetch8<true>(a.norm.x, token, i, a.norm.n), x);
        norm_store<false, true>(a.norm, token, i,
                                device_fetch8<true>(a.norm.weight, 0, i, a.norm.n), scale, x);
    }
}

/* Whether this block is the last to end of `n` blocks of a token. */
DEVICE_FN bool is_last(uint32_t *counter, unsigned n)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(counter, 1) == n - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    return last;
}

/* Block (x, y): experts of token y, a warp each; the last of these to end chooses. One more block
 * stores the norm. */
extern "C" __global__ void __launch_bounds__(NORM_ROUTE_WARPS *WARP)
    run_norm_route(const __grid_constant__ norm_route a)
{
    __shared__ route_cells cells;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t token = a.norm.begin + blockIdx.y;
    const int expert = min((int)blockIdx.x * NORM_ROUTE_WARPS + warp, a.route.n_experts - 1);
    const unsigned n_blocks = gridDim.x - 1;
    device_let_next_begin();
    prefetch_row(a.norm.weight, 0, a.norm.n, lane);
    if (blockIdx.x == n_blocks) {
        device_wait_for_last();
        store_norm(a, token);
        return;
    }
    prefetch_row(a.weight, expert, a.norm.n, lane);
    device_wait_for_last();
    const norm_product sums = multiply_row(a, token, expert, lane);
    const float scale = norm_scale(sums.squares, a.norm.n, a.norm.eps);
    if (lane == 0) {
        const float bias =
            a.bias.data ? device_load((dtype)a.bias.type, a.bias.data, expert) : 0.0f;
        float *logits = (float *)(a.route.logits.data + token * a.route.logits.stride);
        logits[expert] = fmaf(sums.dot, scale, bias);
    }
    if (is_last(a.counters + blockIdx.y, n_blocks))
        route_token<NORM_ROUTE_WARPS * WARP, true>(a.route, token, cells);
}
