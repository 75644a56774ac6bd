/* A part of one row of adjust_logits: the reference and, compiled for wider vectors, the variants.
 *
 * The loops have no branch that depends on a token, so that the compiler turns them into vectors.
 */
#ifndef QUIPU_OP_ADJUST_LOGITS_ROW_H
#define QUIPU_OP_ADJUST_LOGITS_ROW_H

#include "op/adjust_logits/adjust_logits.h"
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
        adjust_penalise(logits, history, span.count, with);
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

#endif
