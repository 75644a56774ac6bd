/* all_reduce between GPUs of one host: see op/exchange_cuda.h. */
#include "op/all_reduce/all_reduce.h"
#include "op/exchange_cuda.h"

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

const cuda_kernel all_reduce_cuda[] = {
    {.op = OP_ALL_REDUCE,
     .name = "cuda",
     .needs_ranks = true,
     .whole = true,
     .accepts = accepts,
     .launch = launch},
    {0},
};
