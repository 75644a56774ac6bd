/* Kernels for tests, whose warps sleep at random, in place of the usual ones. */
#ifndef QUIPU_TESTS_DAWDLING_H
#define QUIPU_TESTS_DAWDLING_H

#include "generate/engine.h"

#include <stdio.h>

/* Passes over 9 to 64 sequences, from the next on. Of an engine that has run none: what is captured
 * as a graph keeps its kernels. */
static inline qp_status dawdle_in_batches(qp_engine *engine, qp_error *error)
{
    static const int columns[] = {16, 32, 64};
    for (int i = 0; i < 3; i++) {
        char name[40];
        snprintf(name, sizeof name, "run_linear_chain_%d_dawdling", columns[i]);
        TRY(cuda_device_function(&engine->device, "linear_chain_dawdling", name,
                                 engine->device.shared_bytes,
                                 &engine->cuda.ops.helpers[CUDA_HELPER_CHAIN + i], error));
    }
    return QP_OK;
}

#endif
