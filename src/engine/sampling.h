/* Sampling settings for text that a person reads. */
#pragma once

#include "quipu.h"

/* llama.cpp's defaults. */
#define SAMPLING_LIKELY_TEMPERATURE 0.8
#define SAMPLING_LIKELY_TOP_K       40
#define SAMPLING_LIKELY_TOP_P       0.95
#define SAMPLING_LIKELY_MIN_P       0.05

/* Where the model's files have neither temperature, top_k, top_p nor min_p, replaces those of the
 * four that were not set by the values above; the sources stay QP_FROM_NEUTRAL. At temperature 1
 * many tokens that are unlikely each are likely together, so that every few words one is drawn. A
 * temperature of 0 in the files says nothing about how to draw, if a caller sets another. */
void sampling_exclude_unlikely(const qp_engine *engine, qp_sampling *sampling);
