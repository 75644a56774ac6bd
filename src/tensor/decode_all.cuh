/* decode8_of() for every weight type, with those that persistent kernels do not read: formats of
 * levels and of grids (codec_blocks.h). */
#pragma once

#include "tensor/decode.cuh"

#include "tensor/decode_grids.cuh"
#include "tensor/decode_levels.cuh"

/* Eight values of a type of levels or grids; false if it is none. */
DECODE_FN bool decode_levels_or_grids(dtype type, const uint8_t *row, int64_t i, float *out)
{
    switch (type) {
#define CASE(NAME, name)                                                                           \
    case DTYPE_##NAME:                                                                             \
        decode_##name(row, i, out);                                                                \
        return true;
        CASE(IQ4_NL, iq4_nl)
        CASE(IQ4_XS, iq4_xs)
        CASE(MXFP4, mxfp4)
        CASE(NVFP4, nvfp4)
        CASE(TQ1_0, tq1_0)
        CASE(TQ2_0, tq2_0)
        CASE(IQ3_XXS, iq3_xxs)
        CASE(IQ3_S, iq3_s)
        CASE(IQ2_XXS, iq2_xxs)
        CASE(IQ2_XS, iq2_xs)
        CASE(IQ2_S, iq2_s)
        CASE(IQ1_S, iq1_s)
        CASE(IQ1_M, iq1_m)
#undef CASE
    default:
        return false;
    }
}

template <dtype T>
DECODE_FN void decode8_all_of(dtype type, const void *data, int64_t i, int64_t n, float *out)
{
    if (T == DTYPE_COUNT && decode_levels_or_grids(type, (const uint8_t *)data, i, out)) return;
    decode8_of<T>(type, data, i, n, out);
}
