/* The blocks of the quantised formats as they lie in memory, little-endian.
 *
 * One block holds 32, 128 or 256 values ("K" formats). d, m, dmin and s are F16 bits unless said
 * otherwise; x[i] is value i. A byte is drawn from its high bit to its low bit. Layouts and
 * formulas are ggml's; what GGUF files hold. Kernels read the structs in place: GGUF aligns tensors
 * by 32 and every size here is even (a multiple of 4 for Q8_K).
 */
#ifndef QUIPU_TENSOR_CODEC_BLOCKS_H
#define QUIPU_TENSOR_CODEC_BLOCKS_H

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

#endif
