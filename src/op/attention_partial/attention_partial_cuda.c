/* attention_partial on the GPU: one block per part, query head and token. */
#include "op/attention/attention_cuda.h"
#include "op/attention_partial/attention_partial.h"

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    op_call own = *call;
    const tensor *q = &call->tensors[ATTENTION_PARTIAL_Q];
    int64_t units = 1, group = q->shape[1] / call->tensors[ATTENTION_PARTIAL_K_CACHE].shape[2];
    const cuda_start start = {
        .image = "cuda_fused",
        .name = "run_attention_partial",
        .grid = {(unsigned)(q->shape[0] * group), (unsigned)(call->end - call->begin), 1},
        .threads = CUDA_ATTENTION_THREADS};
    (void)kernel, (void)forms;
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(units)),
                          error);
}

/* Blocks by query head read every position. */
static bool accepts(const op_call *call)
{
    return cuda_attention_by_heads_accepts(call) && call->params[ATTENTION_PARTIAL_WINDOW] == 0;
}

const cuda_kernel attention_partial_cuda[] = {
    {.op = OP_ATTENTION_PARTIAL, .name = "cuda", .accepts = accepts, .launch = launch},
    {0},
};
