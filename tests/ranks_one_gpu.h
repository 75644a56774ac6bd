/* The megakernels of several ranks beside each other on one GPU, a stand-in for several GPUs.
 *
 * The kernels wait for each other, so all of their blocks run at once: ONE_GPU_BLOCKS divided by
 * the number of ranks. Code is loaded only when nothing runs in a context, so all of it is loaded
 * before the first launch; and streams share no queue of the GPU, where one would wait for another.
 */
#pragma once

#include "machines_test.h"

#include "engine/ranks.h"

#include <stdlib.h>

enum {
    ONE_GPU_BLOCKS = 128 /* at most as many as a GPU has multiprocessors */,
    ONE_GPU_MAX_RANKS = 8
};

/* Before CUDA's driver is opened. */
static inline void one_gpu_prepare(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}

/* Options of an engine of `ranks` ranks, 1 to ONE_GPU_MAX_RANKS: one rank has all blocks. */
static inline qp_engine_options one_gpu_options(const char *model, int ranks)
{
    static const char gpus[] = "0,0,0,0,0,0,0,0";
    engine_ranks_beside = ranks > 1;
    return (qp_engine_options){.size = sizeof(qp_engine_options),
                               .model = model,
                               .device = "cuda",
                               .exec = "megakernel",
                               .ranks = ranks,
                               .gpus = ranks > 1 ? gpus + 2 * (ONE_GPU_MAX_RANKS - ranks) : NULL,
                               .exchange = ranks > 1 ? "peers" : "auto",
                               .workers = ONE_GPU_BLOCKS / ranks};
}

/* Loads what the ranks run besides the megakernel. Before the first pass. */
static inline qp_status one_gpu_load(qp_engine *e, int ranks, qp_error *error)
{
    static const char *const kernels[] = {"run_all_gather_words", "run_all_gather_chunks"};
    for (int rank = 0; rank < ranks && ranks > 1; rank++) {
        cuda_device *d = mega_of_rank(e, rank)->executor->device;
        cuda_function function;
        TRY(cuda_device_enter(d, error));
        for (int i = 0; i < 2; i++)
            TRY(cuda_device_function(d, "exchange", kernels[i], 0, &function, error));
    }
    return cuda_device_enter(&e->device, error);
}
