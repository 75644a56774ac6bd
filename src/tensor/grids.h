/* The grids of the IQ formats: which groups of values may stand together. They are part of the GGUF
 * format, as the blocks are (codec_blocks.h).
 *
 * An entry is as many 32-bit words as it has fours of values, the first value in the lowest byte:
 * two words in IQ1 and IQ2 (entry i begins at word 2 i), one in IQ3. A byte is a magnitude, or in
 * IQ1 one of 0, 1, 2, which mean -1, 0, 1.
 */
#pragma once

#include <stdint.h>

extern const uint32_t grid_iq1_s[2 * 2048];  /* also IQ1_M's */
extern const uint32_t grid_iq2_xxs[2 * 256]; /* of 8, 25 and 43 */
extern const uint32_t grid_iq2_xs[2 * 512];
extern const uint32_t grid_iq2_s[2 * 1024];
extern const uint32_t grid_iq3_xxs[256]; /* of 4, 12, .. 52 and 62 */
extern const uint32_t grid_iq3_s[512];   /* of the odd numbers below 16 */
