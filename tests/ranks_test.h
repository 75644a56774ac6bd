/* Suites of ranks on GPUs: which GPUs they need, and how near two ranks' logits are to one's. */
#pragma once

#include "engine_test.h"
#include "gpu_test.h"

enum { RANKS = 2 };

static qp_error error;

static inline int count_gpus(void)
{
    int count;
    return gpu_is_here() && cuda_device_count(&count, NULL) == QP_OK ? count : 0;
}

#define require_gpus()                                                                             \
    do {                                                                                           \
        if (count_gpus() < RANKS) skip_because("ranks need two GPUs");                             \
    } while (0)

static inline void assert_near(const float *a, const float *b, size_t n)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)a[i] * (double)a[i];
    }
    assert_true(difference <= 0.02 * 0.02 * norm);
}
