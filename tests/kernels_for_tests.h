/* Kernels that tests load in place of the program's: which models they support, and where to find
 * them. They are in images that only test programs contain; src/gpu_images.cmake lists them. */
#pragma once

#include "vm/mega/parts.h"
#include "machines_test.h"

#include <stdio.h>
#include <string.h>

/* QP_UNSUPPORTED if there is no megakernel for tests of the engine's model. There are some for
 * heads of 64, a cache in F16, and weights that are quantised, or in BF16 with a hidden size of one
 * block of columns; and, `wide`, for heads of 128, the likeliest tokens and weights in BF16; with
 * heads of 64, the likeliest tokens and weights in BF16 also for a cache in F8. Those of several
 * ranks read BF16 with heads of 64. */
static inline qp_status check_kernels_for_tests(const qp_engine *engine, bool wide, qp_error *error)
{
    const cuda_mega *m = mega_of(engine);
    const model_config *c = &engine->program.config;
    bool half = mega_is_half(&engine->program);
    if (!m) return error_set(error, QP_UNSUPPORTED, "the engine runs no megakernel");
    const bool ranks = engine->program.options.ranks > 1;
    if ((c->head_dim == 64 || (wide && !m->quantized && !ranks)) && !(ranks && m->quantized) &&
        (engine->program.options.kv_type == DTYPE_F16 ||
         (engine->program.options.kv_type == DTYPE_F8 && c->head_dim == 64)) &&
        (m->quantized || (!half && c->hidden_size <= MEGA_COLUMNS)))
        return QP_OK;
    return error_set(
        error, QP_UNSUPPORTED,
        "there is no kernel for tests of this model, of these tokens: heads are 64 "
        "(128 for the likeliest in BF16), the cache is F16 or F8, weights are quantised "
        "or BF16 with a hidden size of %d at most; try synthetic:tiny:BF16",
        MEGA_COLUMNS);
}

extern const cuda_image cuda_test_images[]; /* the last has no name */

/* Loads a kernel of a test image. Its module stays until the GPU's context ends. */
static inline qp_status find_test_kernel(const cuda_device *d, const char *image, const char *name,
                                         int shared_bytes, cuda_function *out, qp_error *error)
{
    cuda_module module;
    const cuda_image *i = cuda_test_images;
    TRY(cuda_device_enter(d, error));
    while (i->name && strcmp(i->name, image) != 0)
        i++;
    if (!i->name) return error_set(error, QP_DEVICE, "the tests hold no GPU code named %s", image);
    TRY(cuda_check(d->driver->module_load(&module, i->data), "loading GPU code of tests", error));
    TRY(cuda_check(d->driver->module_function(out, module, name), "finding a test kernel", error));
    return cuda_check(d->driver->function_set(*out, CUDA_FUNCTION_MAX_SHARED, shared_bytes),
                      "giving a test kernel shared memory", error);
}

/* The megakernel of one sequence with delays, where check_kernels_for_tests() finds one; `chooses`:
 * the one that samples tokens. */
static inline qp_status find_delayed(const cuda_mega *m, bool chooses, cuda_function *out,
                                     qp_error *error)
{
    const cuda_executor *x = m->executor;
    const bool ranks = x->program->options.ranks > 1, f8 = x->program->options.kv_type == DTYPE_F8;
    char image[40], name[40];
    snprintf(image, sizeof image, "mega%s%s_delayed",
             f8                                               ? "_cache_f8"
             : ranks                                          ? "_ranks"
             : strcmp(mega_image(x->program), "mega_f8") == 0 ? "_f8"
             : m->quantized                                   ? "_mixed"
                                                              : "",
             chooses ? "_choosing" : "");
    snprintf(name, sizeof name, "mega_%d_%s_%d_delayed", (int)x->program->config.head_dim,
             dtype_name(x->program->options.kv_type), !m->quantized);
    return find_test_kernel(x->device, image, name, cuda_mega_shared_bytes(m), out, error);
}

/* The same for two to eight sequences. */
static inline qp_status find_delayed_batch(qp_engine *engine, cuda_function *out, qp_error *error)
{
    const mega_arguments *a = &mega_of(engine)->batch;
    char name[40];
    snprintf(name, sizeof name, "mega_batch_%d_F16_1_delayed",
             (int)engine->program.config.head_dim);
    return find_test_kernel(&engine->device,
                            mega_of(engine)->quantized ? "mega_batch_mixed_delayed"
                                                       : "mega_batch_delayed",
                            name, a->stages * a->stage_bytes + (int)a->shared.bytes, out, error);
}

/* The same of chains on a GPU; `ranks`: "", or "_ranks" for those that sum rows over ranks. */
static inline qp_status delay_chains(cuda_device *device, const char *ranks, qp_error *error)
{
    static const int columns[] = {16, 32, 64};
    static const char *const instances[] = {"", "_families"};
    char image[48], test_image[48], name[64], delayed[64];
    snprintf(test_image, sizeof test_image, "linear_chain%s_delayed", ranks);
    for (int i = 0; i < 6; i++) {
        const int n = columns[i / 2];
        cuda_function function;
        snprintf(image, sizeof image, "linear_chain%s%s", ranks, instances[i % 2]);
        snprintf(name, sizeof name, "run_linear_chain_%d%s%s", n, ranks, instances[i % 2]);
        snprintf(delayed, sizeof delayed, "run_linear_chain_%d%s_delayed", n, ranks);
        TRY(find_test_kernel(device, test_image, delayed, device->shared_bytes, &function, error));
        cuda_device_replace(device, image, name, device->shared_bytes, function);
    }
    return QP_OK;
}

/* Gives the next passes over 2 to 64 sequences the chain kernels with delays. The engine must have
 * run none yet, because a captured graph keeps its kernels. */
static inline qp_status delay_batches(qp_engine *engine, qp_error *error)
{
    const machine *first = engine_machine(engine, 0);
    if (first->type != &machine_ranks) return delay_chains(&engine->device, "", error);
    for (int rank = 0; rank < engine->ranks.size; rank++) {
        cuda_executor *x = cuda_machine_executor(ranks_machine_of(first, rank));
        TRY(delay_chains(x->device, "", error));
        TRY(delay_chains(x->device, "_ranks", error));
    }
    return cuda_device_enter(&engine->device, error);
}
