/* Entries of an operator's table of variants for kernels written once in vectors (op/simd.h). */
#ifndef QUIPU_OP_VARIANTS_H
#define QUIPU_OP_VARIANTS_H

#include "base/cpu.h"
#include "op/op.h"

/* Whether no tensor is F64, the oracle's type. */
static inline bool op_call_has_no_f64(const op_call *call)
{
    for (int t = 0; t < OP_MAX_TENSORS; t++) {
        if (call->tensors[t].rank && call->tensors[t].type == DTYPE_F64) return false;
    }
    return true;
}

/* The kernels `prefix`_avx2 and `prefix`_avx512, or the first alone where 16 lanes are no faster
 * than 8, with further fields of op_variant; nothing where the instruction sets do not exist. */
#ifdef __x86_64__
#define OP_AVX2_VARIANT(prefix, ...)                                                               \
    {                                                                                              \
        .name = "avx2", .needs = CPU_LEVEL_AVX2, .kernel = prefix##_avx2, __VA_ARGS__              \
    }
#define OP_SIMD_VARIANTS(prefix, ...)                                                              \
    OP_AVX2_VARIANT(prefix, __VA_ARGS__),                                                          \
    {                                                                                              \
        .name = "avx512", .needs = CPU_LEVEL_AVX512, .kernel = prefix##_avx512, __VA_ARGS__        \
    }
#else
#define OP_AVX2_VARIANT(prefix, ...)                                                               \
    {                                                                                              \
        .name = NULL, __VA_ARGS__                                                                  \
    }
#define OP_SIMD_VARIANTS(prefix, ...) OP_AVX2_VARIANT(prefix, __VA_ARGS__)
#endif

#endif
