/* Sampling settings for text that a person reads. */
#ifndef QUIPU_ENGINE_SAMPLING_H
#define QUIPU_ENGINE_SAMPLING_H

#include "quipu.h"

/* Where the model's files have neither temperature, top_k, top_p nor min_p, replaces those of the
 * four that are neutral by 0.8, 40, 0.95 and 0.05, which are llama.cpp's defaults. At temperature 1
 * many tokens that are unlikely each are likely together, so that every few words one is drawn. The
 * sources stay QP_FROM_NEUTRAL: anything that is set takes precedence, before and after. */
void sampling_exclude_unlikely(qp_sampling *sampling);

#endif
