/* The fast variants of linear, in rising order of preference. */
#include "op/linear/linear.h"
#include "op/linear/linear_float.h"
#include "op/linear/linear_quant.h"

#include "base/cpu.h"

#define FLOAT_VARIANT(NAME, NEEDS)                                                                 \
    {                                                                                              \
        .name = #NAME, .needs = NEEDS, .kernel = linear_float_##NAME,                              \
        .accepts = linear_float_accepts, .packed_bytes = linear_float_packed_bytes,                \
        .pack = linear_float_pack, .pack_units = LINEAR_FLOAT_PANEL,                               \
        .scratch_bytes = linear_float_scratch_bytes,                                               \
    }

#define DECODED_VARIANT(NAME, NEEDS)                                                               \
    {                                                                                              \
        .name = #NAME "_decoded", .needs = OP_X_FLOAT | NEEDS, .kernel = linear_float_##NAME,      \
        .accepts = linear_float_accepts_quantised, .packed_bytes = linear_float_packed_bytes,      \
        .pack = linear_float_pack_quantised, .pack_units = LINEAR_FLOAT_PANEL,                     \
        .scratch_bytes = linear_float_scratch_bytes,                                               \
    }

const op_variant linear_variants[] = {
#ifdef __x86_64__
    FLOAT_VARIANT(avx2, CPU_LEVEL_AVX2),
    FLOAT_VARIANT(avx512, CPU_LEVEL_AVX512),
    {
        .name = "amx_bf16",
        .needs = CPU_LEVEL_AVX512 | CPU_AMX_TILE | CPU_AMX_BF16,
        .kernel = linear_float_amx,
        .accepts = linear_float_amx_accepts,
        .packed_bytes = linear_float_packed_bytes,
        .pack = linear_float_pack,
        .pack_units = LINEAR_FLOAT_PANEL,
        .scratch_bytes = linear_float_amx_scratch_bytes,
    },
    LINEAR_QUANT_VARIANTS,
    DECODED_VARIANT(avx2, CPU_LEVEL_AVX2),
    DECODED_VARIANT(avx512, CPU_LEVEL_AVX512),
#endif
    {0}};
