/* Vectors of floats in three widths, so that a kernel is written once and compiled for each.
 *
 * CMake compiles NAME_simd.c for every instruction set, with its name as SIMD_LEVEL: AVX-512, AVX2,
 * and in vectors of four NEON, SSE2 and whatever the compiler makes of its own vectors elsewhere.
 * Everything here rounds the same way in all widths, and sums are taken over a number of partial
 * sums that is the same in all, so a kernel gives the same bits in each; only without a fused
 * multiply-add (SSE2) are products rounded too. The functions are explained in simd_avx512.inc.
 * Rows of F32, F16, BF16 and F8 are widened on their way in and rounded once on their way out.
 */
#pragma once

#include "tensor/dtype.h"

#include <stdint.h>
#include <string.h>

#define SIMD_FN static inline __attribute__((always_inline))

/* rms_norm_avx2 of rms_norm; a kernel's definition begins with SIMD_KERNEL. */
#define SIMD_NAME(name) SIMD_PASTE(name, SIMD_LEVEL)
#define SIMD_KERNEL(name)                                                                          \
    op_kernel SIMD_NAME(name);                                                                     \
    void SIMD_NAME(name)
#define SIMD_PASTE(name, level)     SIMD_PASTE_NOW(name, level)
#define SIMD_PASTE_NOW(name, level) name##_##level

/* Vector registers that there are. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { SIMD_REGISTERS = 32 };
#else
enum { SIMD_REGISTERS = 16 };
#endif

#if defined(__AVX512F__)
#include "op/simd_avx512.inc"
#elif defined(__AVX2__)
#include "op/simd_avx2.inc"
#else
#include "op/simd_four.inc"
#endif

/* Sixteen partial sums, whatever the width. */
enum { SUMS = 16 / LANES };

/* 2^x for x <= 0, to 1 ulp; 0 below 2^-126, NaN for NaN. x = n + f, |f| <= 1/2, and 2^f by the
 * polynomial of least relative error (2.6e-9 before its coefficients are rounded). */
SIMD_FN vf vf_exp2_flush(vf x)
{
    x = vf_max(vf_set1(-200), x);
    vf n = vf_round(x), f = vf_sub(x, n), p = vf_set1(0x1.470b4ap-13f);
    p = vf_fma(p, f, vf_set1(0x1.5f7276p-10f));
    p = vf_fma(p, f, vf_set1(0x1.3b270ep-7f));
    p = vf_fma(p, f, vf_set1(0x1.c6ae72p-5f));
    p = vf_fma(p, f, vf_set1(0x1.ebfbe2p-3f));
    p = vf_fma(p, f, vf_set1(0x1.62e432p-1f));
    return vf_scale_flush(vf_fma(p, f, vf_set1(1)), n);
}

/* e^x to 1 ulp: 0 and infinity where it leaves the floats, NaN for NaN. x = n ln 2 + r, ln 2 in two
 * parts of which the first makes an exact product with n; e^r by a polynomial as above. */
SIMD_FN vf vf_exp(vf x)
{
    x = vf_min(vf_set1(90), vf_max(vf_set1(-105), x));
    vf n = vf_round(vf_mul(x, vf_set1(0x1.715476p+0f)));
    vf r = vf_fnma(n, vf_set1(0x1.62e4p-1f), x), p = vf_set1(0x1.709ba2p-10f);
    r = vf_fnma(n, vf_set1(0x1.7f7d1cp-20f), r);
    p = vf_fma(p, r, vf_set1(0x1.129052p-7f));
    p = vf_fma(p, r, vf_set1(0x1.55515ep-5f));
    p = vf_fma(p, r, vf_set1(0x1.5553c0p-3f));
    p = vf_fma(p, r, vf_set1(0x1.000002p-1f));
    p = vf_fma(p, r, vf_set1(1));
    return vf_scale(vf_fma(p, r, vf_set1(1)), n);
}

/* tanh to 2 ulp, NaN for NaN: x + x^3 P(x^2) up to 1/2, of relative error 4.5e-9 before its
 * coefficients are rounded; from there 1 - 2 / (e^(2 x) + 1). */
SIMD_FN vf vf_tanh(vf x)
{
    vf square = vf_mul(x, x), limit = vf_set1(0.25f), p = vf_set1(-0x1.c7033cp-8f);
    p = vf_fma(p, square, vf_set1(0x1.5fc692p-6f));
    p = vf_fma(p, square, vf_set1(-0x1.b9d2aep-5f));
    p = vf_fma(p, square, vf_set1(0x1.111080p-3f));
    p = vf_fma(p, square, vf_set1(-0x1.555554p-2f));
    vf small = vf_fma(vf_mul(p, square), x, x);
    vf power = vf_add(vf_exp(vf_add(x, x)), vf_set1(1));
    vf large = vf_sub(vf_set1(1), vf_div(vf_set1(2), power));
    return vf_add_unless_ge(vf_where_ge(small, limit, square), large, limit, square);
}
