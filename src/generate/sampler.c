/* Picks the next token: see sampler.h.
 *
 * Penalties as the field has them: repetition (Keskar et al., CTRL, 2019) divides a positive logit
 * and multiplies a negative one, for tokens of prompt and answer; presence and frequency (OpenAI's
 * API) are subtracted, for tokens of the answer.
 */
#include "generate/sampler.h"

#include <stdlib.h>
#include <string.h>

qp_status sampler_init(sampler *s, qp_engine *engine, const qp_sampling *sampling, qp_error *error)
{
    size_t n = (size_t)engine->plan.config.vocab_size;
    *s = (sampler){.engine = engine, .sampling = sampling};
    for (size_t i = 0; i < sampling->n_logit_bias; i++) {
        int32_t token = sampling->logit_bias[i].token;
        if (token >= 0 && (size_t)token < n) continue;
        return error_set(error, QP_INVALID,
                         "the logit bias names token %d, but the vocabulary has the ids 0 to %zu",
                         token, n - 1);
    }
    s->counts = calloc(n, sizeof *s->counts);
    s->seen = calloc(n, sizeof *s->seen);
    return s->counts && s->seen ? QP_OK : error_no_memory(error, "the sampler", n * 5);
}

void sampler_free(sampler *s)
{
    free(s->counts);
    free(s->seen);
    *s = (sampler){0};
}

void sampler_see(sampler *s, int32_t token)
{
    s->seen[token] = true;
}

static void penalise(const sampler *s, float *logits)
{
    const double *value = s->sampling->value;
    float repetition = (float)value[QP_REPETITION_PENALTY];
    float presence = (float)value[QP_PRESENCE_PENALTY];
    float frequency = (float)value[QP_FREQUENCY_PENALTY];
    if (repetition == 1 && presence == 0 && frequency == 0) return;
    for (int64_t i = 0; i < s->engine->plan.config.vocab_size; i++) {
        if (!s->seen[i]) continue;
        logits[i] = logits[i] > 0 ? logits[i] / repetition : logits[i] * repetition;
        if (s->counts[i]) logits[i] -= presence + frequency * (float)s->counts[i];
    }
}

/* A batch of one row of logits, with its settings. */
static void set_row(const sampler *s, batch *b, size_t position)
{
    const double *value = s->sampling->value;
    batch_clear(b);
    batch_want(b, 0);
    ((int64_t *)b->of[PLAN_SEEDS])[0] = (int64_t)value[QP_SEED];
    batch_i32(b, PLAN_SAMPLE_POSITIONS)[0] = (int32_t)position;
    ((float *)b->of[PLAN_TEMPERATURES])[0] = (float)value[QP_TEMPERATURE];
    batch_i32(b, PLAN_TOP_KS)[0] = (int32_t)value[QP_TOP_K];
    ((float *)b->of[PLAN_TOP_PS])[0] = (float)value[QP_TOP_P];
    ((float *)b->of[PLAN_MIN_PS])[0] = (float)value[QP_MIN_P];
}

int32_t sampler_pick(sampler *s, const float *logits, size_t position)
{
    qp_engine *e = s->engine;
    uint64_t begin = trace_begin_sampling(e->trace);
    float *row = executor_logits(&e->executor);
    memcpy(row, logits, (size_t)e->plan.config.vocab_size * sizeof *row);
    for (size_t i = 0; i < s->sampling->n_logit_bias; i++)
        row[s->sampling->logit_bias[i].token] += s->sampling->logit_bias[i].bias;
    penalise(s, row);
    set_row(s, &e->batch, position);
    executor_run(&e->executor, &e->batch, e->sample_step, e->sample_step + 1);
    int32_t token = *(const int32_t *)e->executor.memory.data[PLAN_NEXT];
    s->seen[token] = true;
    s->counts[token]++;
    trace_end_sampling(e->trace, begin);
    return token;
}
