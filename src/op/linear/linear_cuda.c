/* linear on the GPU: the table of its kernels, and three of them. See linear_cuda.h. */
#include "op/linear/linear_cuda.h"

#include "base/checked.h"
#include "op/linear/linear.h"
#include "op/linear/linear_eight_cuda.h"
#include "op/linear/linear_f8_cuda.h"
#include "op/linear/linear_f8_rows_cuda.h"
#include "op/linear/linear_stream_cuda.h"
#include "op/linear/linear_summed_cuda.h"
#include "op/linear/linear_wide_cuda.h"
#include "op/rows_cuda.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/variants.h"

#include <stdio.h>

enum {
    FEW_BLOCKS = 6, /* resident on a multiprocessor, limited by shared memory and registers */
    /* From this many rows on cuBLASLt is faster, if the weight is stored in BF16. */
    MANY_ROWS_STORED = 16,
    WIDENED = 64 << 20, /* least bytes of BF16 to which weights are decoded at a time */
    BIAS_THREADS = 256,
};

/* Matrices in panels (linear_f8.h) have kernels of their own. */
static bool tiles_accepts(const op_call *call)
{
    return op_call_has_no_f64(call) && call->tensors[LINEAR_WEIGHT].type != DTYPE_F8;
}

/* ---- few rows ------------------------------------------------------------------------------ */

/* Types with kernels of their own; all others share one kernel that branches on the type. */
static const struct {
    dtype type;
    const char *name;
} few_types[] = {{DTYPE_F32, "F32"}, {DTYPE_COUNT, "COUNT"}};
static const int few_rows[] = {1, 4, 8};
enum { N_FEW_ROWS = 3 };

static bool few_accepts(const op_call *call)
{
    return tiles_accepts(call) && call->tensors[LINEAR_X].shape[0] <= LINEAR_FEW_ROWS;
}

/* Weights that the stream kernel reads are its own from few_rows on. */
static bool few_pays(const cuda_ops *ops, const op_call *call)
{
    return !cuda_linear_stream_accepts(call) || !cuda_linear_stream_pays(ops, call);
}

static qp_status launch_few(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            const cuda_forms *forms, qp_error *error)
{
    op_call own = *call;
    int64_t rows = call->tensors[LINEAR_X].shape[0], units = 0;
    int type = 0, form = 0;
    char name[CUDA_KERNEL_NAME];
    (void)kernel, (void)forms;
    while (few_types[type].type != call->tensors[LINEAR_WEIGHT].type &&
           few_types[type].type != DTYPE_COUNT)
        type++;
    while (few_rows[form] < rows && form < N_FEW_ROWS - 1)
        form++;
    snprintf(name, sizeof name, "run_linear_%s_%d", few_types[type].name, few_rows[form]);
    int64_t groups = (call->end - call->begin + LINEAR_WARPS - 1) / LINEAR_WARPS;
    int64_t most = (int64_t)ops->device->n_multiprocessors * FEW_BLOCKS;
    return cuda_ops_start_early(ops, name, groups < most ? groups : most,
                                (rows + few_rows[form] - 1) / few_rows[form], LINEAR_WARPS * 32,
                                CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(units)), error);
}

/* ---- tiles --------------------------------------------------------------------------------- */

qp_status cuda_linear_tiles(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            const cuda_forms *forms, qp_error *error)
{
    op_call own = *call;
    int64_t units = 0, rows = call->tensors[LINEAR_X].shape[0];
    int64_t columns = (call->end - call->begin + LINEAR_TILE_ROWS - 1) / LINEAR_TILE_ROWS;
    (void)kernel, (void)forms;
    return cuda_ops_start_early(
        ops, "run_linear_tiles", columns, (rows + LINEAR_TILE_ROWS - 1) / LINEAR_TILE_ROWS,
        LINEAR_TILE_THREADS, CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(units)), error);
}

/* ---- what products need --------------------------------------------------------------------- */

bool cuda_linear_on_vectors(const tensor *view)
{
    return !view->rank || cuda_on_vectors(view->data, view->stride[0]);
}

bool cuda_linear_is_f32(const op_call *call)
{
    const tensor *t = call->tensors;
    return op_call_has_no_f64(call) && t[LINEAR_OUT].type == DTYPE_F32 &&
           (!t[LINEAR_RESIDUAL].rank || t[LINEAR_RESIDUAL].type == DTYPE_F32) &&
           t[LINEAR_X].shape[0] > 0;
}

size_t cuda_linear_bf16_bytes(int64_t rows, int64_t columns)
{
    return round_up((size_t)(rows * columns) * 2, CUDA_ALIGNMENT);
}

/* ---- epilogues --------------------------------------------------------------------------- */

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

const op_tolerance cuda_linear_narrowed_tolerances[] = {
    {DTYPE_F32, 6e-3, 2e-2}, {DTYPE_F16, 6e-3, 2e-2}, {DTYPE_BF16, 1e-2, 2e-2}, {0}};

static bool blas_accepts(const op_call *call)
{
    const tensor *t = call->tensors;
    return tiles_accepts(call) && cuda_linear_is_f32(call) && t[LINEAR_X].shape[1] > 0 &&
           t[LINEAR_X].shape[1] % 8 == 0 && t[LINEAR_WEIGHT].shape[0] % 4 == 0 &&
           cuda_linear_on_vectors(&t[LINEAR_OUT]);
}

static bool reads_as_stored(const tensor *weight)
{
    return weight->type == DTYPE_BF16 && cuda_linear_on_vectors(weight);
}

static bool blas_pays(const cuda_ops *ops, const op_call *call)
{
    (void)ops;
    int64_t rows = call->tensors[LINEAR_X].shape[0];
    return rows >= (reads_as_stored(&call->tensors[LINEAR_WEIGHT]) ? MANY_ROWS_STORED
                                                                   : CUDA_LINEAR_MANY_ROWS);
}

/* Rows of a weight that are decoded at a time. */
static int64_t widened_rows(const tensor *weight)
{
    int64_t row = weight->shape[1] * 2, rows = WIDENED / row / LINEAR_TILE_ROWS * LINEAR_TILE_ROWS;
    if (rows < LINEAR_TILE_ROWS) rows = LINEAR_TILE_ROWS;
    return rows < weight->shape[0] ? rows : weight->shape[0];
}

static size_t narrowed_bytes(const tensor *x)
{
    return cuda_linear_bf16_bytes(x->shape[0], x->shape[1]);
}

/* Memory for cuBLASLt itself, for x in BF16, and for a part of the weight in BF16. */
static size_t blas_workspace(const op_call *call)
{
    const tensor *x = &call->tensors[LINEAR_X], *weight = &call->tensors[LINEAR_WEIGHT];
    size_t widened = (size_t)widened_rows(weight) * (size_t)weight->shape[1] * 2;
    return narrowed_bytes(x) + (reads_as_stored(weight) ? 0 : widened);
}

static cuda_address element_address(const tensor *view, int64_t column)
{
    return (cuda_address)(uintptr_t)view->data + (cuda_address)column * 4;
}

qp_status cuda_linear_add_bias(cuda_ops *ops, const op_call *call, qp_error *error)
{
    op_call own = *call;
    int64_t units = 0, n = call->end - call->begin;
    return cuda_ops_start_early(ops, "run_add_bias", (n + BIAS_THREADS - 1) / BIAS_THREADS,
                                call->tensors[LINEAR_X].shape[0], BIAS_THREADS,
                                CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(units)), error);
}

/* Multiplies features [first, first + count), whose weights are at `weight` in BF16. */
static qp_status multiply(cuda_ops *ops, const op_call *call, cuda_address x, cuda_address weight,
                          int64_t pitch, int64_t first, int64_t count, qp_error *error)
{
    const tensor *out = &call->tensors[LINEAR_OUT], *residual = &call->tensors[LINEAR_RESIDUAL];
    const cuda_product product = {
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
    return cuda_ops_multiply(ops, &product, error);
}

qp_status cuda_linear_narrowed_x(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                                 cuda_address *at, qp_error *error)
{
    *at = forms->x ? forms->x : cuda_narrow_place(ops);
    return forms->x ? QP_OK : cuda_narrow_x(ops, &call->tensors[LINEAR_X], error);
}

static qp_status launch_blas(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                             const cuda_forms *forms, qp_error *error)
{
    const tensor *x = &call->tensors[LINEAR_X], *weight = &call->tensors[LINEAR_WEIGHT];
    cuda_address widened = cuda_narrow_place(ops) + narrowed_bytes(x), narrowed;
    bool stored = reads_as_stored(weight);
    int64_t step = stored ? call->end - call->begin : widened_rows(weight);
    TRY(cuda_linear_narrowed_x(ops, call, forms, &narrowed, error));
    for (int64_t o = call->begin; o < call->end; o += step) {
        int64_t count = call->end - o < step ? call->end - o : step;
        cuda_address at = widened;
        int64_t pitch = weight->shape[1];
        if (stored) {
            at = cuda_device_form(weight->data) + (cuda_address)(o * weight->stride[0]);
            pitch = weight->stride[0] / 2;
        } else {
            TRY(cuda_narrow_rows(ops, weight, o, count, widened, error));
        }
        qp_status status = multiply(ops, call, narrowed, at, pitch, o, count, error);
        if (status == QP_UNSUPPORTED && o == call->begin &&
            !forms->x) /* else only x may be there */
            return cuda_linear_tiles(ops, kernel, call, forms, error);
        TRY(status);
    }
    return call->tensors[LINEAR_BIAS].rank ? cuda_linear_add_bias(ops, call, error) : QP_OK;
}

/* ---- the table ----------------------------------------------------------------------------- */

/* The nodes that epilogues run. */
#define WITH_SILU .name = "silu_and_mul", .with = {OP_SILU_AND_MUL}, .n_with = 1
#define WITH_ROPE                                                                                  \
    .name = "rope, kv_append", .with = {OP_ROPE, OP_KV_APPEND}, .n_with = 2, .moves_q = true

static const cuda_fusion eight_fusions[] = {
    {WITH_SILU, .accepts = cuda_linear_eight_activates, .launch = cuda_linear_eight_silu},
    {0},
};
static const cuda_fusion stream_fusions[] = {
    {WITH_SILU, .narrows = true, .accepts = cuda_linear_stream_activates,
     .leaves = cuda_linear_stream_leaves, .launch = cuda_linear_stream_silu},
    {0},
};
static const cuda_fusion f8_stream_fusions[] = {
    {WITH_SILU, .rounds = true, .accepts = cuda_f8_stream_activates,
     .leaves = cuda_f8_stream_leaves, .launch = cuda_f8_stream_silu},
    {0},
};
static const cuda_fusion f8_wide_fusions[] = {
    {WITH_SILU, .rounds = true, .accepts = cuda_f8_wide_activates, .leaves = cuda_f8_wide_leaves,
     .launch = cuda_f8_wide_silu},
    {WITH_ROPE, .accepts = cuda_linear_wide_turns, .leaves = cuda_linear_wide_rope_leaves,
     .launch = cuda_f8_wide_rope},
    {0},
};
static const cuda_fusion f8_rows_fusions[] = {
    {WITH_SILU, .rounds = true, .accepts = cuda_f8_rows_activates, .leaves = cuda_f8_rows_leaves,
     .launch = cuda_f8_rows_silu},
    {WITH_ROPE, .accepts = cuda_f8_rows_turns, .leaves = cuda_f8_rows_rope_leaves,
     .launch = cuda_f8_rows_rope},
    {0},
};
static const cuda_fusion blas_fusions[] = {
    {.name = "all_reduce, rms_norm",
     .with = {OP_ALL_REDUCE, OP_RMS_NORM},
     .n_with = 2,
     .narrows = true,
     .sums = true,
     .accepts = cuda_linear_summed_accepts,
     .leaves = cuda_linear_summed_leaves,
     .launch = cuda_linear_summed},
    {0},
};
static const cuda_fusion wide_fusions[] = {
    {WITH_SILU, .narrows = true, .accepts = cuda_linear_wide_activates,
     .leaves = cuda_linear_wide_silu_leaves, .launch = cuda_linear_wide_silu},
    {WITH_ROPE, .accepts = cuda_linear_wide_turns, .leaves = cuda_linear_wide_rope_leaves,
     .launch = cuda_linear_wide_rope},
    {.name = "argmax",
     .with = {OP_ARGMAX},
     .n_with = 1,
     .accepts = cuda_linear_wide_finds,
     .launch = cuda_linear_wide_likeliest},
    {0},
};

/* The begin of a row for weights in FP8. */
#define F8_ROW(kernel)                                                                             \
    CUDA_ROW(LINEAR, kernel), .needs = CUDA_F8_NEEDS, .takes_narrowed = true, .aligned = true,     \
                              .whole = true

const cuda_kernel linear_cuda[] = {
    {CUDA_ROW(LINEAR, "cuda_tiles"), .accepts = tiles_accepts, .launch = cuda_linear_tiles},
    {CUDA_ROW(LINEAR, "cublaslt"), .needs_blas = true, .takes_narrowed = true,
     .accepts = blas_accepts, .pays = blas_pays, .workspace = blas_workspace, .launch = launch_blas,
     .aligned = true, .whole = true, .tolerances = cuda_linear_narrowed_tolerances,
     .fusions = blas_fusions},
    {CUDA_ROW(LINEAR, "cuda_wide"), .needs = CUDA_WIDE_NEEDS, .takes_narrowed = true,
     .accepts = cuda_linear_wide_accepts, .pays = cuda_linear_wide_pays, .fusions = wide_fusions},
    {CUDA_ROW(LINEAR, "cuda_stream"), .needs = CUDA_STREAM_NEEDS, .takes_narrowed = true,
     .accepts = cuda_linear_stream_accepts, .pays = cuda_linear_stream_pays,
     .workspace = cuda_linear_stream_workspace, .launch = cuda_linear_stream, .aligned = true,
     .whole = true, .tolerances = cuda_linear_narrowed_tolerances, .fusions = stream_fusions},
    {F8_ROW("cuda_f8_stream"), .takes_f8 = CUDA_F8_GROUPS, .accepts = cuda_f8_stream_accepts,
     .pays = cuda_f8_pays, .workspace = cuda_f8_workspace, .launch = cuda_f8_stream,
     .tolerances = cuda_f8_tolerances, .fusions = f8_stream_fusions},
    {F8_ROW("cuda_f8"), .takes_f8 = CUDA_F8_GROUPS, .accepts = cuda_f8_wide_accepts,
     .pays = cuda_f8_pays, .workspace = cuda_f8_workspace, .launch = cuda_f8_wide,
     .tolerances = cuda_f8_tolerances, .fusions = f8_wide_fusions},
    {F8_ROW("cublaslt_f8"), .needs_blas = true, .takes_f8 = CUDA_F8_ROWS,
     .accepts = cuda_f8_rows_accepts, .pays = cuda_f8_rows_pays,
     .workspace = cuda_f8_rows_workspace, .launch = cuda_f8_rows,
     .tolerances = cuda_f8_rows_tolerances, .fusions = f8_rows_fusions},
    {CUDA_ROW(LINEAR, "cuda"), .accepts = few_accepts, .pays = few_pays, .launch = launch_few},
    {CUDA_ROW(LINEAR, "cuda_eight"), .accepts = cuda_linear_eight_accepts,
     .pays = cuda_linear_eight_pays, .launch = cuda_linear_eight, .aligned = true,
     .fusions = eight_fusions},
    {0},
};
