/* paged_prefill on the GPU: see attention_cuda.h. */
#include "op/attention/attention_cuda.h"
#include "op/linear/linear_stream_cuda.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/paged_prefill/paged_prefill_stream.h"

#include <stdio.h>
#include <string.h>

enum { GROUP_THREADS = 128 /* warps of a warpgroup, which wgmma needs */ };

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

bool cuda_prefill_accepts(const op_call *call)
{
    const tensor *t = call->tensors;
    return cuda_paged_accepts(&t[PAGED_PREFILL_Q], &t[PAGED_PREFILL_K_CACHE],
                              &t[PAGED_PREFILL_V_CACHE], &t[PAGED_PREFILL_OUT],
                              &t[PAGED_PREFILL_LSE]);
}

bool cuda_prefill_pays(const cuda_ops *ops, const op_call *call)
{
    (void)ops;
    return call->tensors[PAGED_PREFILL_Q].shape[0] > CUDA_ATTENTION_FEW_TOKENS;
}

bool cuda_prefill_stream_accepts(const op_call *call)
{
    attention_limits limits = CUDA_PREFILL_LIMITS(call, PAGED_PREFILL);
    const tensor *t = call->tensors, *k = &t[PAGED_PREFILL_K_CACHE], *v = &t[PAGED_PREFILL_V_CACHE];
    return !cuda_is_limited(&limits) && t[PAGED_PREFILL_Q].shape[2] == 128 && k->shape[0] > 0 &&
           k->stride[0] >= 0 && v->stride[0] >= 0 && cuda_prefill_accepts(call);
}

/* Kernels that are checked and compared, but not chosen. */
bool cuda_prefill_never_pays(const cuda_ops *ops, const op_call *call)
{
    (void)ops, (void)call;
    return false;
}

paged_attention cuda_prefill_arguments(const op_call *call)
{
    paged_attention a = cuda_paged_arguments(call, PAGED_TENSORS(call, PAGED_PREFILL),
                                             call->params[PAGED_PREFILL_SM_SCALE]);
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

cuda_prefill_launch cuda_prefill_plan(const op_call *call, bool has_wgmma, int n_multiprocessors)
{
    attention_limits limits = CUDA_PREFILL_LIMITS(call, PAGED_PREFILL);
    bool bf16 = call->tensors[PAGED_PREFILL_K_CACHE].type == DTYPE_BF16;
    int head_dim = (int)call->tensors[PAGED_PREFILL_Q].shape[2], groups = 2;
    /* Three groups of rows use each loaded key more often; two fill the GPU with fewer rows. */
    if (head_dim == 128 && !cuda_is_limited(&limits) &&
        blocks_of(call, 192) >= 2 * n_multiprocessors)
        groups = 3;
    int copying = head_dim == 128 ? GROUP_THREADS : 0;
    cuda_prefill_launch launch = {.rows = has_wgmma ? groups * 64 : PAGED_PREFILL_MMA_ROWS,
                                  .threads = has_wgmma ? groups * GROUP_THREADS + copying
                                                       : PAGED_PREFILL_MMA_THREADS};
    launch.shared_bytes = has_wgmma && head_dim == 128
                              ? PAGED_PREFILL_SPLIT_SHARED(launch.rows, head_dim)
                              : PAGED_PREFILL_SHARED(launch.rows, head_dim);
    launch.blocks = (unsigned)blocks_of(call, launch.rows);
    char number[2] = {has_wgmma ? (char)('0' + groups) : 0};
    snprintf(launch.function, sizeof launch.function, "run_paged_prefill_%s%s_%s_%d",
             has_wgmma ? "wgmma" : "mma", number, bf16 ? "BF16" : "F16", head_dim);
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

static qp_status launch_prefill(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                                bool has_wgmma, qp_error *error)
{
    paged_attention arguments = cuda_prefill_arguments(call);
    if (forms->out) leave_narrowed(call, forms->out, &arguments);
    arguments.beside = forms->beside;
    cuda_prefill_launch launch = cuda_prefill_plan(call, has_wgmma, ops->device->n_multiprocessors);
    bool alone = has_wgmma && call->tensors[PAGED_PREFILL_Q].shape[2] == 128;
    cuda_start start = {.image = "attention_paged",
                        .shared_most = launch.shared_bytes,
                        .grid = {launch.blocks, 1, 1},
                        .threads = (unsigned)launch.threads,
                        .shared_bytes = (unsigned)launch.shared_bytes,
                        .cluster =
                            alone || launch.blocks >= CUDA_ATTENTION_EARLY_BLOCKS *
                                                          (unsigned)ops->device->n_multiprocessors};
    memcpy(start.name, launch.function, sizeof start.name);
    attention_limits limits = CUDA_PREFILL_LIMITS(call, PAGED_PREFILL);
    return cuda_attention_start(ops, &start, &arguments, &limits, error);
}

qp_status cuda_prefill(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                       const cuda_forms *forms, qp_error *error)
{
    (void)kernel;
    return launch_prefill(ops, call, forms, cuda_device_is_hopper(ops->device), error);
}

static qp_status launch_mma(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            const cuda_forms *forms, qp_error *error)
{
    (void)kernel;
    return launch_prefill(ops, call, forms, false, error);
}

cuda_prefill_launch cuda_prefill_stream_plan(const op_call *call, int n_multiprocessors)
{
    bool bf16 = call->tensors[PAGED_PREFILL_K_CACHE].type == DTYPE_BF16;
    /* Three groups of rows use each loaded key more often; two leave fewer multiprocessors idle. */
    int groups = blocks_of(call, 192) >= 6 * n_multiprocessors ? 3 : 2;
    int64_t blocks = blocks_of(call, groups * 64);
    cuda_prefill_launch launch = {.rows = groups * 64,
                                  .threads = (groups + 1) * GROUP_THREADS,
                                  .shared_bytes = PAGED_STREAM_SHARED(groups)};
    launch.blocks = (unsigned)(blocks < n_multiprocessors ? blocks : n_multiprocessors);
    snprintf(launch.function, sizeof launch.function, "run_paged_prefill_stream%d_%s", groups,
             bf16 ? "BF16" : "F16");
    return launch;
}

qp_status cuda_prefill_stream(cuda_ops *ops, const op_call *call, const tensor *k, const tensor *v,
                              const cuda_forms *forms, qp_error *error)
{
    _Alignas(64) char k_map[CUDA_MAP_BYTES], v_map[CUDA_MAP_BYTES];
    paged_attention arguments = cuda_prefill_arguments(call);
    cuda_prefill_launch launch = cuda_prefill_stream_plan(call, ops->device->n_multiprocessors);
    cuda_start start = {.image = "attention_stream",
                        .shared_most = launch.shared_bytes,
                        .grid = {launch.blocks, 1, 1},
                        .threads = (unsigned)launch.threads,
                        .shared_bytes = (unsigned)launch.shared_bytes,
                        .cluster = 1};
    memcpy(start.name, launch.function, sizeof start.name);
    if (forms->out) leave_narrowed(call, forms->out, &arguments);
    arguments.beside = forms->beside;
    arguments.arrived =
        (uint32_t *)cuda_host_form(cuda_ops_counters(ops)) + CUDA_COUNTERS - CUDA_PREFILL_COUNTERS;
    TRY(cuda_stream_map_cache(ops, k, k_map, error));
    TRY(cuda_stream_map_cache(ops, v, v_map, error));
    return cuda_ops_start(
        ops, &start,
        CUDA_ARGUMENTS(CUDA_ARGUMENT(arguments), CUDA_ARGUMENT(k_map), CUDA_ARGUMENT(v_map)),
        error);
}

static qp_status launch_stream(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                               const cuda_forms *forms, qp_error *error)
{
    (void)kernel;
    return cuda_prefill_stream(ops, call, &call->tensors[PAGED_PREFILL_K_CACHE],
                               &call->tensors[PAGED_PREFILL_V_CACHE], forms, error);
}

const cuda_kernel paged_prefill_cuda[] = {
    {CUDA_UNITS(PAGED_PREFILL, "cuda_ops", paged_prefill, CUDA_ATTENTION_THREADS, 1,
                by_heads_accepts),
     .early = true},
    {CUDA_LIMITED_UNITS(PAGED_PREFILL, paged_prefill, limited_accepts, launch_limited)},
    {.op = OP_PAGED_PREFILL,
     .name = "cuda_mma",
     .accepts = cuda_prefill_accepts,
     .pays = cuda_prefill_never_pays,
     .launch = launch_mma,
     .aligned = true,
     .tolerances = cuda_attention_tolerances},
    {.op = OP_PAGED_PREFILL,
     .name = "cuda_stream",
     .architecture = CUDA_HOPPER_ONLY,
     .accepts = cuda_prefill_stream_accepts,
     .pays = cuda_prefill_never_pays,
     .launch = launch_stream,
     .aligned = true,
     .tolerances = cuda_attention_tolerances},
    {.op = OP_PAGED_PREFILL,
     .name = "cuda_tiles",
     .narrows = cuda_narrows_always,
     .narrow_form = CUDA_NARROWS_ALONE,
     .takes_moved_q = true,
     .accepts = cuda_prefill_accepts,
     .pays = cuda_prefill_pays,
     .launch = cuda_prefill,
     .aligned = true,
     .tolerances = cuda_attention_tolerances},
    {0},
};
