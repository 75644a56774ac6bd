/* Rotary position embedding: which frequency each pair of elements turns with.
 *
 * Frequencies and angles are float32, as transformers computes them, so that a long context turns
 * by the same angles. Sources: Su et al., RoFormer, 2021; transformers modeling_rope_utils.py for
 * the scalings.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum rope_scaling {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONGROPE,
    ROPE_SCALINGS
} rope_scaling;

typedef struct rope_config {
    rope_scaling scaling;
    bool interleaved; /* pairs (2i, 2i+1), as GGUF stores q and k; else NeoX (i, i + half) */
    int64_t dim;      /* elements of a head that turn, even, at most head_dim */
    double theta;     /* base */
    double factor;    /* linear, dynamic, llama3, yarn */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow; /* yarn: pairs that turn more often than beta_fast in the original
                                  * context keep their frequency; less often than beta_slow: it is
                                  * divided by factor */
    bool beta_exact;             /* yarn: between these bounds, not between whole pairs */
    double attention_factor;     /* cosines and sines are multiplied by it; 0: 1 */
    int64_t original_context;    /* llama3, dynamic, yarn, longrope */
    const float *divisors;      /* [dim / 2] of GGUF's rope_freqs.weight, or of longrope; or NULL */
    const float *long_divisors; /* [dim / 2] of longrope, for lengths beyond original_context */
} rope_config;

/* "default", "linear", "dynamic", "llama3", "yarn", "longrope". */
const char *rope_scaling_name(rope_scaling scaling);

/* The divisor of pair i in GGUF's rope_freqs.weight, for a scaling that does not depend on the
 * length: dividing the plain frequency by it gives the scaled one, to the bit where a float can. */
float rope_divisor(const rope_config *rope, int64_t i);

/* What yarn multiplies cosines and sines by, if a model does not say: 1 + log(factor) / 10. */
double rope_yarn_attention(double factor);

/* Fills inverse_frequencies[dim / 2] for a sequence of `length` tokens; only `dynamic` and
 * `longrope` depend on the length, beyond original_context. */
void rope_inverse_frequencies(const rope_config *rope, int64_t length, float *inverse_frequencies);

/* One row of the table that the rope operator reads: [cos of dim/2 | sin of dim/2]. */
void rope_table_row(const rope_config *rope, const float *inverse_frequencies, int64_t position,
                    float *row);

/* `count` rows of it, from `position` on, for a sequence of `length` tokens. */
void rope_table_rows(const rope_config *rope, int64_t length, int64_t position, int64_t count,
                     float *rows);

enum { ROPE_MAX_DIM = 4096 };
