/* The megakernel for two to eight sequences of quantised weights. A row of src/gpu_images.cmake
 * names the types that an image reads, as it does for kernels.cu, which says what the names of the
 * kernels mean. Images for tests have the one kernel that their models need.
 */
#define MEGA_SEVERAL 1
#include "vm/mega/mega.h"
/* Chunks of the cache are those of weights of 16 bits: stages are as large. */
#define MEGA_CACHE_FRAGMENTS MEGA_BOX
#include "vm/mega/several_sequences.cuh"

#ifndef MEGA_SUFFIX
#define MEGA_SUFFIX
#define MEGA_ALL_KERNELS
#endif

#define NAMED_(name, suffix) name##suffix
#define NAMED(name, suffix)  NAMED_(name, suffix)
#define KERNEL(dim, type, half, blocks)                                                            \
    extern "C" __global__ void __launch_bounds__(MEGA_THREADS, 1)                                  \
        NAMED(mega_batch_##dim##_##type##_##blocks,                                                \
              MEGA_SUFFIX)(const __grid_constant__ mega_arguments a)                               \
    {                                                                                              \
        run_interpreter<several_sequences<dim, half, blocks>>(a);                                  \
    }

KERNEL(64, F16, true, 1)
#ifdef MEGA_ALL_KERNELS
KERNEL(128, F16, true, 1)
KERNEL(64, BF16, false, 1)
KERNEL(128, BF16, false, 1)
KERNEL(128, F16, true, 2)
KERNEL(128, BF16, false, 2)
#endif
