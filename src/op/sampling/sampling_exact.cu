/* The stand-alone kernel of sampling: a cluster of two to eight blocks per row, which exchange
 * their results through one another's shared memory. */
#include "op/sampling/sampling.h"
#include "op/sampling/sampling_race.cuh"

enum {
    CLUSTER = 8, /* blocks at most */
    THREADS = 512,
    WARPS = THREADS / WARP,
    SLICES = 128, /* of a row, of which the largest keys are known */
    LIST = 256,   /* most keys of a block near the k-th largest */
};

struct cluster_memory {
    sample_part cells[WARPS], posted[2];
    uint32_t own_keys[SLICES / 2], keys[CLUSTER * LIST]; /* keys: of all blocks */
    uint32_t list[LIST], n_list;
    sample_view view;
    uint32_t bound; /* race_best()'s */
};

/* The blocks of a cluster as a team. */
template <bool ON_VECTORS> struct cluster_team {
    static const bool VECTORS = ON_VECTORS; /* aligned fours of float32 */
    cluster_memory &memory;
    const char *logits;
    dtype type;
    int32_t begin, end;
    int thread, threads;
    sample_part *cells;
    sample_view *view;
    uint32_t *keys;
    int blocks; /* of the cluster: 2, 4 or 8 */
    int parity;

    __device__ __forceinline__ float logit(int32_t token) const
    {
        return device_load(type, logits, token);
    }
    __device__ __forceinline__ void sync() const { __syncthreads(); }
    __device__ __forceinline__ bool either(bool value) const { return __syncthreads_or(value); }

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
        int lanes = blocks * (THREADS / SLICES), of_block = SLICES / blocks;
        for (int step = lanes / 2; step > 0; step /= 2)
            key = max(key, __shfl_xor_sync(ALL_LANES, key, step));
        if (thread % lanes == 0) memory.own_keys[thread / lanes] = key;
        sync_cluster();
        if (thread < SLICES)
            keys[thread] = of(memory.own_keys[thread % of_block], thread / of_block);
        sync();
        return SLICES;
    }

    /* All keys of the row that are at least `lowest`, to `keys`; how many there are. -1: too many.
     */
    __device__ __forceinline__ int gather_above(uint32_t lowest)
    {
        if (thread == 0) memory.n_list = 0;
        sync();
        race_each<4>(*this, [&](int32_t, const float(&logit)[4]) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t key = sample_key_of(logit[j]);
                if (key < lowest) continue;
                uint32_t at = atomicAdd(&memory.n_list, 1u);
                if (at < LIST) memory.list[at] = key;
            }
        });
        sync_cluster();
        int n = 0;
        for (int block = 0; block < blocks; block++) {
            int of_block = (int)of(memory.n_list, block);
            if (of_block > LIST) return -1;
            if (thread < of_block) keys[n + thread] = of(memory.list[thread], block);
            n += of_block;
        }
        sync();
        return n;
    }

    /* A block may read the parts of an exchange while others are in the next one, but not further.
     */
    __device__ __forceinline__ void exchange(sample_part &part)
    {
        sample_merge_block(*this, part);
        if (thread == 0) memory.posted[parity] = part;
        sync_cluster();
        int lane = thread % WARP;
        part = lane < blocks ? of(memory.posted[parity], lane) : sample_nothing();
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

/* Begin of a block's slice of n logits: a multiple of four, or n. */
DEVICE_FN int32_t slice_begin(int64_t n, int block, int blocks)
{
    return block == blocks ? (int32_t)n : (int32_t)(n * block / blocks) / 4 * 4;
}

template <bool VECTORS> DEVICE_FN void sample_in_cluster(const op_call &call)
{
    __shared__ cluster_memory memory;
    const tensor &logits = call.tensors[SAMPLING_LOGITS];
    int blocks;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
    int64_t row = call.begin + blockIdx.x / blocks, n = logits.shape[1];
    int block = (int)blockIdx.x % blocks;
    device_take_turn();
    cluster_team<VECTORS> team = {memory,
                                  device_row(logits, row),
                                  logits.type,
                                  slice_begin(n, block, blocks),
                                  slice_begin(n, block + 1, blocks),
                                  (int)threadIdx.x,
                                  THREADS,
                                  memory.cells,
                                  &memory.view,
                                  memory.keys,
                                  blocks,
                                  0};
    int32_t id = race_row(team, sample_settings_of(call, row), n, &memory.bound);
    if (block == 0 && threadIdx.x == 0) ((int32_t *)call.tensors[SAMPLING_IDS].data)[row] = id;
    team.sync_cluster(); /* no block ends while others read its memory */
}

#define SAMPLING(name, vectors)                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        run_##name(const __grid_constant__ op_call call)                                           \
    {                                                                                              \
        sample_in_cluster<vectors>(call);                                                          \
    }
SAMPLING(sampling, false)
SAMPLING(sampling_vectors, true)
