/* The blocks of the quantised formats as they lie in memory, little-endian.
 *
 * One block holds 32, 128 or 256 values ("K" formats). d, m, dmin and s are F16 bits unless said
 * otherwise; x[i] is value i. A byte is drawn from its high bit to its low bit. Layouts and
 * formulas are ggml's; what GGUF files hold. Kernels read the structs in place: GGUF aligns tensors
 * by 32 and every size here is even (a multiple of 4 for Q8_K), but MXFP4's.
 */
#pragma once

#include <assert.h>
#include <stdint.h>

enum {
    BLOCK_32 = 32,       /* values in a block of Q4_0 ... Q8_1 */
    BLOCK_128 = 128,     /* of F8_128 */
    BLOCK_K = 256,       /* values in a block of a K format, also called a super-block */
    K_SCALES_BYTES = 12, /* packed 6-bit scales of Q3_K, Q4_K and Q5_K */
};

/* ---- Blocks of 32 -------------------------------------------------------------------------- */

/* Nibbles of 32 values in 16 bytes, halves apart (not neighbours together):
 *
 *   qs[i]   q[i+16] q[i]      4 bits each, i = 0..15
 *
 * Q4_0: x[i] = d * (q[i] - 8)
 * Q4_1: x[i] = d * q[i] + m */
typedef struct block_q4_0 {
    uint16_t d;
    uint8_t qs[BLOCK_32 / 2];
} block_q4_0;

typedef struct block_q4_1 {
    uint16_t d, m;
    uint8_t qs[BLOCK_32 / 2];
} block_q4_1;

/* As above, the fifth bit of value i apart: bit i of qh read as a little-endian 32-bit word.
 *
 * Q5_0: x[i] = d * (q[i] - 16)
 * Q5_1: x[i] = d * q[i] + m */
typedef struct block_q5_0 {
    uint16_t d;
    uint8_t qh[BLOCK_32 / 8];
    uint8_t qs[BLOCK_32 / 2];
} block_q5_0;

typedef struct block_q5_1 {
    uint16_t d, m;
    uint8_t qh[BLOCK_32 / 8];
    uint8_t qs[BLOCK_32 / 2];
} block_q5_1;

/* Q8_0: x[i] = d * qs[i] */
typedef struct block_q8_0 {
    uint16_t d;
    int8_t qs[BLOCK_32];
} block_q8_0;

/* Activations for products with Q4_1 and Q5_1: x[i] = d * qs[i], and s = d * sum of qs, which a dot
 * product multiplies by the other side's m. */
typedef struct block_q8_1 {
    uint16_t d, s;
    int8_t qs[BLOCK_32];
} block_q8_1;

/* ---- Blocks of 128 -------------------------------------------------------------------------- */

/* E4M3 numbers (float8.h) and their scale in float32: x[i] = d * f8(qs[i]). Rows of any matrix in
 * FP8 fit, because a scale of the matrix, of a row or of 128 columns is repeated in each block. */
typedef struct block_f8_128 {
    float d;
    uint8_t qs[BLOCK_128];
} block_f8_128;

/* ---- Blocks of 256 ------------------------------------------------------------------------- */

/* Two bits a value; 16 sub-blocks of 16 with a 4-bit scale and a 4-bit minimum each.
 *
 *   scales[j]        min[j] scale[j]                     4 bits each, j = 0..15
 *   qs[32*h + i]     q[128h+96+i] q[128h+64+i] q[128h+32+i] q[128h+i]
 *                                                        2 bits each, h = 0..1, i = 0..31
 *
 * x[i] = (d * scale[i/16]) * q[i] - dmin * min[i/16] */
typedef struct block_q2_k {
    uint8_t scales[BLOCK_K / 16];
    uint8_t qs[BLOCK_K / 4];
    uint16_t d, dmin;
} block_q2_k;

/* Three bits a value; 16 sub-blocks of 16 with a 6-bit scale each, stored plus 32.
 *
 *   hmask[i]         bit k: high bit of value 32k + i    k = 0..7, i = 0..31
 *   qs               low two bits, as in Q2_K
 *   scales[j]        low4[j+8]  low4[j]                  j = 0..7
 *   scales[8 + j]    high2[j+12] high2[j+8] high2[j+4] high2[j]
 *                                                        j = 0..3
 *
 * With scale[j] = (high2[j] << 4 | low4[j]) - 32 and q[i] = (high[i] << 2 | low[i]) - 4:
 * x[i] = (d * scale[i/16]) * q[i] */
typedef struct block_q3_k {
    uint8_t hmask[BLOCK_K / 8];
    uint8_t qs[BLOCK_K / 4];
    uint8_t scales[K_SCALES_BYTES];
    uint16_t d;
} block_q3_k;

/* Four bits a value; 8 sub-blocks of 32 with a 6-bit scale and a 6-bit minimum each.
 *
 *   scales[j]        scale[j+4] bits 5,4 | scale[j] bits 5..0       j = 0..3
 *   scales[4 + j]    min[j+4] bits 5,4   | min[j] bits 5..0
 *   scales[8 + j]    min[j+4] bits 3..0  | scale[j+4] bits 3..0
 *   qs[32*p + i]     q[64p+32+i] q[64p+i]                4 bits each, p = 0..3, i = 0..31
 *
 * x[i] = (d * scale[i/32]) * q[i] - dmin * min[i/32] */
typedef struct block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[K_SCALES_BYTES];
    uint8_t qs[BLOCK_K / 2];
} block_q4_k;

/* As Q4_K, with a fifth bit apart: bit k of qh[i] belongs to value 32k + i. */
typedef struct block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[K_SCALES_BYTES];
    uint8_t qh[BLOCK_K / 8];
    uint8_t qs[BLOCK_K / 2];
} block_q5_k;

/* Six bits a value; 16 sub-blocks of 16 with a signed 8-bit scale each.
 *
 *   ql[64*h + i]     low4[128h+64+i] low4[128h+i]        h = 0..1, i = 0..63
 *   qh[32*h + i]     high2[128h+96+i] high2[128h+64+i] high2[128h+32+i] high2[128h+i]
 *                                                        i = 0..31
 *
 * With q[i] = (high2[i] << 4 | low4[i]) - 32: x[i] = (d * scales[i/16]) * q[i] */
typedef struct block_q6_k {
    uint8_t ql[BLOCK_K / 2];
    uint8_t qh[BLOCK_K / 4];
    int8_t scales[BLOCK_K / 16];
    uint16_t d;
} block_q6_k;

/* Activations for products with the K formats: x[i] = d * qs[i], d in float32, and the sums of 16
 * neighbours, which a dot product multiplies by the other side's minima or offsets. */
typedef struct block_q8_k {
    float d;
    int8_t qs[BLOCK_K];
    int16_t bsums[BLOCK_K / 16];
} block_q8_k;

/* ---- Blocks of levels and grids ------------------------------------------------------------ */

/* Sixteen levels (grids.h) in the place of whole numbers; nibbles as in Q4_0: x[i] = d *
 * level[q[i]] */
typedef struct block_iq4_nl {
    uint16_t d;
    uint8_t qs[BLOCK_32 / 2];
} block_iq4_nl;

/* Eight sub-blocks of those with a 6-bit scale each, stored plus 32.
 *
 *   scales_h         bits 2j + 1, 2j: scale[j] bits 5, 4     j = 0..7
 *   scales_l[j]      scale[2j+1] bits 3..0 | scale[2j] bits 3..0
 *   qs[16*j + i]     q[32j+i+16] q[32j+i]                    4 bits each, i = 0..15
 *
 * x[i] = (d * (scale[i/32] - 32)) * level[q[i]] */
typedef struct block_iq4_xs {
    uint16_t d, scales_h;
    uint8_t scales_l[BLOCK_K / 64];
    uint8_t qs[BLOCK_K / 2];
} block_iq4_xs;

/* Numbers of FP4 (E2M1) with a scale that is a power of two, nibbles as in Q4_0:
 *
 * x[i] = 2^(e - 128) * twice the number q[i] */
typedef struct block_mxfp4 {
    uint8_t e;
    uint8_t qs[BLOCK_32 / 2];
} block_mxfp4;

/* Four numbers of FP4 (E2M1) groups of 16 with a scale each, E4M3 without a sign; 0x7f is 0.
 *
 *   d[j]             scale of values 16j .. 16j+15           j = 0..3
 *   qs[8*j + i]      q[16j+i+8] q[16j+i]                     4 bits each, i = 0..7
 *
 * x[i] = (d[i/16] / 2) * twice the number q[i] */
typedef struct block_nvfp4 {
    uint8_t d[4];
    uint8_t qs[32];
} block_nvfp4;

/* Three levels, five to a byte: the byte's share of 256, times 3, has the first level as its whole
 * part and the share that the others are in as its fraction.
 *
 *   qs[i]            q[32n+i], n = 0..4                      i = 0..31
 *   qs[32+i]         q[160+16n+i], n = 0..4                  i = 0..15
 *   qh[i]            q[240+4n+i], n = 0..3                   i = 0..3
 *
 * x[i] = d * (q[i] - 1) */
typedef struct block_tq1_0 {
    uint8_t qs[48], qh[4];
    uint16_t d;
} block_tq1_0;

/* The same in two bits, as Q2_K holds them. */
typedef struct block_tq2_0 {
    uint8_t qs[BLOCK_K / 4];
    uint16_t d;
} block_tq2_0;

/* Entries g of a grid: of four values in IQ3 (entry k holds values 4k .. 4k+3), of eight in IQ2 and
 * IQ1. A set bit of s makes its value negative; where eight signs have 7 bits, the last makes the
 * number of set bits even.
 *
 * IQ3_XXS: rest[j] bits 28..31 scale[j], 7 bits from 7l on the signs of values 32j+8l .. 32j+8l+7
 *          x[i] = (d * (0.5 + scale[i/32]) * 0.5) * g[qs[i/4]], with its sign */
typedef struct block_iq3_xxs {
    uint16_t d;
    uint8_t qs[BLOCK_K / 4], rest[BLOCK_K / 8];
} block_iq3_xxs;

/* IQ3_S:   the entry has the ninth bit in qh, bit k % 8 of qh[k / 8]
 *          x[i] = (d * (1 + 2 * scale[i/32])) * g[entry[i/4]], with its sign */
typedef struct block_iq3_s {
    uint16_t d;
    uint8_t qs[BLOCK_K / 4], qh[BLOCK_K / 32], signs[BLOCK_K / 8], scales[BLOCK_K / 64];
} block_iq3_s;

/* IQ2_XXS: four bytes of entries of 32 values, then four bytes as in IQ3_XXS
 *          x[i] = (d * (0.5 + scale[i/32]) * 0.25) * g[entry[i/8]], with its sign */
typedef struct block_iq2_xxs {
    uint16_t d;
    uint8_t qs[BLOCK_K / 4];
} block_iq2_xxs;

/* IQ2_XS:  16 bits of eight values: 9 of the entry, 7 of signs; 4-bit scales of 16 values
 *          x[i] = (d * (0.5 + scale[i/16]) * 0.25) * g[entry[i/8]], with its sign */
typedef struct block_iq2_xs {
    uint16_t d;
    uint8_t qs[BLOCK_K / 4], scales[BLOCK_K / 32];
} block_iq2_xs;

/* IQ2_S:   the entry's two high bits in qh, bits 2l + 1, 2l of qh[j] for values 32j+8l on */
typedef struct block_iq2_s {
    uint16_t d;
    uint8_t qs[BLOCK_K / 8], signs[BLOCK_K / 8], qh[BLOCK_K / 32], scales[BLOCK_K / 32];
} block_iq2_s;

/* IQ1_S:   qh[j] bits 3l+2 .. 3l: the entry's high bits for values 32j+8l on; 12..14 scale[j]; 15
 *          set: the shift of 32 values is -1/8, else 1/8
 *          x[i] = (d * (2 * scale[i/32] + 1)) * (g[entry[i/8]] + shift[i/32]) */
typedef struct block_iq1_s {
    uint16_t d;
    uint8_t qs[BLOCK_K / 8];
    uint16_t qh[BLOCK_K / 32];
} block_iq1_s;

/* IQ1_M:   qh has a nibble for eight values: the entry's three high bits, and a set bit 3 for a
 * shift of -1/8; scales[j] has 3-bit scales of 16 values from bit 0 on, and in bits 12..15 the bits
 * from 4j on of d */
typedef struct block_iq1_m {
    uint8_t qs[BLOCK_K / 8], qh[BLOCK_K / 16];
    uint16_t scales[BLOCK_K / 64];
} block_iq1_m;

/* The structs have no padding: their sizes are those of dtype.def. */
enum {
#define DTYPE(name, elements, bytes, gguf, safetensors) BLOCK_BYTES_##name = bytes,
#include "tensor/dtype.def"
#undef DTYPE
};
static_assert(sizeof(block_q4_0) == BLOCK_BYTES_Q4_0, "Q4_0");
static_assert(sizeof(block_q4_1) == BLOCK_BYTES_Q4_1, "Q4_1");
static_assert(sizeof(block_q5_0) == BLOCK_BYTES_Q5_0, "Q5_0");
static_assert(sizeof(block_q5_1) == BLOCK_BYTES_Q5_1, "Q5_1");
static_assert(sizeof(block_q8_0) == BLOCK_BYTES_Q8_0, "Q8_0");
static_assert(sizeof(block_q8_1) == BLOCK_BYTES_Q8_1, "Q8_1");
static_assert(sizeof(block_f8_128) == BLOCK_BYTES_F8_128, "F8_128");
static_assert(sizeof(block_q2_k) == BLOCK_BYTES_Q2_K, "Q2_K");
static_assert(sizeof(block_q3_k) == BLOCK_BYTES_Q3_K, "Q3_K");
static_assert(sizeof(block_q4_k) == BLOCK_BYTES_Q4_K, "Q4_K");
static_assert(sizeof(block_q5_k) == BLOCK_BYTES_Q5_K, "Q5_K");
static_assert(sizeof(block_q6_k) == BLOCK_BYTES_Q6_K, "Q6_K");
static_assert(sizeof(block_q8_k) == BLOCK_BYTES_Q8_K, "Q8_K");
static_assert(sizeof(block_iq4_nl) == BLOCK_BYTES_IQ4_NL, "IQ4_NL");
static_assert(sizeof(block_iq4_xs) == BLOCK_BYTES_IQ4_XS, "IQ4_XS");
static_assert(sizeof(block_mxfp4) == BLOCK_BYTES_MXFP4, "MXFP4");
static_assert(sizeof(block_nvfp4) == BLOCK_BYTES_NVFP4, "NVFP4");
static_assert(sizeof(block_tq1_0) == BLOCK_BYTES_TQ1_0, "TQ1_0");
static_assert(sizeof(block_tq2_0) == BLOCK_BYTES_TQ2_0, "TQ2_0");
static_assert(sizeof(block_iq3_xxs) == BLOCK_BYTES_IQ3_XXS, "IQ3_XXS");
static_assert(sizeof(block_iq3_s) == BLOCK_BYTES_IQ3_S, "IQ3_S");
static_assert(sizeof(block_iq2_xxs) == BLOCK_BYTES_IQ2_XXS, "IQ2_XXS");
static_assert(sizeof(block_iq2_xs) == BLOCK_BYTES_IQ2_XS, "IQ2_XS");
static_assert(sizeof(block_iq2_s) == BLOCK_BYTES_IQ2_S, "IQ2_S");
static_assert(sizeof(block_iq1_s) == BLOCK_BYTES_IQ1_S, "IQ1_S");
static_assert(sizeof(block_iq1_m) == BLOCK_BYTES_IQ1_M, "IQ1_M");
