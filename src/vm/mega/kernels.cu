/* The megakernel's kernels. CMake compiles this file once for each row of src/gpu_images.cmake; a
 * row's defines, each 0 where a row does not name it, choose what the kernels of an image are for:
 *
 *     MEGA_SEVERAL   1: two to eight sequences; 0: one
 *
 *     MEGA_QUANT_TYPES    the types of quantised weights that they read, a bit 1 << FRAGMENT_...
 * each; 0: weights of 16 bits, W_down transposed
 *
 *     MEGA_FAMILIES  0: without biases, norms of heads, windows and layers without RoPE
 *
 *     MEGA_HALF      1: weights of 16 bits are F16; 0: BF16
 *
 *     MEGA_CACHE_F8  1: the KV cache is in F8; 0: in F16 or BF16
 *
 *     MEGA_CHOOSES   1: tokens are sampled; 0: always the likeliest. Two kernels, because warps
 *                    that sample take registers from those that copy: with both in one, a pass that
 *                    needs only the likeliest token took 8 us more
 *
 *     MEGA_RANKS     1: one of several ranks, each on a GPU of its own
 *
 *     MEGA_DELAYS    1, for tests: warps sleep at random, so that races show
 *
 *     MEGA_WAITS     0, for measurements: a block waits for its weights and for no other block. Its
 *                    tokens are wrong; its time is that of a pass without synchronisation
 *
 *     MEGA_SUFFIX    ends the names of kernels for tests, which have a cache in F16, heads of 64
 *                    (MEGA_HEADS_OF_128: of 128 too) and a hidden size of one block of columns
 *
 * A kernel's name is mega_DIM_CACHE_BLOCKS, or mega_batch_DIM_CACHE_BLOCKS for several rows: the
 * size of a head, the type of the KV cache, and the blocks of 2,048 columns of x (0: quantised,
 * any).
 *
 * Kernels with delays are also the ones that compute-sanitizer's racecheck looks at. Elsewhere one
 * lane signals an mbarrier for its warp after __syncwarp(), or one thread for its block after
 * bar.sync. Racecheck does not follow that order to the thread that waits for the mbarrier, so it
 * would report each read of a stage as a race with the copy that fills the stage again. In kernels
 * with delays every lane signals for itself.
 */
#if MEGA_SEVERAL
#include "vm/mega/several_sequences.cuh"
#else
#include "vm/mega/one_sequence.cuh"
#endif

#ifdef MEGA_SUFFIX
#define FOR_TESTS 1
#else
#define FOR_TESTS 0
#define MEGA_SUFFIX
#endif

#define JOIN(a, b)   JOIN_(a, b)
#define JOIN_(a, b)  a##b
#define KERNEL(name) KERNEL_(JOIN(name, MEGA_SUFFIX))
#define KERNEL_(name)                                                                              \
    extern "C" __global__ void __launch_bounds__(MEGA_THREADS, 1)                                  \
        name(const __grid_constant__ mega_arguments a)

#if MEGA_SEVERAL
#define SEVERAL_ROWS(dim, type, half, blocks)                                                      \
    KERNEL(mega_batch_##dim##_##type##_##blocks)                                                   \
    {                                                                                              \
        run_interpreter<several_sequences<dim, half, blocks>>(a);                                  \
    }
#if FOR_TESTS
#define KERNELS(dim, type, half) SEVERAL_ROWS(dim, type, half, 1)
#else
#define KERNELS(dim, type, half)                                                                   \
    SEVERAL_ROWS(dim, type, half, 1)                                                               \
    SEVERAL_ROWS(dim, type, half, 2)
#endif
#else
#define ONE_SEQUENCE(dim, type, half, blocks)                                                      \
    KERNEL(mega_##dim##_##type##_##blocks)                                                         \
    {                                                                                              \
        run_interpreter<one_sequence<dim, half, blocks>>(a);                                       \
    }
#if MEGA_QUANT_TYPES
#define KERNELS(dim, type, half) ONE_SEQUENCE(dim, type, half, 0)
#elif FOR_TESTS
#define KERNELS(dim, type, half) ONE_SEQUENCE(dim, type, half, 1)
#else
#define KERNELS(dim, type, half)                                                                   \
    ONE_SEQUENCE(dim, type, half, 1)                                                               \
    ONE_SEQUENCE(dim, type, half, 2)
#endif
#endif

#if MEGA_RANKS && !MEGA_QUANT_TYPES && !FOR_TESTS
ONE_SEQUENCE(128, F16, true, 4)
ONE_SEQUENCE(128, BF16, false, 4)
#endif

#if MEGA_CACHE_F8
/* Products have its numbers as F16. */
KERNELS(64, F8, true)
#if !FOR_TESTS
KERNELS(128, F8, true)
#endif
#else
KERNELS(64, F16, true)
#if !FOR_TESTS || MEGA_HEADS_OF_128
KERNELS(128, F16, true)
#endif
#if !FOR_TESTS
KERNELS(64, BF16, false)
KERNELS(128, BF16, false)
#endif
#endif
