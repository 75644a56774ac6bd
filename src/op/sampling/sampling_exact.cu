/* The stand-alone kernel of sampling: eight blocks per row, which exchange their results through
 * one another's shared memory. */
#include "op/sampling/sampling.cuh"
#include "op/sampling/sampling.h"

enum { CLUSTER = 8, THREADS = 512, WARPS = THREADS / WARP };

struct cluster_memory {
    sample_part cells[WARPS], posted[2];
    uint32_t own_keys[WARPS], keys[CLUSTER * WARPS];
    sample_view view;
};

/* The blocks of a cluster as a team. */
struct cluster_team {
    static const bool TOP_K_FIRST = true;
    cluster_memory &memory;
    const char *logits;
    dtype type;
    int32_t begin, end;
    int thread, threads;
    sample_part *cells;
    sample_view *view;
    uint32_t *keys;
    int parity;

    __device__ __forceinline__ float logit(int32_t token) const
    {
        return device_load(type, logits, token);
    }
    __device__ __forceinline__ void sync() const { __syncthreads(); }
    __device__ __forceinline__ bool any(bool value) const
    {
        return value;
    } /* all threads have the same row */

    /* All threads of the cluster meet; writes before are visible after. */
    __device__ __forceinline__ static void sync_cluster()
    {
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    }
    /* Another block's memory. */
    template <typename T> __device__ __forceinline__ static const T &of(const T &own, int block)
    {
        const T *there;
        asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(&own), "r"(block));
        return *there;
    }

    __device__ __forceinline__ int gather(uint32_t key)
    {
        key = __reduce_max_sync(ALL_LANES, key);
        if (thread % WARP == 0) memory.own_keys[thread / WARP] = key;
        sync_cluster();
        if (thread < CLUSTER * WARPS)
            keys[thread] = of(memory.own_keys[thread % WARPS], thread / WARPS);
        sync();
        return CLUSTER * WARPS;
    }

    /* A block may read the parts of an exchange while others are in the next one, but not further.
     */
    __device__ __forceinline__ void exchange(sample_part &part)
    {
        sample_merge_block(*this, part);
        if (thread == 0) memory.posted[parity] = part;
        sync_cluster();
        int lane = thread % WARP;
        part = lane < CLUSTER ? of(memory.posted[parity], lane) : sample_nothing();
        sample_merge_warp(part);
        parity ^= 1;
    }
};

DEVICE_FN double sample_setting(const op_call &call, int index, int param, int64_t row)
{
    const tensor &own = call.tensors[index];
    if (!own.data) return call.params[param];
    return own.type == DTYPE_I32 ? (double)((const int32_t *)own.data)[row]
                                 : (double)((const float *)own.data)[row];
}

DEVICE_FN sample_settings sample_settings_of(const op_call &call, int64_t row)
{
    double top_k = sample_setting(call, SAMPLING_TOP_KS, SAMPLING_TOP_K, row);
    return sample_settings{
        sample_setting(call, SAMPLING_TEMPERATURES, SAMPLING_TEMPERATURE, row),
        sample_setting(call, SAMPLING_TOP_PS, SAMPLING_TOP_P, row),
        sample_setting(call, SAMPLING_MIN_PS, SAMPLING_MIN_P, row),
        top_k < 0 ? 0 : (int64_t)top_k,
        call.params[SAMPLING_TOP_K_FIRST] != 0,
        (uint64_t)((const int64_t *)call.tensors[SAMPLING_SEEDS].data)[row],
        (uint64_t)((const int32_t *)call.tensors[SAMPLING_POSITIONS].data)[row],
    };
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1)
    run_sampling(const __grid_constant__ op_call call)
{
    __shared__ cluster_memory memory;
    const tensor &logits = call.tensors[SAMPLING_LOGITS];
    int64_t row = call.begin + blockIdx.x / CLUSTER, n = logits.shape[1];
    int block = blockIdx.x % CLUSTER;
    cluster_team team = {memory,
                         device_row(logits, row),
                         logits.type,
                         (int32_t)(n * block / CLUSTER),
                         (int32_t)(n * (block + 1) / CLUSTER),
                         (int)threadIdx.x,
                         THREADS,
                         memory.cells,
                         &memory.view,
                         memory.keys,
                         0};
    int32_t id = sample_row(team, sample_settings_of(call, row), n);
    if (block == 0 && threadIdx.x == 0) ((int32_t *)call.tensors[SAMPLING_IDS].data)[row] = id;
    cluster_team::sync_cluster(); /* no block ends while others read its memory */
}
