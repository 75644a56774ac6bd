/* Products of many rows with their epilogues: kernels by the names that the host looks up; for
 * sm_90a only. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "op/linear/linear_wide.cuh"

extern "C" __global__ void __launch_bounds__(LINEAR_WIDE_THREADS, 1)
    run_linear_wide_silu(const __grid_constant__ linear_wide call)
{
    extern __shared__ __align__(1024) char shared[];
    linear_wide_run(call, shared, [&](const wide_block &b, int group, int tile, wide_sums &sums) {
        wide_activate(call, b, group, tile, sums);
    });
}

extern "C" __global__ void __launch_bounds__(LINEAR_WIDE_THREADS, 1)
    run_linear_wide_likeliest(const __grid_constant__ linear_wide call,
                              const __grid_constant__ wide_likeliest to)
{
    extern __shared__ __align__(1024) char shared[];
    linear_wide_run(
        call, shared,
        [&](const wide_block &b, int group, int tile, wide_sums &sums) {
            wide_rank(call, to, b, group, tile, sums);
        },
        [&](const wide_block &b) { wide_leave_likeliest(call, to, (uint32_t *)b.places); });
}

/* rope.q: where q goes, in the type of the caches. */
#define LINEAR_WIDE_ROPE(name, head_dim, features)                                                 \
    extern "C" __global__ void __launch_bounds__(LINEAR_WIDE_THREADS, 1)                           \
        run_linear_##name##_rope_##head_dim(const __grid_constant__ linear_wide call,              \
                                            const __grid_constant__ rope_rows rope,                \
                                            const __grid_constant__ append_rows append)            \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        linear_wide_run<features>(                                                                 \
            call, shared, [&](const wide_block &b, int group, int tile, auto &sums) {              \
                wide_turn_heads<head_dim, features>(call, rope, append, b, group, tile, sums);     \
            });                                                                                    \
    }
LINEAR_WIDE_ROPE(wide, 64, LINEAR_WIDE_FEATURES)
LINEAR_WIDE_ROPE(wide, 128, LINEAR_WIDE_FEATURES)
LINEAR_WIDE_ROPE(narrow, 64, LINEAR_WIDE_NARROW)
#endif
