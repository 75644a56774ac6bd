/* Kernels for tests in place of the usual ones: which models they are for, and those of batches
 * whose warps sleep at random. */
#ifndef QUIPU_TESTS_KERNELS_FOR_TESTS_H
#define QUIPU_TESTS_KERNELS_FOR_TESTS_H

#include "vm/mega/parts.h"
#include "engine/engine.h"

#include <stdio.h>

/* QP_UNSUPPORTED where there is no megakernel for tests of the engine's model: they are made for
 * heads of 64, caches in F16, and weights in BF16, whose x is in registers, or quantised; those
 * that make the likeliest tokens with weights in BF16 for heads of 128 too, `wide`. */
static inline qp_status check_kernels_for_tests(const qp_engine *engine, bool wide, qp_error *error)
{
    const cuda_mega *m = &engine->mega;
    const model_config *c = &engine->plan.config;
    bool half = mega_is_half(engine->model);
    if (!m->kernel) return error_set(error, QP_UNSUPPORTED, "%s", m->why_not);
    if ((c->head_dim == 64 || (wide && !m->quantized)) &&
        engine->plan.options.kv_type == DTYPE_F16 &&
        (m->quantized || (!half && c->hidden_size <= MEGA_BLOCK)))
        return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "there is no kernel for tests of this model, of these tokens: heads are 64 "
                     "(128 for the likeliest in BF16), the cache is F16, weights are quantised or "
                     "BF16 with a hidden size of %d at most; try synthetic:tiny:BF16",
                     MEGA_BLOCK);
}

/* A megakernel over the arguments of the usual one. */
static inline qp_status find_kernel_for_tests(qp_engine *engine, const char *image,
                                              const char *name, const mega_arguments *a,
                                              cuda_function *out, qp_error *error)
{
    int shared = a->stages * a->stage_bytes + (int)a->shared.bytes;
    return cuda_device_function(&engine->device, image, name, shared, out, error);
}

/* The megakernel of one sequence whose warps sleep, where check_kernels_for_tests() says that there
 * is one; of one that chooses tokens. */
static inline qp_status find_dawdling(qp_engine *engine, bool chooses, cuda_function *out,
                                      qp_error *error)
{
    const cuda_mega *m = &engine->mega;
    char image[40], name[40];
    snprintf(image, sizeof image, "mega%s%s_dawdling", m->quantized ? "_bricks" : "",
             chooses ? "_choosing" : "");
    snprintf(name, sizeof name, "mega_%d_F16_%d_dawdling", (int)engine->plan.config.head_dim,
             !m->quantized);
    return find_kernel_for_tests(engine, image, name, &m->arguments, out, error);
}

/* The same of two to eight sequences. */
static inline qp_status find_dawdling_batch(qp_engine *engine, cuda_function *out, qp_error *error)
{
    char name[40];
    snprintf(name, sizeof name, "mega_batch_%d_F16_dawdling", (int)engine->plan.config.head_dim);
    return find_kernel_for_tests(engine, "mega_batch_dawdling", name, &engine->mega.batch, out,
                                 error);
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
