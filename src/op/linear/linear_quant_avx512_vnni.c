/* linear_quant with 512-bit vpdpbusd: 64 products of unsigned and signed bytes, summed by fours. */
#include "op/linear/linear_quant_zmm.inc"

#define KERNELS      quant_kernels_vnni
#define OFFSET8      1
#define SIGNED_BYTES 0
#define FETCH_FAR    0

static inline __attribute__((always_inline)) vint v_dot4(vint sum, const vint *w, const int8_t *x,
                                                         int bits)
{
    (void)bits;
    for (int s = 0; s < 4; s++)
        sum = _mm512_dpbusd_epi32(sum, w[s], four_values(x + 4 * s));
    return sum;
}

#include "op/linear/linear_quant_kernel.inc"
#include "op/linear/linear_quant_table.inc"
