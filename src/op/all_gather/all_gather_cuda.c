/* all_gather between GPUs of one host: see op/exchange_cuda.h. */
#include "op/all_gather/all_gather.h"
#include "op/exchange_cuda.h"

static bool accepts(const op_call *call)
{
    return cuda_exchange_accepts(&call->tensors[ALL_GATHER_PART], &call->tensors[ALL_GATHER_OUT]);
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    const tensor *t = call->tensors;
    (void)kernel, (void)forms;
    return cuda_exchange(ops, "all_gather", &t[ALL_GATHER_PART], &t[ALL_GATHER_OUT],
                         (int64_t)call->params[ALL_GATHER_FIRST], error);
}

const cuda_kernel all_gather_cuda[] = {
    {.op = OP_ALL_GATHER,
     .name = "cuda",
     .needs_ranks = true,
     .whole = true,
     .accepts = accepts,
     .launch = launch},
    {0},
};
