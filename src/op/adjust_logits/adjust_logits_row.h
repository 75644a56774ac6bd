/* A part of one row of adjust_logits: the reference and, compiled for wider vectors, the variants.
 *
 * The loops have no branch that depends on a token, so that the compiler turns them into vectors.
 */
#pragma once

#include "op/adjust_logits/adjust_logits.h"
#include "op/adjust_logits/adjust_proposed.h"
#include "op/row.h"

#include <math.h>

typedef struct adjust_penalties {
    float repetition, presence, frequency;
} adjust_penalties;

/* v[i] += bias[i] */
static inline void adjust_bias(float *restrict v, const float *restrict bias, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        v[i] += bias[i];
}

static inline void adjust_penalise(float *restrict v, const int32_t *restrict history, int64_t n,
                                   adjust_penalties with)
{
    for (int64_t i = 0; i < n; i++) {
        const int32_t seen = history[i], times = seen / ADJUST_ONCE;
        const float divided = v[i] / with.repetition, multiplied = v[i] * with.repetition;
        const float repeated = v[i] > 0 ? divided : multiplied;
        const float counted = repeated - (with.presence + with.frequency * (float)times);
        const float penalised = times ? counted : repeated;
        v[i] = seen ? penalised : v[i];
    }
}

/* The logits of the tokens that were proposed before a row, as they were before penalties. */
typedef struct adjust_proposed {
    int32_t tokens[ADJUST_MAX_PROPOSED];
    float logits[ADJUST_MAX_PROPOSED];
    int count;
} adjust_proposed;

/* Those of them that are in [first, first + n) of the row's logits v. */
static inline void adjust_find_proposed(const op_call *call, row_span span, const float *v,
                                        adjust_proposed *out)
{
    const int32_t *uses = call->tensors[ADJUST_LOGITS_USES].data;
    const int32_t *last = call->tensors[ADJUST_LOGITS_LAST].data;
    out->count = 0;
    for (int64_t row = span.row; uses[row] & ADJUST_PROPOSED; row--) {
        const int64_t at = last[row] - span.first;
        if (at < 0 || at >= span.count) continue;
        out->tokens[out->count] = last[row];
        out->logits[out->count++] = v[at];
    }
}

/* Penalises them again, each with what the history has and all times that it was proposed. */
static inline void adjust_penalise_proposed(const adjust_proposed *p, float *v,
                                            const int32_t *history, int64_t first,
                                            adjust_penalties with)
{
    for (int i = 0; i < p->count; i++) {
        int32_t seen = history[p->tokens[i] - first];
        float logit = p->logits[i];
        for (int j = 0; j < p->count; j++)
            if (p->tokens[j] == p->tokens[i]) seen = (seen | ADJUST_SEEN) + ADJUST_ONCE;
        adjust_penalise(&logit, &seen, 1, with);
        v[p->tokens[i] - first] = logit;
    }
}

/* v[i] = -inf where bit first + i of `allowed` is not set. */
static inline void adjust_mask(float *restrict v, const int32_t *restrict allowed, int64_t first,
                               int64_t n)
{
    for (int64_t i = 0; i < n;) {
        const uint32_t word = (uint32_t)allowed[(first + i) / 32];
        const int64_t bit = (first + i) % 32, left = n - i < 32 - bit ? n - i : 32 - bit;
        for (int64_t j = 0; j < left; j++)
            v[i + j] = word >> (bit + j) & 1 ? v[i + j] : -INFINITY;
        i += left;
    }
}

/* A row's elements [span.first, span.first + span.count). */
static inline void adjust_span(const op_call *call, row_span span)
{
    const tensor *t = call->tensors;
    const int64_t row = span.row, first = span.first;
    const int32_t uses = ((const int32_t *)t[ADJUST_LOGITS_USES].data)[row];
    const int64_t slot = ((const int32_t *)t[ADJUST_LOGITS_SLOTS].data)[row];
    float *logits = (float *)tensor_row(&t[ADJUST_LOGITS_LOGITS], row) + first;
    if (!uses) return;
    int32_t *history = (int32_t *)tensor_row(&t[ADJUST_LOGITS_HISTORY], slot) + first;
    if (uses & ADJUST_COUNT) {
        const int64_t token = ((const int32_t *)t[ADJUST_LOGITS_LAST].data)[row] - first;
        if (token >= 0 && token < span.count)
            history[token] = (history[token] | ADJUST_SEEN) + ADJUST_ONCE;
    }
    if (uses & ADJUST_BIAS)
        adjust_bias(logits, (const float *)tensor_row(&t[ADJUST_LOGITS_BIAS], slot) + first,
                    span.count);
    if (uses & ADJUST_PENALISE) {
        const adjust_penalties with = {((const float *)t[ADJUST_LOGITS_REPETITIONS].data)[row],
                                       ((const float *)t[ADJUST_LOGITS_PRESENCES].data)[row],
                                       ((const float *)t[ADJUST_LOGITS_FREQUENCIES].data)[row]};
        adjust_proposed proposed;
        adjust_find_proposed(call, span, logits, &proposed);
        adjust_penalise(logits, history, span.count, with);
        adjust_penalise_proposed(&proposed, logits, history, first, with);
    }
    if (uses & ADJUST_MASK)
        adjust_mask(logits, tensor_row(&t[ADJUST_LOGITS_ALLOWED], slot), first, span.count);
}

static inline void adjust_units(const op_call *call)
{
    const int64_t n = call->tensors[ADJUST_LOGITS_LOGITS].shape[1];
    for (int64_t unit = call->begin; unit < call->end;) {
        row_span span = row_span_at(unit, call->end, n);
        adjust_span(call, span);
        unit += span.count;
    }
}
