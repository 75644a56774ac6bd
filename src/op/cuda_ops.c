/* Operators on the GPU: see op/cuda_ops.h. */
#include "op/cuda_ops.h"

#include "base/checked.h"

#include <stdio.h>

enum { NARROW_THREADS = 256, EIGHT = 8 };

/* ---- single calls --------------------------------------------------------------------------- */

qp_status cuda_ops_init(cuda_ops *ops, cuda_device *device, size_t workspace_bytes, bool with_blas,
                        qp_error *error)
{
    *ops = (cuda_ops){.device = device, .few_rows = CUDA_FEW_ROWS};
    /* Without cuBLASLt the tiles kernel is used. */
    if (with_blas && cuda_blas_open(&ops->blas, NULL) != QP_OK) ops->blas = NULL;
    ops->has_blas = ops->blas != NULL;
    return cuda_buffer_alloc(device, workspace_bytes + CUDA_OWN_WORKSPACE, "workspace",
                             &ops->workspace, error);
}

void cuda_ops_free(cuda_ops *ops)
{
    if (!ops->device) return;
    cuda_blas_close(ops->blas);
    cuda_buffer_free(ops->device, &ops->workspace);
    *ops = (cuda_ops){0};
}

const cuda_kernel *cuda_ops_custom(const cuda_kernel *custom, op_code op, const op_call *call)
{
    const cuda_kernel *row = custom ? &custom[op] : NULL;
    return row && row->name && (!row->accepts || row->accepts(call)) ? row : NULL;
}

bool cuda_kernel_runs(const cuda_ops *ops, const cuda_kernel *kernel)
{
    return cuda_device_has(ops->device, kernel->needs) && (!kernel->needs_blas || ops->has_blas) &&
           (!kernel->needs_ranks || ops->exchange || ops->carrier);
}

static bool takes(const cuda_ops *ops, const cuda_kernel *kernel, const op_call *call)
{
    return kernel->accepts(call) && (!kernel->pays || kernel->pays(ops, call)) &&
           cuda_kernel_runs(ops, kernel);
}

const cuda_kernel *cuda_ops_choose(const cuda_ops *ops, op_code op, const op_call *call)
{
    const cuda_kernel *chosen = cuda_ops_custom(ops->custom, op, call);
    if (chosen) return chosen;
    for (const cuda_kernel *k = op_get(op)->cuda; k && k->name; k++)
        if (k->launch && takes(ops, k, call)) chosen = k;
    return chosen;
}

const cuda_kernel *cuda_ops_fusing(const cuda_ops *ops, const cuda_kernel *chosen,
                                   const op_call *call)
{
    if (chosen->custom_launch) return NULL;
    for (const cuda_kernel *k = op_get(chosen->op)->cuda; k && k->name; k++)
        if (!k->launch && takes(ops, k, call)) return k;
    return NULL;
}

size_t cuda_ops_workspace(const cuda_kernel *custom, op_code op, const op_call *call)
{
    const cuda_kernel *kernel = cuda_ops_custom(custom, op, call);
    size_t most = kernel && kernel->workspace ? kernel->workspace(call) : 0;
    for (const cuda_kernel *k = op_get(op)->cuda; k && k->name; k++) {
        if (!k->workspace || !k->accepts(call)) continue;
        size_t bytes = k->workspace(call);
        if (bytes > most) most = bytes;
    }
    return round_up(most, CUDA_ALIGNMENT);
}

qp_status cuda_ops_launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          qp_error *error)
{
    const cuda_forms forms = {0};
    return kernel->launch(ops, kernel, call, &forms, error);
}

/* ---- for launchers ------------------------------------------------------------------------- */

qp_status cuda_ops_start(cuda_ops *ops, const cuda_start *start, const cuda_argument *arguments,
                         qp_error *error)
{
    if (ops->recording) return cuda_recording_add(ops->recording, start, arguments, error);
    return cuda_start_kernel(ops->device, start, arguments, false, error);
}

qp_status cuda_ops_start_early(cuda_ops *ops, const char *name, int64_t blocks, int64_t rows,
                               int64_t threads, const cuda_argument *arguments, qp_error *error)
{
    cuda_start start = {.image = "cuda_ops",
                        .grid = {(unsigned)blocks, (unsigned)rows, 1},
                        .threads = (unsigned)threads,
                        .cluster = 1};
    snprintf(start.name, sizeof start.name, "%s", name);
    return cuda_ops_start(ops, &start, arguments, error);
}

qp_status cuda_ops_multiply(cuda_ops *ops, const cuda_product *product, qp_error *error)
{
    if (!ops->recording)
        return cuda_blas_multiply(ops->blas, product, ops->workspace.address, ops->device->stream,
                                  error);
    if (ops->blas) TRY(cuda_blas_prepare(ops->blas, product, error));
    return cuda_recording_add_product(ops->recording, product, error);
}

qp_status cuda_ops_map(const cuda_ops *ops, const cuda_map *map, char at[CUDA_MAP_BYTES],
                       qp_error *error)
{
    if (!ops->recording) return cuda_map_encode(ops->device, map, at, error);
    if (cuda_map_describe(map, at)) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "a matrix has an address or strides that the GPU's tensor copies cannot use");
}

/* A kernel whose blocks process kernel->units units each. */
qp_status cuda_launch_units(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            const cuda_forms *forms, qp_error *error)
{
    op_call own = *call;
    int64_t units = kernel->units, blocks = (call->end - call->begin + units - 1) / units;
    cuda_start start = {.image = kernel->image,
                        .grid = {(unsigned)blocks, 1, 1},
                        .threads = (unsigned)kernel->threads,
                        .cluster = kernel->early};
    (void)forms;
    snprintf(start.name, sizeof start.name, "%s", kernel->function);
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(units)),
                          error);
}

static int run_custom(const void *kernel, const void *call, cuda_stream stream)
{
    return ((const cuda_kernel *)kernel)->custom_launch(call, stream);
}

qp_status cuda_launch_custom(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                             const cuda_forms *forms, qp_error *error)
{
    op_call own = *call;
    const size_t room = ops->workspace.bytes - CUDA_OWN_WORKSPACE;
    const size_t bytes = kernel->workspace ? kernel->workspace(call) : 0;
    (void)forms;
    if (bytes > room)
        return error_set(error, QP_INVALID,
                         "the kernel %s wants %zu bytes of scratch for a call of %s, and at most "
                         "%zu for the largest calls: smaller calls may not want more",
                         kernel->name, bytes, op_get(kernel->op)->name, room);
    own.scratch = bytes ? cuda_host_form(cuda_narrow_place(ops)) : NULL;
    if (ops->recording)
        return cuda_recording_add_host(ops->recording, kernel->name, run_custom, kernel,
                                       (cuda_argument)CUDA_ARGUMENT(own), error);
    return cuda_check(kernel->custom_launch(&own, ops->device->stream), kernel->name, error);
}

bool cuda_narrows_always(const op_call *call)
{
    (void)call;
    return true;
}

cuda_address cuda_ops_counters(const cuda_ops *ops)
{
    return ops->workspace.address + ops->workspace.bytes - CUDA_COUNTERS * 4;
}

cuda_address cuda_narrow_place(const cuda_ops *ops)
{
    return ops->workspace.address + CUDA_BLAS_WORKSPACE;
}

cuda_address cuda_other_narrow_place(const cuda_ops *ops, cuda_address at)
{
    cuda_address first = cuda_narrow_place(ops);
    size_t half = (ops->workspace.bytes - CUDA_OWN_WORKSPACE) / 2;
    return at == first ? first + half / CUDA_ALIGNMENT * CUDA_ALIGNMENT : first;
}

qp_status cuda_narrow_rows(cuda_ops *ops, const tensor *from, int64_t first, int64_t rows,
                           cuda_address to, qp_error *error)
{
    tensor view = *from;
    view.data = (char *)view.data + first * view.stride[0];
    view.shape[0] = rows;
    int64_t groups = rows * ((view.shape[1] + EIGHT - 1) / EIGHT);
    return cuda_ops_start_early(ops, "run_narrow", (groups + NARROW_THREADS - 1) / NARROW_THREADS,
                                1, NARROW_THREADS,
                                CUDA_ARGUMENTS(CUDA_ARGUMENT(view), CUDA_ARGUMENT(to)), error);
}

qp_status cuda_narrow_x(cuda_ops *ops, const tensor *x, qp_error *error)
{
    return cuda_narrow_rows(ops, x, 0, x->shape[0], cuda_narrow_place(ops), error);
}
