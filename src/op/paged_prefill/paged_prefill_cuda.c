/* paged_prefill on the GPU: see attention_cuda.h. */
#include "base/checked.h"
#include "op/attention/attention_cuda.h"
#include "op/linear/linear_stream_cuda.h"
#include "op/paged_prefill/paged_prefill.h"

#include <stdio.h>
#include <string.h>

static bool by_heads_accepts(const op_call *call)
{
    attention_limits limits = CUDA_PREFILL_LIMITS(call, PAGED_PREFILL);
    return !cuda_is_limited(&limits) && cuda_attention_by_heads_accepts(call);
}

static bool limited_accepts(const op_call *call)
{
    attention_limits limits = CUDA_PREFILL_LIMITS(call, PAGED_PREFILL);
    return cuda_is_limited(&limits) && cuda_attention_by_heads_accepts(call);
}

static qp_status launch_limited(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                                const cuda_forms *forms, qp_error *error)
{
    attention_limits limits = CUDA_PREFILL_LIMITS(call, PAGED_PREFILL);
    (void)forms;
    return cuda_launch_limited(ops, kernel, call, &limits, error);
}

/* Ragged keys and values have as many positions as there are. */
static bool is_ragged(const op_call *call)
{
    return !call->tensors[PAGED_PREFILL_KV_LAST_PAGE_LEN].rank;
}

/* The kernels walk pages of a multiple of 16 positions. */
static tensor whole_pages(const op_call *call, int which)
{
    tensor cache = call->tensors[which];
    if (is_ragged(call)) cache.shape[1] = (int64_t)round_up((size_t)cache.shape[1], 16);
    return cache;
}

/* Whether a tensor map can describe the cache: its strides are not negative. */
static bool has_map(const tensor *cache)
{
    return cache->stride[0] >= 0 && cache->stride[1] >= 0 && cache->stride[2] >= 0;
}

static bool is_in_f8(const op_call *call)
{
    return call->tensors[PAGED_PREFILL_K_CACHE].type == DTYPE_F8;
}

static bool tiles_accept(const op_call *call)
{
    const tensor *t = call->tensors;
    const tensor k = whole_pages(call, PAGED_PREFILL_K_CACHE),
                 v = whole_pages(call, PAGED_PREFILL_V_CACHE);
    return k.shape[0] > 0 && has_map(&k) && has_map(&v) &&
           cuda_paged_accepts(&t[PAGED_PREFILL_Q], &k, &v, &t[PAGED_PREFILL_OUT],
                              &t[PAGED_PREFILL_LSE]);
}

bool cuda_prefill_accepts(const op_call *call)
{
    return !is_in_f8(call) && tiles_accept(call);
}

static bool f8_accepts(const op_call *call)
{
    return is_in_f8(call) && tiles_accept(call);
}

bool cuda_prefill_pays(const cuda_ops *ops, const op_call *call)
{
    (void)ops;
    return call->tensors[PAGED_PREFILL_Q].shape[0] > CUDA_ATTENTION_FEW_TOKENS;
}

/* Kernels that are checked and compared, but not chosen. */
static bool mma_pays(const cuda_ops *ops, const op_call *call)
{
    (void)ops, (void)call;
    return false;
}

paged_attention cuda_prefill_arguments(const op_call *call)
{
    const tensor k = whole_pages(call, PAGED_PREFILL_K_CACHE);
    paged_tensors tensors = PAGED_TENSORS(call, PAGED_PREFILL);
    tensors.k = &k;
    paged_attention a = cuda_paged_arguments(call, tensors, call->params[PAGED_PREFILL_SM_SCALE]);
    const tensor *qo_indptr = &call->tensors[PAGED_PREFILL_QO_INDPTR];
    a.qo_indptr = qo_indptr->data;
    a.n_sequences = (int32_t)(qo_indptr->shape[0] - 1);
    a.causal = call->params[PAGED_PREFILL_CAUSAL] != 0 && !call->tensors[PAGED_PREFILL_MASK].rank;
    return a;
}

/* The number of blocks for the tiles of any cut of the tokens into sequences. */
static int64_t blocks_of(const op_call *call, int rows)
{
    int64_t n_tokens = call->tensors[PAGED_PREFILL_Q].shape[0],
            n_heads = call->tensors[PAGED_PREFILL_Q].shape[1],
            n_kv_heads = call->tensors[PAGED_PREFILL_K_CACHE].shape[2],
            n_sequences = call->tensors[PAGED_PREFILL_QO_INDPTR].shape[0] - 1;
    if (n_sequences > n_tokens) n_sequences = n_tokens; /* the others have no tile */
    return n_kv_heads * (n_tokens * (n_heads / n_kv_heads) / rows + n_sequences);
}

/* Warpgroups that compute, in kernels with wgmma. */
static int groups_of(const op_call *call, int n_multiprocessors)
{
    attention_limits limits = CUDA_PREFILL_LIMITS(call, PAGED_PREFILL);
    bool have = call->tensors[PAGED_PREFILL_Q].shape[2] == 64 && !cuda_is_limited(&limits) &&
                !is_in_f8(call);
    return have && blocks_of(call, 192) >= 6 * n_multiprocessors ? 3 : 2;
}

cuda_prefill_launch cuda_prefill_plan(const op_call *call, bool has_wgmma, int n_multiprocessors)
{
    const char *type = call->tensors[PAGED_PREFILL_K_CACHE].type == DTYPE_BF16 ? "BF16" : "F16";
    int head_dim = (int)call->tensors[PAGED_PREFILL_Q].shape[2],
        groups = groups_of(call, n_multiprocessors);
    cuda_prefill_launch launch = {.rows = PAGED_PREFILL_MMA_ROWS,
                                  .threads = PAGED_PREFILL_MMA_THREADS,
                                  .shared_bytes = PAGED_PREFILL_MMA_SHARED(head_dim)};
    if (!has_wgmma) {
        launch.blocks = (unsigned)blocks_of(call, launch.rows);
        snprintf(launch.function, sizeof launch.function, "run_paged_prefill_mma_%s_%d", type,
                 head_dim);
        return launch;
    }
    launch.rows = groups * 64;
    launch.threads = groups * 128 + 128;
    launch.shared_bytes = PAGED_PREFILL_SHARED(head_dim, groups);
    int64_t tiles = blocks_of(call, launch.rows);
    launch.blocks = (unsigned)(tiles < n_multiprocessors ? tiles : n_multiprocessors);
    if (is_in_f8(call)) {
        launch.threads = PAGED_PREFILL_F8_THREADS;
        launch.shared_bytes = PAGED_PREFILL_F8_SHARED(head_dim);
        snprintf(launch.function, sizeof launch.function, "run_paged_prefill_f8_%d", head_dim);
        return launch;
    }
    snprintf(launch.function, sizeof launch.function, "run_paged_prefill_wgmma%d_%s_%d", groups,
             type, head_dim);
    return launch;
}

/* Only a product reads the output, in BF16. */
static void leave_narrowed(const op_call *call, cuda_address to, paged_attention *arguments)
{
    const int64_t *shape = call->tensors[PAGED_PREFILL_Q].shape;
    arguments->out = cuda_host_form(to);
    arguments->out_type = DTYPE_BF16;
    arguments->out_strides = (row_strides){shape[1] * shape[2] * 2, shape[2] * 2};
}

/* A map of rows of queries or outputs, (n_tokens, n_kv_heads, group, head_dim), in boxes of 64
 * elements of a computing group's 64 rows: see paged_prefill_carry.cuh. */
static qp_status map_rows(const cuda_ops *ops, const op_call *call, const void *data,
                          row_strides strides, char *map, qp_error *error)
{
    const int64_t *shape = call->tensors[PAGED_PREFILL_Q].shape;
    uint32_t group = (uint32_t)(shape[1] / call->tensors[PAGED_PREFILL_K_CACHE].shape[2]);
    return cuda_stream_make_map(
        ops, map, 4, cuda_device_form(data),
        (uint64_t[]){(uint64_t)shape[2], group, (uint64_t)shape[1] / group, (uint64_t)shape[0]},
        (uint64_t[]){(uint64_t)strides.head, group * (uint64_t)strides.head,
                     (uint64_t)strides.token},
        (uint32_t[]){64, group, 1, 64 / group}, error);
}

bool cuda_prefill_is_carried(const op_call *call, const paged_attention *a)
{
    const int64_t *shape = call->tensors[PAGED_PREFILL_Q].shape;
    const row_strides q = a->q_strides, out = a->out_strides;
    return a->q_type == (int32_t)call->tensors[PAGED_PREFILL_K_CACHE].type && a->sm_scale > 0 &&
           a->out_type != DTYPE_F32 && 64 % a->group == 0 && a->begin == 0 &&
           a->end == shape[0] * shape[1] && q.token >= 0 && q.head >= 0 && out.token >= 0 &&
           out.head >= 0 && ((out.token | out.head) & 15) == 0 && (uintptr_t)a->out % 16 == 0;
}

/* The kernels with wgmma: blocks take tiles from a counter, and tensor maps describe what they
 * copy. */
static qp_status start_wgmma(cuda_ops *ops, const op_call *call, cuda_start *start,
                             paged_attention arguments, attention_limits limits, qp_error *error)
{
    _Alignas(64) char k[CUDA_MAP_BYTES], v[CUDA_MAP_BYTES];
    _Alignas(64) char q[CUDA_MAP_BYTES] = {0}, out[CUDA_MAP_BYTES] = {0};
    int32_t carried = cuda_prefill_is_carried(call, &arguments);
    TRY(cuda_stream_map_cache(ops, &call->tensors[PAGED_PREFILL_K_CACHE], k, error));
    TRY(cuda_stream_map_cache(ops, &call->tensors[PAGED_PREFILL_V_CACHE], v, error));
    if (carried) {
        TRY(map_rows(ops, call, arguments.q, arguments.q_strides, q, error));
        TRY(map_rows(ops, call, arguments.out, arguments.out_strides, out, error));
    }
    arguments.arrived =
        (uint32_t *)cuda_host_form(cuda_ops_counters(ops)) + CUDA_COUNTERS - CUDA_PREFILL_COUNTERS;
    start->cluster = 1;
    cuda_argument list[] = {
        CUDA_ARGUMENT(arguments), CUDA_ARGUMENT(k),       CUDA_ARGUMENT(v),      CUDA_ARGUMENT(q),
        CUDA_ARGUMENT(out),       CUDA_ARGUMENT(carried), CUDA_ARGUMENT(limits), {0}};
    if (cuda_is_limited(&limits))
        cuda_attention_limit(start);
    else
        list[6] = (cuda_argument){0};
    return cuda_ops_start(ops, start, list, error);
}

static qp_status launch_prefill(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                                bool has_wgmma, qp_error *error)
{
    paged_attention arguments = cuda_prefill_arguments(call);
    if (forms->out) leave_narrowed(call, forms->out, &arguments);
    arguments.beside = forms->beside;
    unsigned n_multiprocessors = (unsigned)ops->device->n_multiprocessors;
    cuda_prefill_launch launch = cuda_prefill_plan(call, has_wgmma, (int)n_multiprocessors);
    cuda_start start = {.image = "attention_paged",
                        .shared_most = launch.shared_bytes,
                        .grid = {launch.blocks, 1, 1},
                        .threads = (unsigned)launch.threads,
                        .shared_bytes = (unsigned)launch.shared_bytes};
    memcpy(start.name, launch.function, sizeof start.name);
    attention_limits limits = CUDA_PREFILL_LIMITS(call, PAGED_PREFILL);
    if (has_wgmma) return start_wgmma(ops, call, &start, arguments, limits, error);
    start.cluster = launch.blocks >= CUDA_ATTENTION_EARLY_BLOCKS * n_multiprocessors;
    return cuda_attention_start(ops, &start, &arguments, &limits, error);
}

qp_status cuda_prefill(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                       const cuda_forms *forms, qp_error *error)
{
    (void)kernel;
    return launch_prefill(ops, call, forms, cuda_device_has(ops->device, CUDA_WGMMA_TILES), error);
}

static qp_status launch_mma(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            const cuda_forms *forms, qp_error *error)
{
    (void)kernel;
    return launch_prefill(ops, call, forms, false, error);
}

const cuda_kernel paged_prefill_cuda[] = {
    {CUDA_UNITS(PAGED_PREFILL, "cuda_ops", paged_prefill, CUDA_ATTENTION_THREADS, 1,
                by_heads_accepts),
     .early = true},
    {CUDA_LIMITED_UNITS(PAGED_PREFILL, paged_prefill, limited_accepts, launch_limited)},
    {CUDA_ROW(PAGED_PREFILL, "cuda_mma"), .accepts = cuda_prefill_accepts, .pays = mma_pays,
     .launch = launch_mma, .aligned = true, .tolerances = cuda_attention_tolerances},
    {CUDA_ROW(PAGED_PREFILL, "cuda_tiles"), .narrows = cuda_narrows_always,
     .narrow_form = CUDA_NARROWS_ALONE, .takes_moved_q = true, .accepts = cuda_prefill_accepts,
     .pays = cuda_prefill_pays, .launch = cuda_prefill, .aligned = true,
     .tolerances = cuda_attention_tolerances},
    {CUDA_ROW(PAGED_PREFILL, "cuda_f8"), .needs = CUDA_WGMMA_TILES | CUDA_E4M3,
     .narrows = cuda_narrows_always, .narrow_form = CUDA_NARROWS_ALONE, .takes_moved_q = true,
     .accepts = f8_accepts, .pays = cuda_prefill_pays, .launch = cuda_prefill, .aligned = true,
     .tolerances = cuda_attention_tolerances},
    {0},
};
