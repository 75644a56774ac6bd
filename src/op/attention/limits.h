/* What else decides which positions a token sees, and bounds their scores: the second parameter of
 * the kernels of attention_limited.cu. See mask.h. */
#pragma once

#include <stdint.h>

typedef struct attention_limits {
    const uint32_t *mask; /* bits of all sequences; NULL: none */
    int32_t window;       /* the latest positions that a token sees; 0: all */
    float cap;            /* scaled scores s become cap * tanh(s / cap); 0: they stay */
} attention_limits;
