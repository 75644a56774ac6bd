/* What a chain's steps share: how blocks wait for one another, how the worker threads of a block
 * meet, rings of stages in shared memory. */
#pragma once

#include "op/barrier.cuh"
#include "op/device.cuh"
#include "op/linear/linear_chain.h"

/* 1 in kernels for tests: their warps sleep at random, so that races show. */
#ifndef CHAIN_DELAYS
#define CHAIN_DELAYS 0
#endif

/* 1 in kernels for weights in FP8, whose products take x in F16, except that of attention: numbers
 * of FP8 become F16 by one instruction for two, and BF16 by four. */
#ifndef CHAIN_F8
#define CHAIN_F8 0
#endif

/* 1 in kernels for quantised weights. */
#ifndef CHAIN_PACKED
#define CHAIN_PACKED 0
#endif

/* 1 in kernels for several GPUs, whose rows may be summed over ranks. */
#ifndef CHAIN_RANKS
#define CHAIN_RANKS 0
#endif

/* 1 in kernels for models whose products have biases, or whose heads have norms, too. */
#ifndef CHAIN_FAMILIES
#define CHAIN_FAMILIES 0
#endif

/* 1 in kernels for rows of up to CHAIN_WIDE_ROW features. */
#ifndef CHAIN_WIDE
#define CHAIN_WIDE 0
#endif

/* ---- x as products take it ------------------------------------------------------------------ */

/* Two neighbours. What F16 cannot hold becomes its largest number. */
DEVICE_FN uint32_t chain_narrow2(float low, float high)
{
    if (!CHAIN_F8) return device_pack2(DTYPE_BF16, low, high);
    uint32_t pair;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Four, at a multiple of 8 bytes. */
DEVICE_FN void chain_narrow4(uint16_t *to, float4 v)
{
    *(uint2 *)to = make_uint2(chain_narrow2(v.x, v.y), chain_narrow2(v.z, v.w));
}

/* Elements [i, i + 4) of a row in F32, F16 or BF16, at a multiple of their size. */
DEVICE_FN float4 chain_load4(dtype type, const void *row, int i)
{
    if (type == DTYPE_F32) return *(const float4 *)((const float *)row + i);
    const uint2 raw = *(const uint2 *)((const uint16_t *)row + i);
    if (type == DTYPE_BF16)
        return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000),
                           __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000));
    const float2 low = __half22float2(*(const __half2 *)&raw.x);
    const float2 high = __half22float2(*(const __half2 *)&raw.y);
    return make_float4(low.x, low.y, high.x, high.y);
}

/* Whether a product has a bias. */
DEVICE_FN bool chain_is_biased(const chain_parts &parts)
{
    return CHAIN_FAMILIES && parts.bias;
}

/* Its bias for features [i, i + 4), if it has one. Loaded together with its parts. */
DEVICE_FN float4 chain_bias4(const chain_parts &parts, bool biased, int i)
{
    return biased ? chain_load4((dtype)parts.bias_type, parts.bias, i) : make_float4(0, 0, 0, 0);
}

DEVICE_FN void add_to(float4 &sum, const float4 &v)
{
    sum.x += v.x, sum.y += v.y;
    sum.z += v.z, sum.w += v.w;
}

/* ---- blocks that wait for one another ------------------------------------------------------- */

DEVICE_FN uint32_t shared_address(const void *there)
{
    return (uint32_t)__cvta_generic_to_shared(there);
}

enum { CHAIN_PATIENCE = 1 << 23 }; /* polls, some seconds; then the kernel traps */

/* One thread: waits until `n` blocks have ended a step. What they wrote may be read afterwards,
 * also by copies. */
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

/* Makes the compiler compute a value here, not after a wait that follows, where it would delay all
 * blocks. */
template <typename T> DEVICE_FN void chain_known(const T *value)
{
    asm volatile("" ::"l"(value));
}

DEVICE_FN void chain_known(bool value)
{
    asm volatile("" ::"r"((int)value));
}

/* A warp's value that is the same in all lanes. The compiler keeps it, and what is computed from
 * it, in uniform registers, where wgmma takes its descriptors. */
DEVICE_FN uint32_t chain_uniform(uint32_t value)
{
    return __reduce_max_sync(ALL_LANES, value);
}

/* The worker threads meet. */
DEVICE_FN void chain_meet(void)
{
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

/* All worker threads: signals that this block has ended a step. The release waits also for copies
 * of weights that are on their way to this multiprocessor, up to 3 us. */
DEVICE_FN void chain_signal(uint32_t *arrived)
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
    chain_meet(); /* all of them have written */
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
}

/* All worker threads: wait for the step before step s. */
DEVICE_FN void chain_wait_all(const linear_chain &call, int s)
{
    if (s > 0 && threadIdx.x == 0) chain_wait(call.arrived + s - 1, call.steps[s - 1].blocks);
    chain_meet();
}

/* A warp, before step s: in kernels for tests it sleeps up to 8 us before one step in sixteen,
 * chosen anew in each run. */
DEVICE_FN void chain_delay(int s)
{
    if (!CHAIN_DELAYS) return;
    uint32_t h;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(h));
    h = (h >> 5) * 2654435761u ^ (blockIdx.x * 64 + threadIdx.x / WARP) * 2246822519u;
    h = (h + (uint32_t)s) * 3266489917u;
    h = (h ^ h >> 15) * 2246822519u;
    if (h >> 28 == 0) __nanosleep(h >> 3 & 8191);
}

/* A cache policy for copies of data that no other block reads. */
DEVICE_FN uint64_t chain_read_once(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* ---- rings --------------------------------------------------------------------------------- */

/* A ring of stages in shared memory. */
struct chain_ring {
    uint32_t stages, full, empty; /* addresses */
    int bytes, n;
    uint32_t at; /* 2 * stage, plus the parity of the round */
};

/* Advances by `count` stages, at most all of them. */
DEVICE_FN void chain_ring_next(chain_ring &ring, int count = 1)
{
    ring.at += 2 * count;
    if (ring.at >= 2 * (uint32_t)ring.n) ring.at = (ring.at - 2 * ring.n) ^ 1;
}
/* Advances by any number. */
DEVICE_FN void chain_ring_skip(chain_ring &ring, int count)
{
    uint32_t to = (ring.at >> 1) + count;
    ring.at = to % ring.n * 2 + (((ring.at & 1) + to / ring.n) & 1);
}
DEVICE_FN uint32_t chain_stage(const chain_ring &ring)
{
    return ring.stages + (ring.at >> 1) * ring.bytes;
}
DEVICE_FN void chain_ring_wait(const chain_ring &ring)
{
    barrier_wait(ring.full + 4 * (ring.at & ~1u), ring.at & 1);
}
/* Releases a stage; this call counts for `readers` of CHAIN_READERS. */
DEVICE_FN void chain_ring_give(const chain_ring &ring, int readers)
{
    barrier_arrive_times(ring.empty + 4 * (ring.at & ~1u), readers);
}

/* Stages of weights on their way, at most, before stage n of a step is copied: fewer for the first
 * ones, which come while blocks end the step before, because their signals wait for them. */
DEVICE_FN int chain_most_in_flight(const linear_chain &call, int n)
{
    return n < call.n_first ? call.first_in_flight : call.in_flight;
}

/* Waits until the stage `count` before this one has come, so that at most so many are on their way.
 * That they are few keeps the memory system's queues short, and the blocks in step. */
DEVICE_FN void chain_ring_await(const chain_ring &ring, int count)
{
    if (count >= ring.n) return;
    int at = (int)ring.at - 2 * count;
    if (at < 0) at = (at + 2 * ring.n) ^ 1;
    barrier_wait(ring.full + 4 * (at & ~1), at & 1);
}

/* Acquires a stage that is free, for so many bytes. In the first round all are free. */
DEVICE_FN uint32_t chain_ring_take(const chain_ring &ring, int bytes)
{
    uint32_t full = ring.full + 4 * (ring.at & ~1u);
    barrier_wait(ring.empty + 4 * (ring.at & ~1u), (ring.at & 1) ^ 1);
    barrier_expect(full, bytes);
    return full;
}
