/* Samplers: see sampler.h. */
#define _GNU_SOURCE /* strdup */
#include "engine/sampler.h"

#include "base/sized.h"
#include "engine/engine.h"
#include "engine/pick.h"
#include "op/adjust_logits/adjust_logits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static qp_status check_biases(const qp_engine *e, const qp_sampling *sampling, qp_error *error)
{
    const int64_t vocab_size = e->program.config.vocab_size;
    for (size_t i = 0; i < sampling->n_logit_bias; i++) {
        const qp_logit_bias *bias = &sampling->logit_bias[i];
        if (bias->token < 0 || bias->token >= vocab_size)
            return error_set(
                error, QP_INVALID,
                "the logit bias names token %d, but the vocabulary has the ids 0 to %lld",
                bias->token, (long long)vocab_size - 1);
        if (!(bias->bias < INFINITY))
            return error_set(
                error, QP_INVALID,
                "the logit bias of token %d must be a finite number, or minus infinity "
                "to exclude the token, found %g",
                bias->token, (double)bias->bias);
    }
    return QP_OK;
}

static qp_status copy_biases(qp_sampler *s, const qp_logit_bias *biases, size_t n, qp_error *error)
{
    const size_t bytes = n * sizeof *biases;
    qp_logit_bias *copy = bytes ? malloc(bytes) : NULL;
    if (bytes && !copy) return error_no_memory(error, "the sampler", bytes);
    if (bytes) memcpy(copy, biases, bytes);
    free(s->biases);
    s->biases = copy;
    s->n_biases = n;
    return QP_OK;
}

static void free_breakers(qp_sampler *s)
{
    for (size_t i = 0; i < s->n_breakers; i++)
        free(s->breakers[i]);
    free(s->breakers);
    free(s->broken.tokens);
}

static qp_status copy_breakers(qp_sampler *s, const qp_sampling *sampling, qp_error *error)
{
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    const bool given = sampling->dry_breakers != NULL;
    const char *const *texts = given ? sampling->dry_breakers : usual;
    const size_t n = given ? sampling->n_dry_breakers : sizeof usual / sizeof *usual;
    if (s->value[QP_DRY_MULTIPLIER] == 0) return QP_OK;
    s->breakers = calloc(n + 1, sizeof *s->breakers);
    while (s->breakers && s->n_breakers < n) {
        const size_t length = strlen(texts[s->n_breakers]);
        if (!(s->breakers[s->n_breakers] = strdup(texts[s->n_breakers]))) break;
        if (length) s->broken.last[(uint8_t)texts[s->n_breakers][length - 1]] = true;
        s->n_breakers++;
    }
    s->broken.tokens = calloc((size_t)s->engine->program.options.context + 1, sizeof(int32_t));
    if (s->n_breakers == n && s->breakers && s->broken.tokens) return QP_OK;
    return error_no_memory(error, "the sampler", n * sizeof *s->breakers);
}

static void free_sampler(engine_object *object)
{
    qp_sampler *s = (qp_sampler *)object;
    free_breakers(s);
    free(s->biases);
    free(s->allowed);
    free(s);
}

/* `sampling`: of this library's size. */
static qp_status open_sampler(qp_engine *e, const qp_sampling *sampling, qp_sampler **out,
                              qp_error *error)
{
    TRY(check_biases(e, sampling, error));
    if (sampling->value[QP_MIROSTAT] == 1)
        return error_set(error, QP_UNSUPPORTED,
                         "mirostat may be 0 or 2: its first version is not built");
    qp_sampler *s = calloc(1, sizeof *s);
    if (!s) return error_no_memory(error, "the sampler", sizeof *s);
    engine_add_object(e, &s->object, free_sampler);
    s->engine = e;
    s->id = ++e->n_samplers;
    memcpy(s->value, sampling->value, sizeof s->value);
    memcpy(s->stops, sampling->stop_tokens, sizeof s->stops);
    s->n_stops = sampling->n_stop_tokens;
    qp_status status = copy_biases(s, sampling->logit_bias, sampling->n_logit_bias, error);
    s->mu = 2 * s->value[QP_MIROSTAT_TAU];
    if (status == QP_OK) status = copy_breakers(s, sampling, error);
    if (status == QP_OK)
        *out = s;
    else
        engine_close_object(e, &s->object);
    return status;
}

qp_status sampler_set_biases(qp_engine *e, qp_sampler *s, const qp_logit_bias *biases, size_t n,
                             qp_error *error)
{
    TRY(copy_biases(s, biases, n, error));
    s->id = ++e->n_samplers; /* slots have the old biases */
    return QP_OK;
}

qp_status engine_open_sampler(qp_engine *e, const qp_sampling *given, qp_sampler **out,
                              qp_error *error)
{
    qp_sampling sampling;
    *out = NULL;
    TRY(SIZED_READ(qp_sampling, given, &sampling, error));
    return open_sampler(e, &sampling, out, error);
}

qp_status qp_sampler_open(qp_engine *e, const qp_sampling *given, qp_sampler **out, qp_error *error)
{
    *out = NULL;
    TRY(engine_enter_within(e, error));
    const qp_status status = engine_open_sampler(e, given, out, error);
    engine_leave(e);
    return status;
}

void qp_sampler_close(qp_sampler *s)
{
    if (s) engine_close_object(s->engine, &s->object);
}

static qp_status allow(qp_sampler *s, const uint32_t *allowed, qp_error *error)
{
    const size_t bytes =
        (size_t)ADJUST_MASK_WORDS(s->engine->program.config.vocab_size) * sizeof *s->allowed;
    if (allowed && s->allowed && memcmp(s->allowed, allowed, bytes) == 0) return QP_OK;
    s->masks++;
    if (!allowed) {
        free(s->allowed);
        s->allowed = NULL;
        return QP_OK;
    }
    if (!s->allowed) s->allowed = malloc(bytes);
    if (!s->allowed) return error_no_memory(error, "the mask", bytes);
    memcpy(s->allowed, allowed, bytes);
    return QP_OK;
}

qp_status qp_sampler_allow(qp_sampler *s, const uint32_t *allowed, qp_error *error)
{
    TRY(engine_enter_within(s->engine, error));
    const qp_status status = allow(s, allowed, error);
    engine_leave(s->engine);
    return status;
}

static bool penalises(const qp_sampler *s)
{
    return s->value[QP_REPETITION_PENALTY] != 1 || s->value[QP_PRESENCE_PENALTY] != 0 ||
           s->value[QP_FREQUENCY_PENALTY] != 0;
}

/* How logits are adjusted: bits of op/adjust_logits. */
static int32_t adjustments(const qp_sampler *s)
{
    return (s->n_biases ? ADJUST_BIAS : 0) | (penalises(s) ? ADJUST_PENALISE : 0) |
           (s->allowed ? ADJUST_MASK : 0);
}

bool sampler_picks(const qp_sampler *s)
{
    return pick_is_needed(s->value);
}

bool sampler_chooses(const qp_sampler *s)
{
    return s->value[QP_TEMPERATURE] != 0 || adjustments(s) || sampler_picks(s);
}

static void set_float(batch *b, plan_tensor_id id, int64_t row, double value)
{
    ((float *)b->of[id])[row] = (float)value;
}

void sampler_set_row(const qp_sampler *s, batch *b, int64_t row, int32_t slot, size_t position)
{
    const bool picks = sampler_picks(s); /* what the machine chooses is not used */
    ((int64_t *)b->of[PLAN_SEEDS])[row] = (int64_t)s->value[QP_SEED];
    batch_i32(b, PLAN_SAMPLE_POSITIONS)[row] = (int32_t)position;
    set_float(b, PLAN_TEMPERATURES, row, picks ? 0 : s->value[QP_TEMPERATURE]);
    batch_i32(b, PLAN_TOP_KS)[row] = (int32_t)s->value[QP_TOP_K];
    set_float(b, PLAN_TOP_PS, row, s->value[QP_TOP_P]);
    set_float(b, PLAN_MIN_PS, row, s->value[QP_MIN_P]);
    batch_i32(b, PLAN_SLOTS)[row] = slot;
    batch_i32(b, PLAN_USES)[row] = picks ? 0 : adjustments(s);
    set_float(b, PLAN_REPETITIONS, row, s->value[QP_REPETITION_PENALTY]);
    set_float(b, PLAN_PRESENCES, row, s->value[QP_PRESENCE_PENALTY]);
    set_float(b, PLAN_FREQUENCIES, row, s->value[QP_FREQUENCY_PENALTY]);
}

static void count(int32_t *history, int32_t token, bool in_answer)
{
    history[token] = (history[token] | ADJUST_SEEN) + (in_answer ? ADJUST_ONCE : 0);
}

static qp_status write_history(const qp_sampler *s, const sampler_history *h, const machine *m,
                               int64_t slot, int32_t *scratch, qp_error *error)
{
    const size_t bytes = (size_t)s->engine->program.config.vocab_size * sizeof *scratch;
    memset(scratch, 0, bytes);
    for (size_t i = 0; i < h->n_held; i++)
        count(scratch, h->held[i], i >= s->answer);
    for (size_t i = 0; i < h->n_more; i++)
        count(scratch, h->more[i], h->n_held + i >= s->answer);
    return machine_write(m, PLAN_HISTORY, slot, scratch, bytes, error);
}

static qp_status write_biases(const qp_sampler *s, const machine *m, int64_t slot, float *scratch,
                              qp_error *error)
{
    const size_t bytes = (size_t)s->engine->program.config.vocab_size * sizeof *scratch;
    memset(scratch, 0, bytes);
    for (size_t i = 0; i < s->n_biases; i++)
        scratch[s->biases[i].token] += s->biases[i].bias;
    return machine_write(m, PLAN_BIAS, slot, scratch, bytes, error);
}

qp_status sampler_prepare(const qp_sampler *s, sampler_slot *state, const sampler_history *h,
                          const machine *m, batch *b, int64_t row, void *scratch, qp_error *error)
{
    int32_t *uses = &batch_i32(b, PLAN_USES)[row];
    const int64_t slot = batch_i32(b, PLAN_SLOTS)[row], all = (int64_t)(h->n_held + h->n_more);
    const bool known = state->sampler == s->id, counts = m->type->counts_chosen;
    if (*uses & ADJUST_BIAS && !known) TRY(write_biases(s, m, slot, scratch, error));
    if (*uses & ADJUST_MASK && (!known || state->mask != s->masks))
        TRY(machine_write(m, PLAN_ALLOWED, slot, s->allowed,
                          (size_t)ADJUST_MASK_WORDS(s->engine->program.config.vocab_size) * 4,
                          error));
    if (*uses & ADJUST_PENALISE) {
        const bool lacks_last = h->n_more == 1 && state->counted == (int64_t)h->n_held;
        if (known && lacks_last && !h->shared && !(counts && batch_tokens(b) == 1))
            *uses |= ADJUST_COUNT;
        else if (!known || state->counted != all)
            TRY(write_history(s, h, m, slot, scratch, error));
    }
    *state = (sampler_slot){.sampler = s->id, .mask = s->masks, .counted = all};
    return QP_OK;
}
