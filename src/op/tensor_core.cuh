/* The tensor cores' products of 16 x 16 by 16 x 8, and the copies and loads that bring their
 * operands: what kernels without wgmma and bulk copies are made of.
 *
 * Lane 4 g + t of a warp holds rows g and g + 8 of a sum, and of each its columns 2 t and 2 t + 1.
 */
#pragma once

#include <stdint.h>

#define TENSOR_CORE_FN __device__ __forceinline__

/* Copies 16 bytes to shared memory for one thread; copies_arrived<N>() waits until at most N of its
 * later groups are in flight. */
TENSOR_CORE_FN void copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* The same, or stores as many zeros. */
TENSOR_CORE_FN void copy_16_or_zeros(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}
TENSOR_CORE_FN void copies_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> TENSOR_CORE_FN void copies_arrived(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Four matrices of 8 x 8, of whose rows each lane gives one address. */
TENSOR_CORE_FN void load_matrices(uint32_t *m, uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}
TENSOR_CORE_FN void load_matrices_transposed(uint32_t *m, uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}

/* c (16, 8) += a (16, 16) b (16, 8), of F16 if HALF, else of BF16. */
template <bool HALF>
TENSOR_CORE_FN void multiply_tile(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    if (HALF)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
