/* silu_and_mul on the GPU: by eights where rows are aligned for it, else by elements. See
 * rows_cuda.h. */
#include "op/rows_cuda.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/variants.h"

enum { ELEMENTS = 2048 /* a block, by elements */ };

static bool accepts(const op_call *call)
{
    return silu_and_mul_is_plain(call) && op_call_has_no_f64(call);
}

static bool by_eights(const op_call *call)
{
    const tensor *x = &call->tensors[SILU_AND_MUL_X], *out = &call->tensors[SILU_AND_MUL_OUT];
    return (out->shape[1] | call->begin | call->end) % CUDA_ROWS_EIGHT == 0 &&
           cuda_rows_on_vectors(cuda_rows_of(x)) && cuda_rows_on_vectors(cuda_rows_of(out));
}

/* Where the output is stored in BF16, it is not stored in its own type. */
static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    const tensor *x = &call->tensors[SILU_AND_MUL_X], *out = &call->tensors[SILU_AND_MUL_OUT];
    int64_t n = out->shape[1], units = (int64_t)SILU_THREADS * CUDA_ROWS_EIGHT;
    silu_rows rows = {.x = cuda_rows_of(x),
                      .out = cuda_rows_of(out),
                      .narrowed = cuda_narrowed_rows(forms->out, n),
                      .begin = call->begin,
                      .end = call->end,
                      .n = (int32_t)n};
    (void)kernel;
    if (!by_eights(call))
        return cuda_launch_plainly(ops, "run_silu_and_mul", call, ELEMENTS, error);
    bool bf16 = x->type == DTYPE_BF16 && (forms->out || out->type == DTYPE_BF16);
    if (forms->out) rows.out.data = NULL;
    return cuda_ops_start_early(ops, bf16 ? "run_silu_and_mul_bf16" : "run_silu_and_mul_vectors",
                                (call->end - call->begin + units - 1) / units, 1, SILU_THREADS,
                                CUDA_ARGUMENTS(CUDA_ARGUMENT(rows)), error);
}

const cuda_kernel silu_and_mul_cuda[] = {
    {CUDA_ROW(SILU_AND_MUL, "cuda"), .narrows = by_eights, .narrow_form = CUDA_NARROWS_ALONE,
     .accepts = accepts, .launch = launch},
    {0},
};
