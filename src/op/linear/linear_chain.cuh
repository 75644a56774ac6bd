/* The products of a batch and the operators between them, as one kernel: see linear_chain.h.
 *
 * One producer warp copies weights, through all steps and as far ahead as its ring has room, so
 * that memory is busy while blocks wait for one another. Another copies x, for which a step waits
 * for the step before. Eight warps multiply, add and norm. Sums of one block that are input of
 * another go through global memory; blocks count in a step's counter when they end it.
 *
 * A row's bits depend only on the weights' shapes: sums are added in steps along the row, then the
 * parts in their order, by one thread each.
 */
#pragma once

#include "op/linear/chain_attention.cuh"
#include "op/linear/chain_block.cuh"
#include "op/linear/chain_likeliest.cuh"
#include "op/linear/chain_packed.cuh"
#include "op/linear/chain_reduce.cuh"
#include "op/linear/chain_rope.cuh"
#include "op/linear/linear_stream.cuh"
#include "op/rms_norm/rms_norm.cuh"
#include "op/linear/chain_fetch.cuh"
#include "op/linear/chain_product.cuh"
#include "op/linear/chain_rows.cuh"

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
            chain_attend<COLUMNS == 16>(call, s, n_ropes, weights, x_room, space, up);
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
