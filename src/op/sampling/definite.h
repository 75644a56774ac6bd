/* Exponential and logarithm that give the same bits on every machine, and the noise made of them.
 *
 * They use only additions, multiplications, divisions and integer operations in a fixed order, each
 * rounded correctly by IEEE 754, without library functions and fused products. So every compiler
 * and processor gives the same bits, and so does the GPU, since this header also compiles as CUDA
 * C. The error is about 2 units in the last place, but what matters here is that the result is
 * defined.
 */
#pragma once

#include "base/hash.h"

#include <stdint.h>
#include <string.h>

/* A product that is rounded before it is added, even where a compiler of GPU code would fuse the
 * two; compilers of CPU code are configured not to. */
HASH_FN double definite_product(double a, double b)
{
#ifdef __CUDA_ARCH__
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}

/* A quotient of numbers far from the ends of the range. A compiler of GPU code emits the same
 * instructions for it, plus a call for all other numbers: where that call is possible, registers
 * must be free. */
HASH_FN double definite_quotient(double a, double b)
{
#ifdef __CUDA_ARCH__
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(b));
    y = __hiloint2double(__double2hiint(y), 1);
    double wrong = __fma_rn(-b, y, 1.0);
    y = __fma_rn(y, __fma_rn(wrong, wrong, wrong), y);
    y = __fma_rn(y, __fma_rn(-b, y, 1.0), y);
    double about = __dmul_rn(a, y);
    return __fma_rn(y, __fma_rn(-b, about, a), about);
#else
    return a / b;
#endif
}

HASH_FN double definite_from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* e^x for x <= 0; 0 below -700. x = k ln 2 + r with |r| <= ln 2 / 2, and e^r by its series, whose
 * term r^14 / 14! is below 2^-57. */
HASH_FN double definite_exp(double x)
{
    if (!(x > -700)) return 0;
    /* 1 / ln 2; towards zero: the nearest */
    int k = (int)(definite_product(x, 0x1.71547652b82fep+0) - 0.5);
    /* ln 2 in two parts; the first has 32 bits, so that its product with k is exact. */
    double r =
        x - definite_product(k, 0x1.62e42feep-1) - definite_product(k, 0x1.a39ef35793c76p-33);
    double sum = 1;
    for (int n = 13; n > 0; n--)
        sum = 1 + definite_product(definite_product(sum, r), 1.0 / n);
    return sum * definite_from_bits((uint64_t)(k + 1023) << 52);
}

/* Natural logarithm of a normal, positive x. x = 2^k m with m in [sqrt(1/2), sqrt(2)), and
 * ln m = 2 artanh(s), s = (m - 1) / (m + 1), |s| < 0.172, by its series: s^23 / 23 < 2^-62. */
HASH_FN double definite_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int k = (int)(bits >> 52) - 1023;
    double m = definite_from_bits((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
    if (m >= 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        k++;
    }
    double s = definite_quotient(m - 1, m + 1), square = s * s, sum = 0;
    for (int n = 21; n > 0; n -= 2)
        sum = 1.0 / n + definite_product(sum, square);
    double rest = definite_product(k, 0x1.a39ef35793c76p-33) + definite_product(2 * s, sum);
    return definite_product(k, 0x1.62e42feep-1) + rest;
}

/* Gumbel noise for (seed, position, token): -ln(-ln u), u the middle of one of 2^52 cells of (0,
 * 1).
 */
HASH_FN double definite_gumbel(uint64_t seed, uint64_t position, uint64_t token)
{
    double u = ((double)(hash_random(seed, position, token) >> 12) + 0.5) * 0x1p-52;
    return -definite_log(-definite_log(u));
}
