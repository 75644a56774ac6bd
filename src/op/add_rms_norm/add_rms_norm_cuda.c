/* add_rms_norm on the GPU: see rows_cuda.h. */
#include "op/add_rms_norm/add_rms_norm.h"
#include "op/rows_cuda.h"
#include "op/variants.h"

norm_rows cuda_add_norm_rows(const op_call *call)
{
    const tensor *t = call->tensors;
    return (norm_rows){.x = cuda_rows_of(&t[ADD_RMS_NORM_X]),
                       .residual = cuda_rows_of(&t[ADD_RMS_NORM_RESIDUAL]),
                       .weight = cuda_rows_of(&t[ADD_RMS_NORM_WEIGHT]),
                       .out = cuda_rows_of(&t[ADD_RMS_NORM_X]),
                       .begin = call->begin,
                       .n = (int32_t)t[ADD_RMS_NORM_X].shape[1],
                       .eps = (float)call->params[ADD_RMS_NORM_EPS]};
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    (void)kernel;
    return cuda_launch_norm(ops, cuda_add_norm_rows(call), call->end - call->begin, forms, error);
}

const cuda_kernel add_rms_norm_cuda[] = {
    {CUDA_ROW(ADD_RMS_NORM, "cuda"), .accepts = op_call_has_no_f64, .launch = launch},
    {0},
};
