/* wgmma of sm_90a: a warpgroup multiplies 64 rows at once, asynchronously.
 *
 * Operands in shared memory are tiles in paged.cuh's layout: columns of 128 bytes, swizzled. A
 * descriptor has the address, the distance between column blocks of a transposed operand and the
 * distance between eights of rows, each in units of 16 bytes.
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* A tile of `rows` rows from `address` on. */
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t address, int rows)
{
    return (uint64_t)(address >> 4) | (uint64_t)(rows * 128 >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The descriptor for an address further on. At most 16 KB follow an operand's beginning, so nothing
 * carries into the upper half. */
__device__ __forceinline__ uint64_t wgmma_further(uint64_t operand, uint32_t bytes)
{
    return (operand & 0xffffffff00000000ull) | (uint32_t)((uint32_t)operand + (bytes >> 4));
}

/* Makes what this thread wrote to shared memory visible to the tensor cores after the next barrier.
 */
__device__ __forceinline__ void wgmma_publish(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Before the first product on registers that were written by other instructions. */
__device__ __forceinline__ void wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Keeps the compiler from moving uses of registers across the products that own them. */
template <int TILES> __device__ __forceinline__ void wgmma_hold(float (&d)[TILES][4])
{
#pragma unroll
    for (int i = 0; i < TILES * 4; i++)
        asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}

#define WGMMA_D(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define WGMMA_D2   WGMMA_D(0), WGMMA_D(1)
#define WGMMA_D4   WGMMA_D2, WGMMA_D(2), WGMMA_D(3)
#define WGMMA_D8                                                                                   \
    WGMMA_D(0), WGMMA_D(1), WGMMA_D(2), WGMMA_D(3), WGMMA_D(4), WGMMA_D(5), WGMMA_D(6), WGMMA_D(7)
#define WGMMA_D16                                                                                  \
    WGMMA_D8, WGMMA_D(8), WGMMA_D(9), WGMMA_D(10), WGMMA_D(11), WGMMA_D(12), WGMMA_D(13),          \
        WGMMA_D(14), WGMMA_D(15)
#define WGMMA_D32                                                                                  \
    WGMMA_D16, WGMMA_D(16), WGMMA_D(17), WGMMA_D(18), WGMMA_D(19), WGMMA_D(20), WGMMA_D(21),       \
        WGMMA_D(22), WGMMA_D(23), WGMMA_D(24), WGMMA_D(25), WGMMA_D(26), WGMMA_D(27), WGMMA_D(28), \
        WGMMA_D(29), WGMMA_D(30), WGMMA_D(31)
#define WGMMA_NAMES2 "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define WGMMA_NAMES4 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define WGMMA_NAMES8                                                                               \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "  \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define WGMMA_NAMES16                                                                              \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "  \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "   \
    "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "   \
    "%56, %57, %58, %59, %60, %61, %62, %63}"

#define WGMMA_NAMES32                                                                              \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "  \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "   \
    "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "   \
    "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, "   \
    "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "   \
    "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "     \
    "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "   \
    "%123, %124, %125, %126, %127}"

/* d (64, COLUMNS) = [d +] a (64, 16) b (COLUMNS, 16)^T, both in shared memory; and d (64, COLUMNS)
 * = [d +] a (64, 16) b (16, COLUMNS), a in registers. */
#define WGMMA(TYPE, ptx_type, COLUMNS, TILES, A, B, ADD, A0, A1, A2, A3, B4, ADD5)                 \
    __device__ __forceinline__ void wgmma_scores(TYPE, float(&d)[TILES][4], uint64_t a,            \
                                                 uint64_t b, int add)                              \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ADD ", 0;\n"                             \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." ptx_type "." ptx_type \
                     " " WGMMA_NAMES##TILES ", %" A ", %" B ", p, 1, 1, 0, 0;\n}"                  \
                     : WGMMA_D##TILES                                                              \
                     : "l"(a), "l"(b), "r"(add)                                                    \
                     : "memory");                                                                  \
    }                                                                                              \
    __device__ __forceinline__ void wgmma_values(TYPE, float(&d)[TILES][4], const uint32_t(&a)[4], \
                                                 uint64_t b, int add)                              \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ADD5 ", 0;\n"                            \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." ptx_type "." ptx_type \
                     " " WGMMA_NAMES##TILES ", {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B4         \
                                            ", p, 1, 1, 1;\n}"                                     \
                     : WGMMA_D##TILES                                                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)                \
                     : "memory");                                                                  \
    }

WGMMA(__nv_bfloat16, "bf16", 16, 2, "8", "9", "10", "8", "9", "10", "11", "12", "13")
WGMMA(__nv_bfloat16, "bf16", 32, 4, "16", "17", "18", "16", "17", "18", "19", "20", "21")
WGMMA(__nv_bfloat16, "bf16", 64, 8, "32", "33", "34", "32", "33", "34", "35", "36", "37")
WGMMA(__half, "f16", 64, 8, "32", "33", "34", "32", "33", "34", "35", "36", "37")
WGMMA(__nv_bfloat16, "bf16", 128, 16, "64", "65", "66", "64", "65", "66", "67", "68", "69")
WGMMA(__half, "f16", 128, 16, "64", "65", "66", "64", "65", "66", "67", "68", "69")
WGMMA(__nv_bfloat16, "bf16", 256, 32, "128", "129", "130", "128", "129", "130", "131", "132", "133")
#undef WGMMA
