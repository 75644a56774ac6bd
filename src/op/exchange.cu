/* The kernels of all_reduce and all_gather between GPUs of one host: see exchange.cuh. */
#include "op/exchange.cuh"
#include "op/exchange_likeliest.cuh"
#include "op/exchange_sums.cuh"

#define WORDS(name, gather)                                                                        \
    extern "C" __global__ void __launch_bounds__(EXCHANGE_THREADS)                                 \
        run_##name##_words(const __grid_constant__ exchange_rows call)                             \
    {                                                                                              \
        exchange_all<gather, false>(call, (uint32_t *)call.ranks.rounds);                          \
    }
WORDS(all_reduce, false)
WORDS(all_gather, true)

/* Four blocks of a multiprocessor: all are resident. */
#define CHUNKS(name, gather)                                                                       \
    extern "C" __global__ void __launch_bounds__(EXCHANGE_THREADS, 4)                              \
        run_##name##_chunks(const __grid_constant__ exchange_rows call)                            \
    {                                                                                              \
        exchange_all<gather, true>(call, (uint32_t *)call.ranks.rounds + EXCHANGE_BLOCKS);         \
    }
CHUNKS(all_reduce, false)
CHUNKS(all_gather, true)

extern "C" __global__ void __launch_bounds__(ROWS_THREADS)
    run_all_reduce_norm(const __grid_constant__ exchange_rows call,
                        const __grid_constant__ norm_rows norm)
{
    exchange_norm(call, norm, (uint32_t *)call.ranks.rounds + EXCHANGE_BLOCKS + CHUNKS_BLOCKS);
}

extern "C" __global__ void __launch_bounds__(LIKELIEST_THREADS)
    run_likeliest_of_ranks(const __grid_constant__ exchange_likeliest call)
{
    likeliest_rows(call);
}

/* Four blocks of a multiprocessor at least: all are resident. */
extern "C" __global__ void __launch_bounds__(SUMS_THREADS, 4)
    run_all_reduce_rows(const __grid_constant__ exchange_sums call)
{
    sums_rows(call, (uint32_t *)call.ranks.rounds + EXCHANGE_BLOCKS);
}
