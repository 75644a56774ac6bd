/* Hopper's asynchronous instructions: bulk copies, loads and reductions that are coherent between
 * blocks, tensor cores. */
#pragma once

#include "op/barrier.cuh"
#include "op/tensor_core.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define MEGA_FN __device__ __forceinline__

/* Producer and prefetch warps give registers to the consumer warps. */
MEGA_FN void registers_release(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
#endif
}
MEGA_FN void registers_acquire(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
#endif
}

/* ---- copies to shared memory ---- */

MEGA_FN uint64_t policy_evict_first(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
MEGA_FN void copy_bytes(uint32_t to, const void *from, int bytes, uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}
MEGA_FN void copy_box(uint32_t to, uint64_t map, int c0, int c1, int c2, uint32_t barrier,
                      uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier), "l"(policy)
                 : "memory");
}
MEGA_FN void copy_4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
/* As copy_16(), and brings the 256 bytes around them into L2. */
MEGA_FN void copy_16_of_256(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}
MEGA_FN void fence_async(void)
{
    asm volatile("fence.proxy.async;" ::: "memory");
}
/* The same for only shared memory: it does not wait for stores to global memory. */
MEGA_FN void fence_async_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- between blocks ---- */

MEGA_FN uint64_t global_ns(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}
MEGA_FN uint32_t load_acquire(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
MEGA_FN void add_release(uint32_t *p)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}
MEGA_FN int64_t load_relaxed(const int64_t *p)
{
    int64_t v;
    asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
MEGA_FN uint32_t load_relaxed(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
MEGA_FN longlong2 load_relaxed_two(const int64_t *p)
{
    longlong2 v;
    asm volatile("ld.relaxed.gpu.global.v2.s64 {%0, %1}, [%2];"
                 : "=l"(v.x), "=l"(v.y)
                 : "l"(p)
                 : "memory");
    return v;
}
MEGA_FN void store_relaxed(int64_t *p, int64_t v)
{
    asm volatile("st.relaxed.gpu.global.s64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
MEGA_FN void store_relaxed_two(int64_t *p, int64_t v, int64_t w)
{
    asm volatile("st.relaxed.gpu.global.v2.s64 [%0], {%1, %2};" ::"l"(p), "l"(v), "l"(w)
                 : "memory");
}
MEGA_FN void add_relaxed(int64_t *p, int64_t v)
{
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* Predicated, not a branch, so that neighbours' conversions overlap. */
MEGA_FN void add_relaxed_if(bool there, int64_t *p, int64_t v)
{
    asm volatile("{ .reg .pred there;\n"
                 "setp.ne.u32 there, %2, 0;\n"
                 "@there red.relaxed.gpu.global.add.u64 [%0], %1; }" ::"l"(p),
                 "l"(v), "r"((uint32_t)there)
                 : "memory");
}

MEGA_FN uint32_t load_relaxed_4(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
MEGA_FN void load_relaxed_16(const void *p, float2 *v)
{
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0].x), "=f"(v[0].y), "=f"(v[1].x), "=f"(v[1].y)
                 : "l"(p)
                 : "memory");
}
MEGA_FN void store_relaxed_4(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* Loads that the compiler must not move past the wait that follows them. */
MEGA_FN float load_early(const float *p)
{
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}
MEGA_FN uint2 load_early_8(const void *p)
{
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
MEGA_FN uint4 load_early_16(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* ---- shared memory and tensor cores ---- */

MEGA_FN uint32_t load_shared(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}
MEGA_FN void store_shared_two(uint32_t at, float v, float w)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v), "f"(w) : "memory");
}
MEGA_FN void store_shared(uint32_t at, float v)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
MEGA_FN void store_shared_16(uint32_t at, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
MEGA_FN uint4 load_shared_16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
MEGA_FN void load_shared_words(uint32_t *v, uint32_t at)
{
    uint4 all = load_shared_16(at);
    v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
}
MEGA_FN void load_shared_8(uint32_t *v, uint32_t at)
{
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(at) : "memory");
}
/* c (16, 8) += a (16, 16) * b (16, 8) */
MEGA_FN void multiply(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                      uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* c (16, 8) += a (16, 8) * b (8, 8) */
MEGA_FN void multiply_8(float *c, uint32_t a0, uint32_t a1, uint32_t b0)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(b0));
}
/* The same two: F16 if HALF, else BF16. */
template <bool HALF>
MEGA_FN void multiply_16(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                         uint32_t b1)
{
    if (!HALF) return multiply(c, a0, a1, a2, a3, b0, b1);
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <bool HALF> MEGA_FN void multiply_16_8(float *c, uint32_t a0, uint32_t a1, uint32_t b0)
{
    if (!HALF) return multiply_8(c, a0, a1, b0);
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(b0));
}
/* Four numbers of E4M3 as F16. */
MEGA_FN void half_numbers(uint32_t four, uint32_t *out)
{
    asm("{.reg .b16 low, high;\n mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(out[0]), "=r"(out[1])
        : "r"(four));
}
/* Two float32 as numbers of E4M3, as the operators round them; the first one in the lower byte. */
MEGA_FN uint16_t f8_pair(float x, float y)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(y), "f"(x));
    return pair;
}
MEGA_FN float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
