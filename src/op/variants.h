/* An operator's variants that are written once in vectors (op/simd.h) and compiled for every
 * instruction set that simd_levels of CMakeLists.txt names. This is the list of those for C.
 */
#pragma once

#include "base/cpu.h"
#include "op/op.h"

/* SIMD_LEVELS(X, ...): X(level, features, ...) for each, in rising order; the kernels of
 * NAME_simd.c are called NAME_level. Those of NAME_simd8.c, which 16 lanes make no faster, exist
 * for SIMD8_LEVELS. */
#if defined(__x86_64__)
#define SIMD8_LEVELS(X, ...)                                                                       \
    X(sse2, CPU_VECTORS, __VA_ARGS__)                                                              \
    X(avx2, CPU_LEVEL_AVX2, __VA_ARGS__)
#define SIMD_LEVELS(X, ...)                                                                        \
    SIMD8_LEVELS(X, __VA_ARGS__)                                                                   \
    X(avx512, CPU_LEVEL_AVX512, __VA_ARGS__)
#elif defined(__aarch64__)
#define SIMD8_LEVELS(X, ...) X(neon, CPU_VECTORS, __VA_ARGS__)
#define SIMD_LEVELS(X, ...)  SIMD8_LEVELS(X, __VA_ARGS__)
#else
#define SIMD8_LEVELS(X, ...) X(portable, CPU_VECTORS, __VA_ARGS__)
#define SIMD_LEVELS(X, ...)  SIMD8_LEVELS(X, __VA_ARGS__)
#endif

/* Whether no tensor is F64, the oracle's type. */
static inline bool op_call_has_no_f64(const op_call *call)
{
    for (int t = 0; t < OP_MAX_TENSORS; t++) {
        if (call->tensors[t].rank && call->tensors[t].type == DTYPE_F64) return false;
    }
    return true;
}

#define SIMD_DECLARE(level, features, prefix) op_kernel prefix##_##level;
#define SIMD_ROW(level, features, prefix, ...)                                                     \
    {.name = #level, .needs = features, .kernel = prefix##_##level, __VA_ARGS__},

/* Declares the kernels and defines `variants`, their table, with further fields of op_variant. */
#define OP_SIMD_TABLE(prefix, ...)                                                                 \
    SIMD_LEVELS(SIMD_DECLARE, prefix)                                                              \
    static const op_variant variants[] = {SIMD_LEVELS(SIMD_ROW, prefix, __VA_ARGS__){0}};
#define OP_SIMD8_TABLE(prefix, ...)                                                                \
    SIMD8_LEVELS(SIMD_DECLARE, prefix)                                                             \
    static const op_variant variants[] = {SIMD8_LEVELS(SIMD_ROW, prefix, __VA_ARGS__){0}};
