/* Whether there is a GPU for tests; suites skip tests that need one. */
#pragma once

#include "test.h"

#include "cuda/driver.h"

#include <stdbool.h>

/* One that runs all kernels. */
static inline bool gpu_is_here(void)
{
    cuda_device device;
    bool here = cuda_device_open(&device, NULL) == QP_OK &&
                cuda_device_has(&device, cuda_features_of(9, 0));
    cuda_device_close(&device);
    return here;
}

/* Skips the running test where there is none. */
#define require_gpu()                                                                              \
    do {                                                                                           \
        if (!gpu_is_here()) skip_because("no GPU of compute capability 9.0");                      \
    } while (0)
