/* all_gather between GPUs of one host: see op/exchange_cuda.h. */
#include "op/all_gather/all_gather.h"
#include "op/argmax/argmax.h"
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

/* Each rank finds the likeliest of its own columns: logits are not gathered. */
static bool finds(const cuda_ops *ops, const op_call *calls)
{
    (void)calls;
    return !ops->carrier;
}

static qp_status find(cuda_ops *ops, const op_call *calls, const cuda_forms *forms, qp_error *error)
{
    (void)forms;
    return cuda_exchange_likeliest(ops, &calls[0].tensors[ALL_GATHER_PART],
                                   (int64_t)calls[0].params[ALL_GATHER_FIRST],
                                   &calls[1].tensors[ARGMAX_IDS], error);
}

static const cuda_fusion fusions[] = {
    {.name = "argmax", .with = {OP_ARGMAX}, .n_with = 1, .accepts = finds, .launch = find},
    {0},
};

const cuda_kernel all_gather_cuda[] = {
    {CUDA_ROW(ALL_GATHER, "cuda"), .needs_ranks = true, .whole = true, .accepts = accepts,
     .launch = launch, .fusions = fusions},
    {0},
};
