/* The fast variants of linear, in rising order of preference. */
#include "op/linear/linear.h"
#include "op/linear/linear_float.h"
#include "op/linear/linear_quant.h"

#include "base/cpu.h"

#define FLOAT_VARIANT(NAME, NEEDS, PACK)                                                           \
    {                                                                                              \
        .name = #NAME, .needs = NEEDS, .kernel = linear_float_##NAME,                              \
        .accepts = linear_float_accepts, .packed_bytes = linear_float_packed_bytes, .pack = PACK,  \
        .pack_units = LINEAR_FLOAT_PANEL, .scratch_bytes = linear_float_scratch_bytes,             \
    }

#define DECODED_VARIANT(NAME, NEEDS)                                                               \
    {                                                                                              \
        .name = #NAME "_decoded", .needs = OP_X_FLOAT | NEEDS, .kernel = linear_float_##NAME,      \
        .accepts = linear_float_accepts_quantised, .packed_bytes = linear_float_packed_bytes,      \
        .pack = linear_float_pack_quantised, .pack_units = LINEAR_FLOAT_PANEL,                     \
        .scratch_bytes = linear_float_scratch_bytes,                                               \
    }

#define AMX_BF16 (CPU_LEVEL_AVX512 | CPU_AMX_TILE | CPU_AMX_BF16)

#define BF16_VARIANT(NAME, NEEDS, KERNEL, SCRATCH, PACK, ...)                                      \
    {                                                                                              \
        .name = NAME, .needs = NEEDS, .kernel = linear_float_##KERNEL,                             \
        .accepts = linear_float_bf16_accepts, .packed_bytes = linear_float_packed_bytes,           \
        .pack = PACK, .pack_units = LINEAR_FLOAT_PANEL, .scratch_bytes = SCRATCH, __VA_ARGS__      \
    }

#define ROUNDS_TO_BF16                                                                             \
    .tolerances = linear_float_bf16_tolerances, .rounded = linear_rounded_bf16,                    \
    .rounded_scratch_bytes = linear_rounded_bytes

const op_variant linear_variants[] = {
#if defined(__x86_64__)
    FLOAT_VARIANT(sse2, CPU_VECTORS, linear_float_pack),
    FLOAT_VARIANT(avx2, CPU_LEVEL_AVX2, linear_float_pack),
    FLOAT_VARIANT(avx512, CPU_LEVEL_AVX512, linear_float_pack_avx512),
    BF16_VARIANT("amx_bf16", AMX_BF16, amx, linear_float_amx_scratch_bytes,
                 linear_float_pack_avx512, .rounded = NULL),
    LINEAR_QUANT_VARIANTS DECODED_VARIANT(sse2, CPU_VECTORS),
    DECODED_VARIANT(avx2, CPU_LEVEL_AVX2),
    DECODED_VARIANT(avx512, CPU_LEVEL_AVX512),
    BF16_VARIANT("avx512_bf16_rounded", OP_X_BF16 | CPU_LEVEL_AVX512 | CPU_AVX512_BF16, avx512_bf16,
                 linear_float_scratch_bytes, linear_float_pack_avx512, ROUNDS_TO_BF16),
    BF16_VARIANT("amx_bf16_rounded", OP_X_BF16 | CPU_AVX512_BF16 | AMX_BF16, amx_rounded,
                 linear_float_amx_scratch_bytes, linear_float_pack_avx512, ROUNDS_TO_BF16),
#elif defined(__aarch64__)
    FLOAT_VARIANT(neon, CPU_VECTORS, linear_float_pack),
    LINEAR_QUANT_VARIANTS DECODED_VARIANT(neon, CPU_VECTORS),
    BF16_VARIANT("neon_bf16_rounded", OP_X_BF16 | CPU_VECTORS | CPU_BF16, neon_bf16,
                 linear_float_scratch_bytes, linear_float_pack, ROUNDS_TO_BF16),
#else
    FLOAT_VARIANT(portable, CPU_VECTORS, linear_float_pack),
    LINEAR_QUANT_VARIANTS DECODED_VARIANT(portable, CPU_VECTORS),
#endif
    {0}};
