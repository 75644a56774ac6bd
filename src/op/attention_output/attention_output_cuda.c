/* attention_output on the GPU. */
#include "op/attention/attention_cuda.h"
#include "op/attention_output/attention_output.h"
#include "op/fused_cuda.h"

enum { X_FLOATS = 8192 /* LINEAR_X_FLOATS of linear.cuh */ };

/* Elements of a KV head's outputs, and of what may precede them. */
static int64_t elements_together(const op_call *call)
{
    return call->tensors[ATTENTION_OUTPUT_WEIGHT].shape[1] /
               call->tensors[ATTENTION_OUTPUT_K_CACHE].shape[2] +
           8;
}

/* Whether a KV head's outputs fit into a block's shared memory, and it need not skip positions. */
static bool accepts(const op_call *call)
{
    const bool merges = call->tensors[ATTENTION_OUTPUT_V].rank > 0;
    return op_call_has_no_f64(call) && (merges || call->params[ATTENTION_OUTPUT_WINDOW] == 0) &&
           call->tensors[ATTENTION_OUTPUT_Q].shape[2] <= CUDA_ATTENTION_MAX_HEAD_DIM &&
           elements_together(call) <= X_FLOATS;
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    bool alone = elements_together(call) > X_FLOATS / CUDA_FUSED_MANY;
    (void)forms;
    return cuda_fused_launch(ops, kernel, call, alone, error);
}

const cuda_kernel attention_output_cuda[] = {
    {.op = OP_ATTENTION_OUTPUT,
     .name = "cuda",
     .image = "cuda_fused",
     .function = "run_attention_output",
     .units = 64,
     .accepts = accepts,
     .launch = launch},
    {0},
};
