/* Picks tokens from logits by the definitions, for comparison with the tokens that machines choose.
 * Biases and penalties are computed here; the draw is the reference of "sampling".
 */
#pragma once

#include "op/run.h"
#include "op/sampling/sampling.h"

#include "test.h"

typedef struct picker {
    const qp_sampling *sampling;
    int64_t vocab_size;
    int *times; /* [vocab_size]: of a token in the answer */
    bool *seen; /* [vocab_size]: there or in the prompt */
    float *row; /* [vocab_size] */
} picker;

static inline picker picker_open(int64_t vocab_size, const qp_sampling *sampling)
{
    const size_t n = (size_t)vocab_size;
    return (picker){.sampling = sampling,
                    .vocab_size = vocab_size,
                    .times = calloc(n, sizeof(int)),
                    .seen = calloc(n, sizeof(bool)),
                    .row = calloc(n, sizeof(float))};
}

static inline void picker_close(picker *p)
{
    free(p->times);
    free(p->seen);
    free(p->row);
}

static inline void picker_see(picker *p, int32_t token)
{
    p->seen[token] = true;
}

static inline void picker_adjust(picker *p)
{
    const double *value = p->sampling->value;
    const float repetition = (float)value[QP_REPETITION_PENALTY];
    const float presence = (float)value[QP_PRESENCE_PENALTY];
    const float frequency = (float)value[QP_FREQUENCY_PENALTY];
    for (size_t i = 0; i < p->sampling->n_logit_bias; i++)
        p->row[p->sampling->logit_bias[i].token] += p->sampling->logit_bias[i].bias;
    for (int64_t i = 0; i < p->vocab_size; i++) {
        if (!p->seen[i]) continue;
        p->row[i] = p->row[i] > 0 ? p->row[i] / repetition : p->row[i] * repetition;
        if (p->times[i]) p->row[i] -= presence + frequency * (float)p->times[i];
    }
}

/* The token at `position` for these logits (vocab_size; may be p->row), of which it may choose
 * those of the mask `allowed` (NULL: all); it is counted. */
static inline int32_t picker_pick_from(picker *p, const float *logits, const uint32_t *allowed,
                                       size_t position)
{
    const double *value = p->sampling->value;
    int64_t seed = (int64_t)value[QP_SEED];
    int32_t at = (int32_t)position, top_k = (int32_t)value[QP_TOP_K], token;
    float temperature = (float)value[QP_TEMPERATURE], top_p = (float)value[QP_TOP_P];
    float min_p = (float)value[QP_MIN_P];
    if (logits != p->row) memcpy(p->row, logits, (size_t)p->vocab_size * sizeof *logits);
    picker_adjust(p);
    for (int64_t i = 0; allowed && i < p->vocab_size; i++)
        if (!(allowed[i / 32] >> (i % 32) & 1)) p->row[i] = -__builtin_inff();
    op_call call = {.end = 1};
    call.tensors[SAMPLING_LOGITS] = tensor_2d(p->row, DTYPE_F32, 1, p->vocab_size);
    call.tensors[SAMPLING_SEEDS] = tensor_1d(&seed, DTYPE_I64, 1);
    call.tensors[SAMPLING_POSITIONS] = tensor_1d(&at, DTYPE_I32, 1);
    call.tensors[SAMPLING_TEMPERATURES] = tensor_1d(&temperature, DTYPE_F32, 1);
    call.tensors[SAMPLING_TOP_KS] = tensor_1d(&top_k, DTYPE_I32, 1);
    call.tensors[SAMPLING_TOP_PS] = tensor_1d(&top_p, DTYPE_F32, 1);
    call.tensors[SAMPLING_MIN_PS] = tensor_1d(&min_p, DTYPE_F32, 1);
    call.tensors[SAMPLING_IDS] = tensor_1d(&token, DTYPE_I32, 1);
    const size_t bytes = op_sampling.scratch_bytes(&call);
    void *scratch = malloc(bytes);
    op_run(&op_sampling, op_sampling.reference, &call, NULL, scratch, bytes);
    free(scratch);
    p->seen[token] = true;
    p->times[token]++;
    return token;
}

static inline int32_t picker_pick(picker *p, const float *logits, size_t position)
{
    return picker_pick_from(p, logits, NULL, position);
}
