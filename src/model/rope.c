/* Rotary position embedding: see rope.h. */
#include "model/rope.h"

#include <math.h>
#include <stddef.h>

static const double two_pi = 6.283185307179586;

const char *rope_scaling_name(rope_scaling scaling)
{
    static const char *const names[ROPE_SCALINGS] = {"default", "linear", "dynamic",
                                                     "llama3",  "yarn",   "longrope"};
    return names[scaling];
}

/* Llama 3.1 keeps high frequencies, divides low ones by `factor` and blends between. */
static double llama3_frequency(const rope_config *rope, double frequency)
{
    double original = (double)rope->original_context;
    double wavelength = two_pi / frequency;
    if (wavelength > original / rope->low_freq_factor) return frequency / rope->factor;
    if (wavelength < original / rope->high_freq_factor) return frequency;
    double smooth = (original / wavelength - rope->low_freq_factor) /
                    (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

/* The pair that turns so many times within the original context. */
static double yarn_pair(const rope_config *rope, double turns)
{
    double wavelength = (double)rope->original_context / turns;
    return (double)rope->dim * log(wavelength / two_pi) / (2 * log(rope->theta));
}

/* YaRN (Peng et al., 2023) keeps the frequency of early pairs, divides that of late ones and blends
 * between. */
static double yarn_frequency(const rope_config *rope, double frequency, int64_t i)
{
    double low = yarn_pair(rope, rope->beta_fast), high = yarn_pair(rope, rope->beta_slow);
    if (!rope->beta_exact) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, (double)rope->dim - 1);
    if (low == high) high += 0.001;
    double divided = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return divided * frequency / rope->factor + (1 - divided) * frequency;
}

double rope_yarn_attention(double factor)
{
    return factor <= 1 ? 1 : 1 + 0.1 * log(factor);
}

/* Dynamic NTK raises the base once a sequence is longer than the model was trained for. */
static double dynamic_theta(const rope_config *rope, int64_t length)
{
    if (length <= rope->original_context) return rope->theta;
    double dim = (double)rope->dim;
    double stretch =
        rope->factor * (double)length / (double)rope->original_context - (rope->factor - 1);
    return rope->theta * pow(stretch, dim / (dim - 2));
}

/* What pair i turns by from one position to the next. */
static double frequency_of(const rope_config *rope, double theta, int64_t i)
{
    double frequency = pow(theta, -2.0 * (double)i / (double)rope->dim);
    if (rope->scaling == ROPE_LINEAR) frequency /= rope->factor;
    if (rope->scaling == ROPE_LLAMA3) frequency = llama3_frequency(rope, frequency);
    if (rope->scaling == ROPE_YARN) frequency = yarn_frequency(rope, frequency, i);
    if (rope->divisors) frequency /= (double)rope->divisors[i];
    return frequency;
}

void rope_inverse_frequencies(const rope_config *rope, int64_t length, float *inverse_frequencies)
{
    rope_config at = *rope;
    double theta = rope->scaling == ROPE_DYNAMIC ? dynamic_theta(rope, length) : rope->theta;
    if (rope->scaling == ROPE_LONGROPE && length > rope->original_context)
        at.divisors = rope->long_divisors;
    for (int64_t i = 0; i < rope->dim / 2; i++)
        inverse_frequencies[i] = (float)frequency_of(&at, theta, i);
}

float rope_divisor(const rope_config *rope, int64_t i)
{
    rope_config plain = *rope;
    plain.scaling = ROPE_DEFAULT;
    plain.divisors = NULL;
    double unscaled = frequency_of(&plain, rope->theta, i);
    double scaled = frequency_of(rope, rope->theta, i);
    float divisor = (float)(unscaled / scaled), below = nextafterf(divisor, 0);
    const float near[] = {divisor, below, nextafterf(divisor, INFINITY)};
    for (int k = 0; k < 3; k++) { /* rounding twice may miss by one */
        if ((float)(unscaled / (double)near[k]) == (float)scaled) return near[k];
    }
    return divisor;
}

void rope_table_row(const rope_config *rope, const float *inverse_frequencies, int64_t position,
                    float *row)
{
    int64_t half = rope->dim / 2;
    double scale = rope->attention_factor == 0 ? 1 : rope->attention_factor;
    for (int64_t i = 0; i < half; i++) {
        float angle = (float)position * inverse_frequencies[i];
        row[i] = (float)(cos((double)angle) * scale);
        row[half + i] = (float)(sin((double)angle) * scale);
    }
}

void rope_table_rows(const rope_config *rope, int64_t length, int64_t position, int64_t count,
                     float *rows)
{
    float inverse_frequencies[ROPE_MAX_DIM / 2];
    rope_inverse_frequencies(rope, length, inverse_frequencies);
    for (int64_t i = 0; i < count; i++)
        rope_table_row(rope, inverse_frequencies, position + i, rows + i * rope->dim);
}
