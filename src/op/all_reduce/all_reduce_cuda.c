/* all_reduce between GPUs of one host: see op/exchange_cuda.h. */
#include "op/all_reduce/all_reduce.h"
#include "op/exchange_cuda.h"
#include "op/rms_norm/rms_norm.h"

/* This rank's part: of a plan's, the parts lie on the other GPUs. */
static tensor own_part(const op_call *call)
{
    const tensor *parts = &call->tensors[ALL_REDUCE_PARTS];
    tensor own = tensor_2d(parts->data, parts->type, parts->shape[1], parts->shape[2]);
    own.stride[0] = parts->stride[1];
    return own;
}

static bool accepts(const op_call *call)
{
    const tensor own = own_part(call);
    return cuda_exchange_accepts(&own, &call->tensors[ALL_REDUCE_OUT]);
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    const tensor own = own_part(call);
    (void)kernel, (void)forms;
    return cuda_exchange(ops, "all_reduce", &own, &call->tensors[ALL_REDUCE_OUT], 0, error);
}

/* calls[1] is the norm of what calls[0] sums. */
static bool is_normed(const cuda_ops *ops, const op_call *calls)
{
    const tensor own = own_part(&calls[0]), *out = &calls[0].tensors[ALL_REDUCE_OUT];
    if (ops->carrier || out->shape[0] > ops->few_rows) return false; /* a chain begins with it */
    return calls[1].tensors[RMS_NORM_X].data == out->data &&
           calls[1].tensors[RMS_NORM_X].shape[0] == out->shape[0] &&
           cuda_exchange_norm_accepts(&own, &calls[1]);
}

static qp_status launch_normed(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                               qp_error *error)
{
    const tensor own = own_part(&calls[0]);
    (void)forms;
    return cuda_exchange_norm(ops, &own, &calls[0].tensors[ALL_REDUCE_OUT], &calls[1], error);
}

static const cuda_fusion fusions[] = {{.name = "rms_norm",
                                       .with = {OP_RMS_NORM},
                                       .n_with = 1,
                                       .accepts = is_normed,
                                       .launch = launch_normed},
                                      {0}};

const cuda_kernel all_reduce_cuda[] = {
    {CUDA_ROW(ALL_REDUCE, "cuda"), .needs_ranks = true, .whole = true, .accepts = accepts,
     .launch = launch, .fusions = fusions},
    {0},
};
