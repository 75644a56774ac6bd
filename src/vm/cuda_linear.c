/* Three ways of linear on the GPU: see cuda_linear.h. */
#include "vm/cuda_linear.h"

#include "base/checked.h"
#include "op/linear/linear.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/variants.h"

#include <stdio.h>

enum {
    FEW_ROWS = 8,
    FEW_WARPS = 8,         /* linear.cuh's LINEAR_WARPS */
    FEW_BLOCKS = 6,        /* of a multiprocessor at once, by shared memory and registers */
    TILE_ROWS = 64,        /* linear.cuh's, and of features too */
    TILE_THREADS = 128,    /* linear.cuh's */
    MANY_ROWS_STORED = 16, /* from here on cuBLASLt pays where the weight is BF16 as stored */
    WIDENED = 64 << 20,    /* bytes of BF16 that weights are decoded to at a time, at least */
    NARROW_THREADS = 256,
};

/* ---- few rows ------------------------------------------------------------------------------ */

/* Types with kernels of their own; all others share one that looks at the type as it runs. */
static const struct {
    dtype type;
    const char *name;
} few_types[] = {{DTYPE_F32, "F32"}, {DTYPE_COUNT, "COUNT"}};
static const int few_rows[] = {1, 4, 8};
enum { N_FEW_ROWS = 3 };

bool cuda_linear_few_accepts(const op_call *call)
{
    return op_call_has_no_f64(call) && call->tensors[LINEAR_X].shape[0] <= FEW_ROWS;
}

qp_status cuda_linear_few(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          qp_error *error)
{
    op_call own = *call;
    int64_t rows = call->tensors[LINEAR_X].shape[0], units = 0;
    int type = 0, form = 0;
    char name[48];
    cuda_function function = NULL;
    while (few_types[type].type != call->tensors[LINEAR_WEIGHT].type &&
           few_types[type].type != DTYPE_COUNT)
        type++;
    while (few_rows[form] < rows && form < N_FEW_ROWS - 1)
        form++;
    snprintf(name, sizeof name, "run_linear_%s_%d", few_types[type].name, few_rows[form]);
    TRY(cuda_ops_find_helper(ops, CUDA_HELPER_FEW + type * N_FEW_ROWS + form, name, &function,
                             error));
    int64_t groups = (call->end - call->begin + FEW_WARPS - 1) / FEW_WARPS;
    int64_t most = (int64_t)ops->device->n_multiprocessors * FEW_BLOCKS;
    int64_t blocks = groups < most ? groups : most;
    (void)kernel;
    return cuda_ops_launch_early(ops, function, name, (unsigned)blocks,
                                 (unsigned)((rows + few_rows[form] - 1) / few_rows[form]),
                                 FEW_WARPS * 32, (void *[]){&own, &units}, error);
}

/* ---- tiles --------------------------------------------------------------------------------- */

qp_status cuda_linear_tiles(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            qp_error *error)
{
    op_call own = *call;
    int64_t units = 0, rows = call->tensors[LINEAR_X].shape[0];
    int64_t columns = (call->end - call->begin + TILE_ROWS - 1) / TILE_ROWS;
    cuda_function function = NULL;
    (void)kernel;
    TRY(cuda_ops_find_helper(ops, CUDA_HELPER_TILES, "run_linear_tiles", &function, error));
    return cuda_ops_launch_early(ops, function, "run_linear_tiles", (unsigned)columns,
                                 (unsigned)((rows + TILE_ROWS - 1) / TILE_ROWS), TILE_THREADS,
                                 (void *[]){&own, &units}, error);
}

/* ---- what stands behind a product ---------------------------------------------------------- */

bool cuda_linear_is_activated(const op_call *call, const op_call *silu)
{
    const tensor *t = call->tensors, *product = &t[LINEAR_OUT];
    const tensor *x = &silu->tensors[SILU_AND_MUL_X], *to = &silu->tensors[SILU_AND_MUL_OUT];
    return x->data == product->data && x->shape[0] == product->shape[0] &&
           x->shape[1] == product->shape[1] && x->stride[0] == product->stride[0] &&
           call->begin == 0 && call->end == t[LINEAR_WEIGHT].shape[0] && !t[LINEAR_BIAS].rank &&
           !t[LINEAR_RESIDUAL].rank && to->type == DTYPE_F32 && to->shape[0] == x->shape[0] &&
           2 * to->shape[1] == x->shape[1] && silu->begin == 0 &&
           silu->end == to->shape[0] * to->shape[1];
}

/* ---- cuBLASLt ------------------------------------------------------------------------------ */

const op_tolerance cuda_linear_blas_tolerances[] = {
    {DTYPE_F32, 6e-3, 2e-2}, {DTYPE_F16, 6e-3, 2e-2}, {DTYPE_BF16, 1e-2, 2e-2}, {0}};

static bool rows_are_aligned(const tensor *view)
{
    return view->stride[0] % 16 == 0 && (uintptr_t)view->data % 16 == 0;
}

bool cuda_linear_blas_accepts(const op_call *call)
{
    const tensor *t = call->tensors;
    return op_call_has_no_f64(call) && t[LINEAR_OUT].type == DTYPE_F32 &&
           (!t[LINEAR_RESIDUAL].rank || t[LINEAR_RESIDUAL].type == DTYPE_F32) &&
           t[LINEAR_X].shape[0] > 0 && t[LINEAR_X].shape[1] > 0 && t[LINEAR_X].shape[1] % 8 == 0 &&
           t[LINEAR_WEIGHT].shape[0] % 4 == 0 && rows_are_aligned(&t[LINEAR_OUT]);
}

static bool reads_as_stored(const tensor *weight)
{
    return weight->type == DTYPE_BF16 && rows_are_aligned(weight);
}

bool cuda_linear_blas_pays(const op_call *call)
{
    int64_t rows = call->tensors[LINEAR_X].shape[0];
    return rows >= (reads_as_stored(&call->tensors[LINEAR_WEIGHT]) ? MANY_ROWS_STORED
                                                                   : CUDA_LINEAR_MANY_ROWS);
}

/* Rows of a weight that are decoded at a time. */
static int64_t widened_rows(const tensor *weight)
{
    int64_t row = weight->shape[1] * 2, rows = WIDENED / row / TILE_ROWS * TILE_ROWS;
    if (rows < TILE_ROWS) rows = TILE_ROWS;
    return rows < weight->shape[0] ? rows : weight->shape[0];
}

static size_t narrowed_bytes(const tensor *x)
{
    return round_up((size_t)x->shape[0] * (size_t)x->shape[1] * 2, CUDA_ALIGNMENT);
}

/* cuBLASLt's own, x in BF16, and a part of the weight in BF16. */
size_t cuda_linear_blas_workspace(const op_call *call)
{
    const tensor *x = &call->tensors[LINEAR_X], *weight = &call->tensors[LINEAR_WEIGHT];
    size_t widened = (size_t)widened_rows(weight) * (size_t)weight->shape[1] * 2;
    return narrowed_bytes(x) + (reads_as_stored(weight) ? 0 : widened);
}

/* Rows [first, first + rows) of a matrix as contiguous BF16. */
static qp_status narrow(cuda_ops *ops, const tensor *from, int64_t first, int64_t rows,
                        cuda_address to, qp_error *error)
{
    tensor view = *from;
    view.data = (char *)view.data + first * view.stride[0];
    view.shape[0] = rows;
    int64_t groups = rows * ((view.shape[1] + 7) / 8);
    cuda_function function = NULL;
    TRY(cuda_ops_find_helper(ops, CUDA_HELPER_NARROW, "run_narrow", &function, error));
    return cuda_ops_launch_early(ops, function, "run_narrow",
                                 (unsigned)((groups + NARROW_THREADS - 1) / NARROW_THREADS), 1,
                                 NARROW_THREADS, (void *[]){&view, &to}, error);
}

static bool same_view(const tensor *a, const tensor *b)
{
    return a->rank == b->rank && a->data == b->data && a->type == b->type &&
           a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] && a->stride[0] == b->stride[0];
}

static cuda_address element_address(const tensor *view, int64_t column)
{
    return (cuda_address)(uintptr_t)view->data + (cuda_address)column * 4;
}

static qp_status add_bias(cuda_ops *ops, const op_call *call, qp_error *error)
{
    op_call own = *call;
    int64_t units = 0, n = call->end - call->begin;
    cuda_function function = NULL;
    TRY(cuda_ops_find_helper(ops, CUDA_HELPER_BIAS, "run_add_bias", &function, error));
    return cuda_ops_launch_early(ops, function, "run_add_bias",
                                 (unsigned)((n + NARROW_THREADS - 1) / NARROW_THREADS),
                                 (unsigned)call->tensors[LINEAR_X].shape[0], NARROW_THREADS,
                                 (void *[]){&own, &units}, error);
}

/* The features [first, first + count), whose weights lie at `weight` in BF16. */
static qp_status multiply(cuda_ops *ops, const op_call *call, cuda_address x, cuda_address weight,
                          int64_t pitch, int64_t first, int64_t count, qp_error *error)
{
    const tensor *out = &call->tensors[LINEAR_OUT], *residual = &call->tensors[LINEAR_RESIDUAL];
    cuda_product product = {
        .m = out->shape[0],
        .n = count,
        .k = call->tensors[LINEAR_X].shape[1],
        .x = x,
        .weight = weight,
        .residual = residual->rank ? element_address(residual, first) : 0,
        .out = element_address(out, first),
        .x_pitch = call->tensors[LINEAR_X].shape[1],
        .weight_pitch = pitch,
        .residual_pitch = residual->rank ? residual->stride[0] / 4 : 0,
        .out_pitch = out->stride[0] / 4,
    };
    return cuda_blas_multiply(ops->blas, &product, ops->workspace.address, ops->device->stream,
                              error);
}

cuda_address cuda_linear_narrowed(const cuda_ops *ops)
{
    return ops->workspace.address + CUDA_BLAS_WORKSPACE;
}

cuda_address cuda_linear_other_narrowed(const cuda_ops *ops, cuda_address at)
{
    cuda_address first = cuda_linear_narrowed(ops);
    size_t half = (ops->workspace.bytes - CUDA_OWN_WORKSPACE) / 2;
    return at == first ? first + half / CUDA_ALIGNMENT * CUDA_ALIGNMENT : first;
}

qp_status cuda_linear_narrow_x(cuda_ops *ops, const tensor *x, cuda_address *at, qp_error *error)
{
    if (!same_view(&ops->narrowed, x)) {
        *at = cuda_linear_narrowed(ops);
        TRY(narrow(ops, x, 0, x->shape[0], *at, error));
        ops->narrowed = *x;
        ops->narrowed_at = *at;
    }
    *at = ops->narrowed_at;
    return QP_OK;
}

qp_status cuda_linear_blas(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                           qp_error *error)
{
    const tensor *x = &call->tensors[LINEAR_X], *weight = &call->tensors[LINEAR_WEIGHT];
    cuda_address widened = cuda_linear_narrowed(ops) + narrowed_bytes(x), narrowed;
    bool stored = reads_as_stored(weight), given = same_view(&ops->narrowed, x);
    int64_t step = stored ? call->end - call->begin : widened_rows(weight);
    TRY(cuda_linear_narrow_x(ops, x, &narrowed, error));
    for (int64_t o = call->begin; o < call->end; o += step) {
        int64_t count = call->end - o < step ? call->end - o : step;
        cuda_address at = widened;
        int64_t pitch = weight->shape[1];
        if (stored) {
            at = (cuda_address)(uintptr_t)weight->data + (cuda_address)(o * weight->stride[0]);
            pitch = weight->stride[0] / 2;
        } else {
            TRY(narrow(ops, weight, o, count, widened, error));
        }
        qp_status status = multiply(ops, call, narrowed, at, pitch, o, count, error);
        if (status == QP_UNSUPPORTED && o == call->begin &&
            !given) /* x may be there in BF16 alone */
            return cuda_linear_tiles(ops, kernel, call, error);
        TRY(status);
    }
    return call->tensors[LINEAR_BIAS].rank ? add_bias(ops, call, error) : QP_OK;
}
