/* What the decoders and the encoders of the K formats share, and what those of 32 use of their
 * search; private to codec_*.c. */
#pragma once

#include "tensor/codec_table.h"

/* The 12 bytes of 6-bit scales and minima of Q4_K and Q5_K, from scales[8] and mins[8]. */
void k_pack_scales(const uint8_t *scales, const uint8_t *mins, uint8_t *packed);

/* The inverse of unpacking levels[256]: packs the low two or four bits of each into qs, and the bit
 * at position `shift` into bits[32]; both must be zero before. */
void k_pack_pairs(const uint8_t *levels, uint8_t *qs);
void k_pack_nibbles(const uint8_t *levels, uint8_t *qs);
void k_pack_bits(const uint8_t *levels, int shift, uint8_t *bits);

/* The block of 32 with the least weighted error: the F16 d and levels[32], counted from `lowest`
 * (to -1 - lowest, from -127 to 127), or from 0 to `last` with the F16 minimum *m. */
uint16_t k_search_signed(int lowest, const float *src, const float *importance, uint8_t *levels);
uint16_t k_search_affine(int last, const float *src, const float *importance, uint16_t *m,
                         uint8_t *levels);

codec_encode_fn encode_q2_k, encode_q3_k, encode_q4_k, encode_q5_k, encode_q6_k, encode_q8_k,
    encode_iq4_xs, encode_iq4_nl;
