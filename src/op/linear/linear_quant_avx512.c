/* linear_quant for AVX-512 without VNNI: vpmaddubsw, which adds pairs in 16 bits, saturating.
 *
 * Four such sums fit for values of 5 bits, two for 6 bits. For 8 bits not even one pair fits, so
 * Q8_0 is split into magnitudes, and their signs are applied to x.
 */
#include "op/linear/linear_quant_zmm.inc"

#define KERNELS      quant_kernels_avx512
#define OFFSET8      0
#define SIGNED_BYTES 0
#define FETCH_FAR    0

static inline __attribute__((always_inline)) vint pairs(vint w, vint x, int bits)
{
    if (bits < 8) return _mm512_maddubs_epi16(w, x);
    __mmask64 negative = _mm512_movepi8_mask(w);
    vint moved = _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
    return _mm512_maddubs_epi16(_mm512_abs_epi8(w), moved);
}

static inline __attribute__((always_inline)) vint v_dot4(vint sum, const vint *w, const int8_t *x,
                                                         int bits)
{
    int fit = bits <= 5 ? 4 : bits == 6 ? 2 : 1; /* sums of pairs that fit in 16 bits */
    for (int s = 0; s < 4; s += fit) {
        vint narrow = pairs(w[s], four_values(x + 4 * s), bits);
        for (int i = 1; i < fit; i++)
            narrow = _mm512_add_epi16(narrow, pairs(w[s + i], four_values(x + 4 * (s + i)), bits));
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(narrow, _mm512_set1_epi16(1)));
    }
    return sum;
}

#include "op/linear/linear_quant_kernel.inc"
#include "op/linear/linear_quant_table.inc"
