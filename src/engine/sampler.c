/* Picks the next token: see sampler.h.
 *
 * Penalties as the field has them: repetition (Keskar et al., CTRL, 2019) divides a positive logit
 * and multiplies a negative one, for tokens of prompt and answer; presence and frequency (OpenAI's
 * API) are subtracted, for tokens of the answer.
 */
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

qp_status sampler_init(sampler *s, qp_engine *engine, const qp_sampling *sampling, qp_error *error)
{
    size_t n = (size_t)engine->plan.config.vocab_size;
    *s = (sampler){.engine = engine, .sampling = sampling};
    s->history = calloc(n, sizeof *s->history);
    if (sampling->n_logit_bias > 0) s->bias = calloc(n, sizeof *s->bias);
    if (!s->history || (sampling->n_logit_bias > 0 && !s->bias))
        return error_no_memory(error, "the sampler", n * 8);
    for (size_t i = 0; i < sampling->n_logit_bias; i++) {
        int32_t token = sampling->logit_bias[i].token;
        if (token < 0 || (size_t)token >= n)
            return error_set(
                error, QP_INVALID,
                "the logit bias names token %d, but the vocabulary has the ids 0 to %zu", token,
                n - 1);
        s->bias[token] += sampling->logit_bias[i].bias;
        if (!(s->bias[token] < INFINITY))
            return error_set(
                error, QP_INVALID,
                "the logit bias of token %d must be a finite number, or minus infinity "
                "to exclude the token, found %g",
                token, (double)s->bias[token]);
    }
    return QP_OK;
}

void sampler_free(sampler *s)
{
    free(s->history);
    free(s->bias);
    *s = (sampler){0};
}

void sampler_see(sampler *s, int32_t token)
{
    s->history[token] |= 1;
}

static bool penalises(const sampler *s)
{
    const double *value = s->sampling->value;
    return value[QP_REPETITION_PENALTY] != 1 || value[QP_PRESENCE_PENALTY] != 0 ||
           value[QP_FREQUENCY_PENALTY] != 0;
}

static void penalise(const sampler *s, float *logits)
{
    const double *value = s->sampling->value;
    float repetition = (float)value[QP_REPETITION_PENALTY];
    float presence = (float)value[QP_PRESENCE_PENALTY];
    float frequency = (float)value[QP_FREQUENCY_PENALTY];
    for (int64_t i = 0; i < s->engine->plan.config.vocab_size; i++) {
        if (!s->history[i]) continue;
        logits[i] = logits[i] > 0 ? logits[i] / repetition : logits[i] * repetition;
        uint32_t times = s->history[i] >> 1;
        if (times) logits[i] -= presence + frequency * (float)times;
    }
}

void sampler_change(const sampler *s, float *logits)
{
    for (int64_t i = 0; s->bias && i < s->engine->plan.config.vocab_size; i++)
        logits[i] += s->bias[i];
    if (penalises(s)) penalise(s, logits);
}

void sampler_set_row(const sampler *s, batch *b, int64_t row, size_t position)
{
    const double *value = s->sampling->value;
    ((int64_t *)b->of[PLAN_SEEDS])[row] = (int64_t)value[QP_SEED];
    batch_i32(b, PLAN_SAMPLE_POSITIONS)[row] = (int32_t)position;
    ((float *)b->of[PLAN_TEMPERATURES])[row] = (float)value[QP_TEMPERATURE];
    batch_i32(b, PLAN_TOP_KS)[row] = (int32_t)value[QP_TOP_K];
    ((float *)b->of[PLAN_TOP_PS])[row] = (float)value[QP_TOP_P];
    ((float *)b->of[PLAN_MIN_PS])[row] = (float)value[QP_MIN_P];
}

void sampler_count(sampler *s, int32_t token)
{
    s->history[token] = (s->history[token] | 1) + 2;
}

int32_t sampler_pick(sampler *s, const float *logits, size_t position)
{
    const double *value = s->sampling->value;
    qp_engine *e = s->engine;
    uint64_t begin = trace_begin_sampling(e->trace);
    memcpy(e->chooser.row, logits, (size_t)e->plan.config.vocab_size * sizeof *logits);
    sampler_change(s, e->chooser.row);
    const choice_settings settings = {.seed = (int64_t)value[QP_SEED],
                                      .position = (int32_t)position,
                                      .temperature = (float)value[QP_TEMPERATURE],
                                      .top_k = (int32_t)value[QP_TOP_K],
                                      .top_p = (float)value[QP_TOP_P],
                                      .min_p = (float)value[QP_MIN_P]};
    int32_t token = chooser_choose_one(&e->chooser, &settings);
    sampler_count(s, token);
    trace_end_sampling(e->trace, begin);
    return token;
}

bool sampler_changes(const sampler *s)
{
    return penalises(s) || s->bias;
}

bool sampler_chooses(const sampler *s)
{
    return s->sampling->value[QP_TEMPERATURE] != 0 || sampler_changes(s);
}

void sampler_hand_over(const sampler *s, machine_penalties *penalties, machine_request *request)
{
    const double *value = s->sampling->value;
    request->choice = sampler_chooses(s) ? MACHINE_SAMPLED : MACHINE_LIKELIEST;
    request->stops = s->sampling->stop_tokens;
    request->n_stops = s->sampling->n_stop_tokens;
    *penalties = (machine_penalties){.fresh = true,
                                     .repetition = value[QP_REPETITION_PENALTY],
                                     .presence = value[QP_PRESENCE_PENALTY],
                                     .frequency = value[QP_FREQUENCY_PENALTY],
                                     .history = s->history,
                                     .bias = s->bias};
    request->penalties = sampler_changes(s) ? penalties : NULL;
}
