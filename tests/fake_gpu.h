/* For suites over the driver without a GPU (fake_cuda/README.md). */
#pragma once

#include "test.h"

#include "cuda/driver.h"

/* Skips the test where the driver is another one, or the program has no GPU code. */
static inline void require_fake_gpu(void)
{
    cuda_device device = {0};
    qp_engine *engine = NULL;
    const qp_engine_options options = {
        .size = sizeof options, .model = "synthetic:tiny:BF16", .threads = 1, .exec = "cuda"};
    bool fake = cuda_device_open(&device, NULL) == QP_OK && strstr(device.name, "fake");
    cuda_device_close(&device);
    if (fake) fake = qp_engine_open(&options, &engine, NULL) == QP_OK;
    qp_engine_close(engine);
    if (fake) return;
    skip_because("the build has no GPU code, or no driver without a GPU");
}
