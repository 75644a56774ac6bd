/* mbarriers, by their addresses in shared memory. A phase ends when the expected number of arrivals
 * and the expected bytes of bulk copies have come. */
#pragma once

#include <stdint.h>

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* Arrives, and expects so many more bytes in this phase. */
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives so many times. */
__device__ __forceinline__ void barrier_arrive_times(uint32_t barrier, int times)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(times)
                 : "memory");
}

/* Whether the phase of this parity has ended; the hardware waits for a short time. */
__device__ __forceinline__ bool barrier_try(uint32_t barrier, uint32_t parity)
{
    uint32_t over;
    asm volatile("{ .reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return over;
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    while (!barrier_try(barrier, parity)) {
    }
}
