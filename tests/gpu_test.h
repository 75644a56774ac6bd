/* Whether there is a GPU for tests; suites skip tests that need one. */
#ifndef QUIPU_TESTS_GPU_TEST_H
#define QUIPU_TESTS_GPU_TEST_H

#include "cuda/driver.h"

#include <stdbool.h>

/* One that runs all kernels, those of compute capability 9.0 alone too. */
static inline bool gpu_is_here(void)
{
    cuda_device device;
    bool here = cuda_device_open(&device, NULL) == QP_OK && cuda_device_is_hopper(&device);
    cuda_device_close(&device);
    return here;
}

#endif
