/* adjust_logits on the GPU: a logit a thread at a time. */
#pragma once

#include "op/adjust_logits/adjust_logits.h"
#include "op/adjust_logits/adjust_proposed.h"
#include "op/device.cuh"

/* What the history has of token i, and the times that it was proposed up to this row. */
DEVICE_FN int32_t times_seen(const op_call &call, int64_t row, int32_t i, int32_t seen)
{
    const int32_t *uses = (const int32_t *)call.tensors[ADJUST_LOGITS_USES].data;
    const int32_t *last = (const int32_t *)call.tensors[ADJUST_LOGITS_LAST].data;
    for (; uses[row] & ADJUST_PROPOSED; row--)
        if (last[row] == i) seen = (seen | ADJUST_SEEN) + ADJUST_ONCE;
    return seen;
}

/* One logit; the thread that has a row's token counts it, and no other thread reads that entry. */
DEVICE_FN void adjust_logit(const op_call &call, int64_t row, int32_t i, int32_t uses)
{
    const tensor *t = call.tensors;
    const int64_t slot = ((const int32_t *)t[ADJUST_LOGITS_SLOTS].data)[row];
    float *logit = (float *)device_row(t[ADJUST_LOGITS_LOGITS], row) + i, v = *logit;
    int32_t *history = (int32_t *)device_row(t[ADJUST_LOGITS_HISTORY], slot) + i;
    if (uses & ADJUST_COUNT && ((const int32_t *)t[ADJUST_LOGITS_LAST].data)[row] == i)
        *history = (*history | ADJUST_SEEN) + ADJUST_ONCE;
    if (uses & ADJUST_BIAS)
        v = __fadd_rn(v, ((const float *)device_row(t[ADJUST_LOGITS_BIAS], slot))[i]);
    const int32_t seen = uses & ADJUST_PENALISE ? times_seen(call, row, i, *history) : 0;
    const int32_t times = seen / ADJUST_ONCE;
    if (seen) {
        const float repetition = ((const float *)t[ADJUST_LOGITS_REPETITIONS].data)[row];
        v = v > 0 ? __fdiv_rn(v, repetition) : __fmul_rn(v, repetition);
    }
    if (times) {
        const float presence = ((const float *)t[ADJUST_LOGITS_PRESENCES].data)[row];
        const float frequency = ((const float *)t[ADJUST_LOGITS_FREQUENCIES].data)[row];
        v = __fsub_rn(v, __fadd_rn(presence, __fmul_rn(frequency, (float)times)));
    }
    if (uses & ADJUST_MASK) {
        const int32_t *allowed = (const int32_t *)device_row(t[ADJUST_LOGITS_ALLOWED], slot);
        if (!((uint32_t)allowed[i / 32] >> (i % 32) & 1)) v = -CUDART_INF_F;
    }
    *logit = v;
}

DEVICE_FN void adjust_logits_block(const op_call &call, int64_t begin, int64_t end)
{
    const int64_t n = call.tensors[ADJUST_LOGITS_LOGITS].shape[1];
    while (begin < end) {
        const int64_t row = begin / n, first = begin - row * n;
        const int64_t count = min(n - first, end - begin);
        const int32_t uses = ((const int32_t *)call.tensors[ADJUST_LOGITS_USES].data)[row];
        for (int64_t i = threadIdx.x; uses && i < count; i += blockDim.x)
            adjust_logit(call, row, (int32_t)(first + i), uses);
        begin += count;
    }
}
