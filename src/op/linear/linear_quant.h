/* Variants of linear for quantised weights with F32 x and out, in integer arithmetic.
 *
 * What is computed, the same to the bit in every variant. A row of x is cut into blocks of 32
 * values and rounded to 8 bits, q[i] = round(x[i] * (127 / a)) with d = a / 127, a the block's
 * greatest magnitude (blocks below 2^-120 count as zero, blocks with an infinity or NaN as NaN).
 * A weight block is its type's whole numbers w[i] with a float32 scale s (two for types with a
 * scale for every 16 values) and a minimum m for some. Block after block, in float32,
 *
 *   t = (sum of q w) * s, or with two scales fma(sum' , s', sum * s)
 *   out = fma(t, d, out), then for types with minima out = fma(m, d * (sum of q), out)
 *
 * The sums of q w are exact. Nothing depends on how many rows x has or on how features are cut.
 *
 * Against the exact product the rounding of x leaves a relative error (norm) of about 0.005 for
 * normally distributed x.
 *
 * The variants named int16 round x to 16 bits instead, q[i] = round(x[i] * (32512 / a)) with d = a
 * / 32512 (and blocks below 2^-110 count as zero). The error is 256 times smaller. q is two 8-bit
 * digits, low + 255 high, which the same kernels multiply in turn; the sum of q w is exact again.
 */
#pragma once

#include "base/cpu.h"
#include "op/linear/linear_rounded.h"
#include "op/op.h"

/* X(level, features, name of the variant for 8 bits, for 16 bits): in rising order of preference.
 */
#if defined(__x86_64__)
#define LINEAR_QUANT_AVX512_VNNI (CPU_LEVEL_AVX512 | CPU_AVX512_VNNI)
#define LINEAR_QUANT_AMX         (LINEAR_QUANT_AVX512_VNNI | CPU_AMX_TILE | CPU_AMX_INT8)
#define LINEAR_QUANT_LEVELS(X)                                                                     \
    X(sse2, CPU_VECTORS, "sse2_int8", "sse2_int16")                                                \
    X(avx2, CPU_LEVEL_AVX2, "avx2_int8", "avx2_int16")                                             \
    X(avx512, CPU_LEVEL_AVX512, "avx512_int8", "avx512_int16")                                     \
    X(vnni, LINEAR_QUANT_AVX512_VNNI, "avx512_vnni", "avx512_vnni_int16")                          \
    X(amx, LINEAR_QUANT_AMX, "amx_int8", "amx_int16")
#elif defined(__aarch64__)
#define LINEAR_QUANT_LEVELS(X)                                                                     \
    X(neon, CPU_VECTORS, "neon_int8", "neon_int16")                                                \
    X(neon_dotprod, CPU_LEVEL_DOTPROD, "neon_dotprod", "neon_dotprod_int16")                       \
    X(neon_i8mm, CPU_LEVEL_I8MM, "neon_i8mm", "neon_i8mm_int16")
#else
#define LINEAR_QUANT_LEVELS(X) X(portable, CPU_VECTORS, "portable_int8", "portable_int16")
#endif

#define LINEAR_QUANT_DECLARE(level, ...)                                                           \
    op_kernel linear_quant_##level##_8, linear_quant_##level##_16;
LINEAR_QUANT_LEVELS(LINEAR_QUANT_DECLARE)

/* Quantised weight, F32 for all that is present besides. */
bool linear_quant_accepts(const op_call *call);

/* Weights are packed by 16 rows, each 32-bit word of a block next to the same word of the other
 * rows. All variants use this form. It has the stored size, plus the rows that fill the last 16. */
enum { LINEAR_QUANT_PACK_UNITS = 16 };
size_t linear_quant_packed_bytes(const op_call *call);
void linear_quant_pack(const op_call *call, void *packed);
size_t linear_quant_scratch_bytes_8(const op_call *call);
size_t linear_quant_scratch_bytes_16(const op_call *call);
extern const op_tolerance linear_quant_tolerances_8[], linear_quant_tolerances_16[];

/* Entries for the operator's table of variants; `bits` is what x is rounded to. */
#define LINEAR_QUANT_VARIANT(NAME, NEEDS, level, bits)                                             \
    {                                                                                              \
        .name = NAME,                                                                              \
        .needs = NEEDS,                                                                            \
        .kernel = linear_quant_##level##_##bits,                                                   \
        .accepts = linear_quant_accepts,                                                           \
        .packed_bytes = linear_quant_packed_bytes,                                                 \
        .pack = linear_quant_pack,                                                                 \
        .pack_units = LINEAR_QUANT_PACK_UNITS,                                                     \
        .scratch_bytes = linear_quant_scratch_bytes_##bits,                                        \
        .tolerances = linear_quant_tolerances_##bits,                                              \
        .rounded = linear_rounded_##bits,                                                          \
        .rounded_scratch_bytes = linear_rounded_bytes,                                             \
    },
#define LINEAR_QUANT_8(level, needs, name, name_16) LINEAR_QUANT_VARIANT(name, needs, level, 8)
#define LINEAR_QUANT_16(level, needs, name, name_16)                                               \
    LINEAR_QUANT_VARIANT(name_16, OP_X_16 | needs, level, 16)
#define LINEAR_QUANT_VARIANTS                                                                      \
    LINEAR_QUANT_LEVELS(LINEAR_QUANT_8) LINEAR_QUANT_LEVELS(LINEAR_QUANT_16)
