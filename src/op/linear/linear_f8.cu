/* Products of matrices in FP8: kernels by the names that the host looks up; for sm_90a only. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "op/linear/linear_f8_epilogue.cuh"
#include "op/linear/linear_f8_stream.cuh"
#include "op/linear/linear_f8_wide.cuh"

extern "C" __global__ void __launch_bounds__(256)
    run_f8_arrange(const __grid_constant__ tensor from, char *to)
{
    f8_arrange(from, to);
}

#define LINEAR_F8_QUANTISE(group)                                                                  \
    extern "C" __global__ void __launch_bounds__(F8_QUANTISE_ROWS *WARP) run_f8_quantise_##group(  \
        const __grid_constant__ tensor from, uint8_t *to, float *scales, int64_t pitch)            \
    {                                                                                              \
        f8_quantise<group>(from, to, scales, pitch);                                               \
    }
LINEAR_F8_QUANTISE(64)
LINEAR_F8_QUANTISE(128)

extern "C" __global__ void __launch_bounds__(F8_WIDE_THREADS, 1)
    run_f8_wide_silu(const __grid_constant__ linear_f8_wide call)
{
    extern __shared__ __align__(1024) char shared[];
    linear_f8_run<2>(call, shared, [&](const f8_block &b, int group, int tile, f8_sums<2> &sums) {
        f8_activate(call, b, group, tile, sums);
    });
}

#define LINEAR_F8_WIDE(panels)                                                                     \
    extern "C" __global__ void __launch_bounds__(F8_WIDE_THREADS, 1)                               \
        run_f8_wide_##panels(const __grid_constant__ linear_f8_wide call)                          \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        linear_f8_run<panels>(call, shared,                                                        \
                              [&](const f8_block &b, int group, int tile, f8_sums<panels> &sums) { \
                                  f8_leave<panels>(call, b, group, tile, sums);                    \
                              });                                                                  \
    }
LINEAR_F8_WIDE(1)
LINEAR_F8_WIDE(2)

/* rope.q: where q goes, in the type of the caches. */
#define LINEAR_F8_ROPE(panels, head_dim)                                                           \
    extern "C" __global__ void __launch_bounds__(F8_WIDE_THREADS, 1)                               \
        run_f8_wide_rope_##panels##_##head_dim(const __grid_constant__ linear_f8_wide call,        \
                                               const __grid_constant__ rope_rows rope,             \
                                               const __grid_constant__ append_rows append)         \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        linear_f8_run<panels>(                                                                     \
            call, shared, [&](const f8_block &b, int group, int tile, f8_sums<panels> &sums) {     \
                f8_turn_heads<panels, head_dim>(call, rope, append, b, group, tile, sums);         \
            });                                                                                    \
    }
LINEAR_F8_ROPE(1, 64)
LINEAR_F8_ROPE(1, 128)
LINEAR_F8_ROPE(2, 64)
LINEAR_F8_ROPE(2, 128)

/* Two blocks fit on a multiprocessor, so that the next product's weights come while one ends. */
#define LINEAR_F8_STREAM(columns)                                                                  \
    extern "C" __global__ void __launch_bounds__(LINEAR_STREAM_THREADS, 2)                         \
        run_f8_stream_##columns(const __grid_constant__ linear_f8_stream call)                     \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        linear_f8_stream_run<columns>(call, shared);                                               \
    }
LINEAR_F8_STREAM(16)
LINEAR_F8_STREAM(32)
LINEAR_F8_STREAM(64)
#endif
