/* Kernels for tests in place of the usual ones: which models they are for, and those of batches
 * whose warps sleep at random. */
#ifndef QUIPU_TESTS_KERNELS_FOR_TESTS_H
#define QUIPU_TESTS_KERNELS_FOR_TESTS_H

#include "generate/cuda_mega_parts.h"
#include "generate/engine.h"

#include <stdio.h>

/* QP_UNSUPPORTED where there is no megakernel for tests of the engine's model: they are made for
 * heads of 64, caches in F16, and weights in BF16, whose x is in registers, or quantised. */
static inline qp_status check_kernels_for_tests(const qp_engine *engine, qp_error *error)
{
    const cuda_mega *m = &engine->mega;
    const model_config *c = &engine->plan.config;
    if (!m->kernel) return error_set(error, QP_UNSUPPORTED, "%s", m->why_not);
    if (c->head_dim == 64 && engine->plan.options.kv_type == DTYPE_F16 &&
        (m->quantized || (!mega_is_half(engine->model) && c->hidden_size <= MEGA_BLOCK)))
        return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "the kernels for tests are for heads of 64, a cache in F16, and weights that "
                     "are quantised or BF16 with a hidden size of %d at most; try "
                     "synthetic:tiny:BF16",
                     MEGA_BLOCK);
}

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
