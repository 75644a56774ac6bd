/* Operators on the GPU: see cuda_ops.h. */
#include "vm/cuda_ops.h"

#include "base/checked.h"
#include "op/linear/linear.h"
#include "op/paged_decode/paged_decode.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/ragged_prefill/ragged_prefill.h"
#include "op/variants.h"
#include "vm/cuda_attention.h"
#include "vm/cuda_fused.h"
#include "vm/cuda_linear.h"
#include "vm/cuda_linear_eight.h"
#include "vm/cuda_linear_stream.h"
#include "vm/cuda_rows.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_HEAD_DIM = 256, /* attention.cuh's */
    ATTENTION_THREADS = 256,
    SAMPLING_CLUSTER = 8, /* blocks a row */
};

static bool accepts_attention(const op_call *call)
{
    return op_call_has_no_f64(call) && call->tensors[0].shape[2] <= MAX_HEAD_DIM;
}

qp_status cuda_ops_find_helper_of(cuda_ops *ops, int helper, const char *image, const char *name,
                                  int shared_bytes, cuda_function *out, qp_error *error)
{
    cuda_function *function = &ops->helpers[helper];
    if (!*function)
        TRY(cuda_device_function(ops->device, image, name, shared_bytes, function, error));
    *out = *function;
    return QP_OK;
}

qp_status cuda_ops_find_helper(cuda_ops *ops, int helper, const char *name, cuda_function *out,
                               qp_error *error)
{
    return cuda_ops_find_helper_of(ops, helper, "cuda_ops", name, 0, out, error);
}

qp_status cuda_ops_launch_with(cuda_ops *ops, cuda_function function, const char *name,
                               cuda_launch launch, unsigned cluster, void **arguments,
                               qp_error *error)
{
    cuda_launch_attribute attributes[2];
    char operation[96];
    snprintf(operation, sizeof operation, "launching %s", name);
    if (launch.grid[0] == 0 || launch.grid[1] == 0) return QP_OK;
    launch.stream = ops->device->stream;
    launch.attributes = attributes;
    if (cluster > 1)
        attributes[launch.n_attributes++] =
            (cuda_launch_attribute){.id = CUDA_LAUNCH_CLUSTER, .value.cluster = {cluster, 1, 1}};
    if (cluster > 0 && ops->early)
        attributes[launch.n_attributes++] =
            (cuda_launch_attribute){.id = CUDA_LAUNCH_EARLY, .value.early = 1};
    return cuda_check(ops->device->driver->launch_with(&launch, function, arguments, NULL),
                      operation, error);
}

qp_status cuda_ops_launch_grid(cuda_ops *ops, cuda_function function, const char *name,
                               unsigned grid_x, unsigned grid_y, unsigned threads, void **arguments,
                               qp_error *error)
{
    const cuda_launch launch = {.grid = {grid_x, grid_y, 1}, .block = {threads, 1, 1}};
    return cuda_ops_launch_with(ops, function, name, launch, 0, arguments, error);
}

qp_status cuda_ops_launch_early(cuda_ops *ops, cuda_function function, const char *name,
                                unsigned grid_x, unsigned grid_y, unsigned threads,
                                void **arguments, qp_error *error)
{
    const cuda_launch launch = {.grid = {grid_x, grid_y, 1}, .block = {threads, 1, 1}};
    return cuda_ops_launch_with(ops, function, name, launch, 1, arguments, error);
}

void cuda_ops_narrow_next(cuda_ops *ops, const tensor *out, bool alone)
{
    ops->narrowed = *out;
    ops->narrowed_at = cuda_linear_narrowed(ops);
    ops->narrow_next = true;
    ops->narrow_alone = alone;
}

/* A kernel whose blocks take kernel->units units each. */
static qp_status launch_units(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                              qp_error *error)
{
    op_call own = *call;
    int64_t units = kernel->units, blocks = (call->end - call->begin + units - 1) / units;
    return (kernel->early ? cuda_ops_launch_early : cuda_ops_launch_grid)(
        ops, ops->functions[kernel - cuda_kernels], kernel->function, (unsigned)blocks, 1,
        (unsigned)kernel->threads, (void *[]){&own, &units}, error);
}

/* A cluster of blocks a row. */
static qp_status launch_sampling(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                                 qp_error *error)
{
    op_call own = *call;
    return cuda_ops_launch_grid(ops, ops->functions[kernel - cuda_kernels], kernel->function,
                                (unsigned)(call->end - call->begin) * SAMPLING_CLUSTER, 1,
                                (unsigned)kernel->threads, (void *[]){&own}, error);
}

#define FIELDS(NAME, short_name, thread_count, unit_count, accept)                                 \
    .op = OP_##NAME, .name = "cuda", .image = "cuda_ops", .early = true,                           \
    .function = "run_" #short_name, .threads = thread_count, .units = unit_count,                  \
    .accepts = accept, .launch = launch_units
#define UNITS(...)                                                                                 \
    {                                                                                              \
        FIELDS(__VA_ARGS__)                                                                        \
    }
/* Of rows: see cuda_rows.h. */
#define ROWS(NAME, function_name, narrows_too, accept, launcher)                                   \
    {                                                                                              \
        .op = OP_##NAME, .name = "cuda", .image = "cuda_ops", .function = function_name,           \
        .narrows = narrows_too, .accepts = accept, .launch = launcher                              \
    }

/* The fused operators'; `unit_count` units a block, 0: a warp each in turn. */
#define FUSED(NAME, short_name, unit_count, accept, launcher)                                      \
    {                                                                                              \
        .op = OP_##NAME, .name = "cuda", .image = "cuda_fused", .function = "run_" short_name,     \
        .threads = 256, .units = unit_count, .accepts = accept, .launch = launcher                 \
    }

const cuda_kernel cuda_kernels[] = {
    UNITS(EMBEDDING, embedding, 256, 1, op_call_has_no_f64),
    ROWS(RMS_NORM, "run_rms_norm_vectors", true, cuda_norm_accepts, cuda_norm),
    ROWS(ADD_RMS_NORM, "run_add_rms_norm_vectors", false, op_call_has_no_f64, cuda_add_norm),
    {.op = OP_LINEAR,
     .name = "cuda_tiles",
     .image = "cuda_ops",
     .function = "run_linear_tiles",
     .accepts = op_call_has_no_f64,
     .launch = cuda_linear_tiles},
    {.op = OP_LINEAR,
     .name = "cublaslt",
     .image = "cuda_ops",
     .function = "run_narrow",
     .accepts = cuda_linear_blas_accepts,
     .pays = cuda_linear_blas_pays,
     .workspace = cuda_linear_blas_workspace,
     .launch = cuda_linear_blas,
     .aligned = true,
     .whole = true,
     .tolerances = cuda_linear_blas_tolerances},
    {.op = OP_LINEAR,
     .name = "cuda_stream",
     .image = "cuda_ops",
     .function = "run_narrow",
     .accepts = cuda_linear_stream_accepts,
     .pays = cuda_linear_stream_pays,
     .workspace = cuda_linear_stream_workspace,
     .launch = cuda_linear_stream,
     .aligned = true,
     .whole = true,
     .tolerances = cuda_linear_blas_tolerances},
    {.op = OP_LINEAR,
     .name = "cuda",
     .image = "cuda_ops",
     .function = "run_linear_COUNT_1",
     .accepts = cuda_linear_few_accepts,
     .launch = cuda_linear_few},
    {.op = OP_LINEAR,
     .name = "cuda_eight",
     .image = "linear_eight",
     .function = "run_linear_eight_BF16",
     .accepts = cuda_linear_eight_accepts,
     .pays = cuda_linear_eight_pays,
     .launch = cuda_linear_eight,
     .aligned = true},
    ROWS(ROPE, "run_rope_vectors", false, op_call_has_no_f64, cuda_rope),
    UNITS(KV_APPEND, kv_append, 256, 1, op_call_has_no_f64),
    UNITS(RAGGED_PREFILL, ragged_prefill, ATTENTION_THREADS, 1, accepts_attention),
    {.op = OP_RAGGED_PREFILL,
     .name = "cuda_tiles",
     .image = "attention_paged",
     .function = "run_paged_prefill_mma_BF16_64",
     .accepts = cuda_ragged_accepts,
     .pays = cuda_ragged_pays,
     .launch = cuda_ragged,
     .aligned = true,
     .tolerances = cuda_prefill_tolerances},
    UNITS(PAGED_PREFILL, paged_prefill, ATTENTION_THREADS, 1, accepts_attention),
    {.op = OP_PAGED_PREFILL,
     .name = "cuda_mma",
     .image = "attention_paged",
     .function = "run_paged_prefill_mma_BF16_64",
     .accepts = cuda_prefill_accepts,
     .pays = cuda_prefill_mma_pays,
     .launch = cuda_prefill_mma,
     .aligned = true,
     .tolerances = cuda_prefill_tolerances},
    {.op = OP_PAGED_PREFILL,
     .name = "cuda_tiles",
     .image = "attention_paged",
     .function = "run_paged_prefill_mma_BF16_64",
     .narrows = true,
     .accepts = cuda_prefill_accepts,
     .pays = cuda_prefill_pays,
     .launch = cuda_prefill,
     .aligned = true,
     .tolerances = cuda_prefill_tolerances},
    UNITS(PAGED_DECODE, paged_decode, ATTENTION_THREADS, 1, accepts_attention),
    {.op = OP_PAGED_DECODE,
     .name = "cuda_batch",
     .image = "attention_paged",
     .function = "run_paged_decode_batch_BF16_64",
     .narrows = true,
     .accepts = cuda_decode_accepts,
     .pays = cuda_decode_pays,
     .workspace = cuda_decode_workspace,
     .launch = cuda_decode,
     .aligned = true,
     .tolerances = cuda_decode_tolerances},
    {.op = OP_PAGED_DECODE,
     .name = "cuda_few",
     .image = "attention_paged",
     .function = "run_paged_decode_batch_BF16_64",
     .accepts = cuda_decode_accepts,
     .pays = cuda_decode_few_pays,
     .workspace = cuda_decode_few_workspace,
     .launch = cuda_decode_few,
     .aligned = true,
     .tolerances = cuda_decode_tolerances},
    UNITS(MERGE_STATE, merge_state, 256, 8, op_call_has_no_f64),
    UNITS(MERGE_STATES, merge_states, 256, 1, op_call_has_no_f64),
    FUSED(NORM_QKV_ROPE, "norm_qkv_rope_1", 0, op_call_has_no_f64, cuda_fused_rows),
    FUSED(ATTENTION_PARTIAL, "attention_partial", 1, accepts_attention, cuda_attention_partial),
    FUSED(NORM_GATE_UP_SILU, "norm_gate_up_silu_1", 0, op_call_has_no_f64, cuda_fused_rows),
    FUSED(NORM_LINEAR, "norm_linear_1", 0, op_call_has_no_f64, cuda_fused_rows),
    FUSED(EMBEDDING_CLEAR, "embedding_clear", 32, op_call_has_no_f64, launch_units),
    FUSED(ATTENTION_OUTPUT, "attention_output_1", 64, cuda_attention_output_accepts,
          cuda_fused_rows),
    FUSED(NORM_MLP, "norm_mlp_1", 32, op_call_has_no_f64, cuda_fused_rows),
    ROWS(SILU_AND_MUL, "run_silu_and_mul_vectors", true, op_call_has_no_f64, cuda_silu),
    UNITS(ADD, add, 256, 1024, op_call_has_no_f64),
    UNITS(ARGMAX, argmax, 1024, 1, op_call_has_no_f64),
    UNITS(TOP_K, top_k, 1024, 1, op_call_has_no_f64),
    {.op = OP_HEAD_NORM,
     .name = "cuda",
     .image = "head_norm",
     .function = "run_head_norm",
     .threads = 256,
     .units = 1,
     .accepts = op_call_has_no_f64,
     .launch = launch_units,
     .early = true},
    {.op = OP_ADJUST_LOGITS,
     .name = "cuda",
     .image = "adjust_logits",
     .function = "run_adjust_logits",
     .threads = 256,
     .units = 2048,
     .accepts = op_call_has_no_f64,
     .launch = launch_units,
     .early = true},
    {.op = OP_SAMPLING,
     .name = "cuda",
     .image = "sampling_exact",
     .function = "run_sampling",
     .threads = 512,
     .accepts = op_call_has_no_f64,
     .launch = launch_sampling},
    {0},
};

_Static_assert(sizeof cuda_kernels / sizeof *cuda_kernels <= CUDA_MAX_KERNELS, "raise the maximum");

qp_status cuda_ops_init(cuda_ops *ops, cuda_device *device, size_t workspace_bytes, bool with_blas,
                        qp_error *error)
{
    *ops = (cuda_ops){.device = device};
    /* Without the library tiles serve. */
    if (with_blas && cuda_blas_open(&ops->blas, NULL) != QP_OK) ops->blas = NULL;
    return cuda_buffer_alloc(device, workspace_bytes + CUDA_OWN_WORKSPACE, "workspace",
                             &ops->workspace, error);
}

cuda_address cuda_ops_counters(const cuda_ops *ops)
{
    return ops->workspace.address + ops->workspace.bytes - CUDA_COUNTERS * 4;
}

void cuda_ops_free(cuda_ops *ops)
{
    if (!ops->device) return;
    cuda_blas_close(ops->blas);
    cuda_buffer_free(ops->device, &ops->workspace);
    *ops = (cuda_ops){0};
}

const cuda_kernel *cuda_ops_choose(const cuda_ops *ops, op_code op, const op_call *call)
{
    const cuda_kernel *chosen = NULL;
    for (const cuda_kernel *k = cuda_kernels; k->name; k++) {
        if (k->op != op || !k->accepts(call) || (k->pays && !k->pays(call))) continue;
        if (k->launch == cuda_linear_blas && !ops->blas) continue;
        if (k->launch == cuda_linear_stream && !cuda_device_is_hopper(ops->device)) continue;
        chosen = k;
    }
    return chosen;
}

size_t cuda_ops_workspace(op_code op, const op_call *call)
{
    size_t most = 0;
    for (const cuda_kernel *k = cuda_kernels; k->name; k++) {
        if (k->op != op || !k->workspace || !k->accepts(call)) continue;
        size_t bytes = k->workspace(call);
        if (bytes > most) most = bytes;
    }
    return round_up(most, CUDA_ALIGNMENT);
}

qp_status cuda_ops_launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          qp_error *error)
{
    cuda_function *function = &ops->functions[kernel - cuda_kernels];
    if (!*function)
        TRY(cuda_device_function(ops->device, kernel->image, kernel->function, 0, function, error));
    if (!kernel->whole && !ops->narrow_next) ops->narrowed.rank = 0;
    qp_status status = kernel->launch(ops, kernel, call, error);
    ops->narrow_next = false;
    return status;
}
