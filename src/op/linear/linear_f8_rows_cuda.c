/* linear with matrices in FP8 by cuBLASLt: see linear_f8_rows_cuda.h. A matrix that is stored in
 * F8_128, as single calls have it, is arranged in the workspace first.
 */
#include "op/linear/linear_f8_rows_cuda.h"

#include "base/checked.h"
#include "op/linear/linear.h"
#include "op/linear/linear_cuda.h"
#include "op/linear/linear_f8_cuda.h"
#include "op/linear/linear_wide_cuda.h"
#include "op/rows_cuda.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/variants.h"

#include <stdio.h>

static const char IMAGE[] = "linear_f8_rows";

enum { BLOCK = 128, ARRANGE_BLOCKS = 2048, ARRANGE_THREADS = 256 };

/* ---- the matrix ---------------------------------------------------------------------------- */

bool cuda_f8_rows_can(int64_t rows, int64_t columns)
{
    return rows > 0 && columns > 0 && rows % F8_ROWS_FOLD == 0 && columns % BLOCK == 0 &&
           columns <= F8_ROWS_MOST;
}

qp_status cuda_f8_rows_arrange(cuda_ops *ops, const tensor *from, cuda_address to,
                               cuda_address scales, qp_error *error)
{
    const cuda_start start =
        cuda_f8_start(IMAGE, "run_f8_rows_arrange", ARRANGE_BLOCKS, 1, ARRANGE_THREADS);
    tensor own = *from;
    return cuda_ops_start(
        ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(to), CUDA_ARGUMENT(scales)),
        error);
}

static size_t number_bytes(const tensor *weight)
{
    return round_up((size_t)(weight->shape[0] * weight->shape[1]), CUDA_ALIGNMENT);
}

/* Of a matrix that is arranged in the workspace. */
static size_t matrix_room(const tensor *weight)
{
    return weight->type == DTYPE_F8 ? 0 : number_bytes(weight) + (size_t)weight->shape[0] * 4;
}

/* The matrix as cuBLASLt reads it. */
typedef struct f8_matrix {
    cuda_address numbers, scales;
} f8_matrix;

static qp_status find_matrix(cuda_ops *ops, const op_call *call, f8_matrix *out, qp_error *error)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    if (weight->type == DTYPE_F8) {
        *out = (f8_matrix){cuda_device_form(weight->data), cuda_f8_row_scales(weight)};
        return QP_OK;
    }
    out->numbers = cuda_narrow_place(ops) + cuda_f8_rows_workspace(call) - matrix_room(weight);
    out->scales = out->numbers + number_bytes(weight);
    return cuda_f8_rows_arrange(ops, weight, out->numbers, out->scales, error);
}

/* ---- x ------------------------------------------------------------------------------------- */

static size_t f8_bytes(int64_t rows, int64_t columns)
{
    return round_up((size_t)(rows * columns + rows * 4), CUDA_ALIGNMENT);
}

/* x in BF16, then in FP8; twice, since a chain leaves x in the other half; then the matrix. */
size_t cuda_f8_rows_workspace(const op_call *call)
{
    const int64_t *shape = call->tensors[LINEAR_X].shape;
    return 2 * (cuda_linear_bf16_bytes(shape[0], shape[1]) + f8_bytes(shape[0], shape[1])) +
           matrix_room(&call->tensors[LINEAR_WEIGHT]);
}

static cuda_address scales_of(cuda_address at, int64_t rows, int64_t columns)
{
    return at + (cuda_address)(rows * columns);
}

/* Launches a kernel that leaves rows of n elements in FP8 at `to`: a block a row. */
static qp_status leave_rows(cuda_ops *ops, const char *what, cuda_address x, int64_t rows,
                            int64_t n, cuda_address to, qp_error *error)
{
    const bool many = rows >= ops->device->n_multiprocessors;
    const int each = many || n > F8_ROWS_MOST_THREADS * 8 ? F8_ROWS_LONG : F8_ROWS_SHORT;
    const int64_t threads = cuda_warps_of((n / 8 + each - 1) / each, F8_ROWS_MOST_THREADS);
    const cuda_address scales = scales_of(to, rows, n);
    const int32_t length = (int32_t)n;
    char name[CUDA_KERNEL_NAME];
    snprintf(name, sizeof name, "run_f8_rows_%s_%d", what, each);
    const cuda_start start = cuda_f8_start(IMAGE, name, rows, 1, threads);
    return cuda_ops_start(ops, &start,
                          CUDA_ARGUMENTS(CUDA_ARGUMENT(x), CUDA_ARGUMENT(length), CUDA_ARGUMENT(to),
                                         CUDA_ARGUMENT(scales)),
                          error);
}

/* The address of x in FP8, followed by its scales; converts x if that was not done yet. */
static qp_status find_x(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                        cuda_address *at, qp_error *error)
{
    const int64_t rows = call->tensors[LINEAR_X].shape[0], n = call->tensors[LINEAR_X].shape[1];
    cuda_address narrowed;
    TRY(cuda_f8_place_x(ops, call, forms, &narrowed, at, error));
    return narrowed ? leave_rows(ops, "quantise", narrowed, rows, n, *at, error) : QP_OK;
}

const op_tolerance cuda_f8_rows_tolerances[] = {
    {DTYPE_F32, 1e-1, 4e-1}, {DTYPE_F16, 1e-1, 4e-1}, {DTYPE_BF16, 1e-1, 4e-1}, {0}};

/* ---- products ------------------------------------------------------------------------------ */

bool cuda_f8_rows_accepts(const op_call *call)
{
    const tensor *t = call->tensors, *weight = &t[LINEAR_WEIGHT];
    return cuda_linear_is_f32(call) && (weight->type == DTYPE_F8_128 || cuda_f8_has_rows(weight)) &&
           cuda_f8_rows_can(weight->shape[0], weight->shape[1]) &&
           cuda_linear_on_vectors(&t[LINEAR_OUT]) && cuda_linear_on_vectors(&t[LINEAR_RESIDUAL]);
}

bool cuda_f8_rows_pays(const cuda_ops *ops, const op_call *call)
{
    (void)ops;
    return cuda_f8_has_rows(&call->tensors[LINEAR_WEIGHT]);
}

static qp_status product_of(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                            cuda_product *out, qp_error *error)
{
    const tensor *x = &call->tensors[LINEAR_X], *weight = &call->tensors[LINEAR_WEIGHT];
    f8_matrix matrix;
    cuda_address at;
    TRY(find_x(ops, call, forms, &at, error));
    TRY(find_matrix(ops, call, &matrix, error));
    *out = (cuda_product){.m = x->shape[0],
                          .n = weight->shape[0],
                          .k = weight->shape[1],
                          .x = at,
                          .weight = matrix.numbers,
                          .x_scales = scales_of(at, x->shape[0], x->shape[1]),
                          .weight_scales = matrix.scales,
                          .x_pitch = weight->shape[1],
                          .weight_pitch = weight->shape[1]};
    return QP_OK;
}

qp_status cuda_f8_rows(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                       const cuda_forms *forms, qp_error *error)
{
    const tensor *residual = &call->tensors[LINEAR_RESIDUAL], *out = &call->tensors[LINEAR_OUT];
    cuda_product product;
    (void)kernel;
    TRY(product_of(ops, call, forms, &product, error));
    product.out = cuda_device_form(out->data);
    product.out_pitch = out->stride[0] / 4;
    if (residual->rank) {
        product.residual = cuda_device_form(residual->data);
        product.residual_pitch = residual->stride[0] / 4;
    }
    TRY(cuda_ops_multiply(ops, &product, error));
    return call->tensors[LINEAR_BIAS].rank ? cuda_linear_add_bias(ops, call, error) : QP_OK;
}

/* The product's output in BF16 and without gaps, in the memory of its output in float32. */
static qp_status multiply_to_bf16(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                                  qp_error *error)
{
    const tensor *out = &call->tensors[LINEAR_OUT];
    cuda_product product;
    TRY(product_of(ops, call, forms, &product, error));
    product.out = cuda_device_form(out->data);
    product.out_pitch = out->shape[1];
    product.out_bf16 = 1;
    return cuda_ops_multiply(ops, &product, error);
}

/* ---- silu_and_mul -------------------------------------------------------------------------- */

bool cuda_f8_rows_activates(const cuda_ops *ops, const op_call *calls)
{
    const tensor *to = &calls[1].tensors[SILU_AND_MUL_OUT], *out = &calls[0].tensors[LINEAR_OUT];
    (void)ops;
    return cuda_linear_is_activated(&calls[0], &calls[1]) && to->shape[1] % 8 == 0 &&
           to->shape[1] <= F8_ROWS_MOST && to->data == out->data &&
           out->stride[0] == 4 * out->shape[1];
}

/* After gate and up in BF16. */
static cuda_address activated_place(const op_call *calls)
{
    const tensor *out = &calls[0].tensors[LINEAR_OUT];
    return cuda_device_form(out->data) + cuda_linear_bf16_bytes(out->shape[0], out->shape[1]);
}

cuda_left cuda_f8_rows_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x)
{
    (void)ops, (void)x;
    return (cuda_left){.narrowed = activated_place(calls), .in_f8 = true};
}

qp_status cuda_f8_rows_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                            qp_error *error)
{
    const tensor *out = &calls[0].tensors[LINEAR_OUT];
    TRY(multiply_to_bf16(ops, &calls[0], forms, error));
    return leave_rows(ops, "silu", cuda_device_form(out->data), out->shape[0], out->shape[1] / 2,
                      activated_place(calls), error);
}

/* ---- rope and kv_append -------------------------------------------------------------------- */

bool cuda_f8_rows_turns(const cuda_ops *ops, const op_call *calls)
{
    const tensor *out = &calls[0].tensors[LINEAR_OUT];
    return out->stride[0] == 4 * out->shape[1] && cuda_linear_wide_turns(ops, calls);
}

cuda_left cuda_f8_rows_rope_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x)
{
    cuda_left left = cuda_linear_wide_rope_leaves(ops, calls, x);
    left.q.stride[0] = 2 * calls[0].tensors[LINEAR_OUT].shape[1];
    return left;
}

qp_status cuda_f8_rows_rope(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                            qp_error *error)
{
    rope_rows turning = cuda_rope_rows(&calls[1]);
    append_rows appending = cuda_append_rows(&calls[2]);
    const tensor q = cuda_f8_rows_rope_leaves(ops, calls, 0).q;
    turning.q = (device_rows){q.data, q.stride[0], DTYPE_BF16};
    turning.q_head = q.stride[1];
    const int64_t heads = 2 * turning.n_heads - turning.n_q_heads, eights = turning.half / 8;
    const int64_t threads = (heads + ROPE_HEADS - 1) / ROPE_HEADS * eights;
    const cuda_start start = cuda_f8_start("linear_f8_rope", "run_f8_rope", q.shape[0], 1,
                                           cuda_warps_of(threads, ROPE_THREADS));
    TRY(multiply_to_bf16(ops, &calls[0], forms, error));
    return cuda_ops_start(ops, &start,
                          CUDA_ARGUMENTS(CUDA_ARGUMENT(turning), CUDA_ARGUMENT(appending)), error);
}
