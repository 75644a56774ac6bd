/* Launching the fused operators' kernels: see cuda_fused.h. */
#include "vm/cuda_fused.h"

#include "op/attention_output/attention_output.h"
#include "op/attention_partial/attention_partial.h"
#include "op/variants.h"
#include "vm/cuda_linear.h"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    MANY = 4,           /* rows of the form for several */
    X_FLOATS = 8192,    /* linear.cuh's LINEAR_X_FLOATS */
    MAX_HEAD_DIM = 256, /* attention.cuh's */
};

static const struct {
    op_code op;
    const char *many; /* the form for several rows */
} forms[] = {
    {OP_NORM_QKV_ROPE, "run_norm_qkv_rope_4"}, {OP_NORM_GATE_UP_SILU, "run_norm_gate_up_silu_4"},
    {OP_NORM_LINEAR, "run_norm_linear_4"},     {OP_ATTENTION_OUTPUT, "run_attention_output_4"},
    {OP_NORM_MLP, "run_norm_mlp_4"},
};

/* Elements of a KV head's outputs, and what may stand in front of them. */
static int64_t elements_together(const op_call *call)
{
    return call->tensors[ATTENTION_OUTPUT_WEIGHT].shape[1] /
               call->tensors[ATTENTION_OUTPUT_K_CACHE].shape[2] +
           8;
}

bool cuda_attention_output_accepts(const op_call *call)
{
    return op_call_has_no_f64(call) && call->tensors[ATTENTION_OUTPUT_Q].shape[2] <= MAX_HEAD_DIM &&
           elements_together(call) <= X_FLOATS;
}

static qp_status find_many(cuda_ops *ops, const cuda_kernel *kernel, cuda_function *function,
                           const char **name, qp_error *error)
{
    int form = 0;
    while (forms[form].op != kernel->op)
        form++;
    *name = forms[form].many;
    return cuda_ops_find_helper_of(ops, CUDA_HELPER_FUSED + form, kernel->image, *name, 0, function,
                                   error);
}

/* Blocks that take groups of units in turn: as many as run at once, or fewer that take as long. */
static int64_t blocks_in_turn(const cuda_ops *ops, int64_t groups, int64_t at_once)
{
    int64_t most = (int64_t)ops->device->n_multiprocessors * (at_once == 1 ? 3 : 2);
    int64_t turns = (groups + most - 1) / most;
    return turns ? (groups + turns - 1) / turns : 0;
}

/* The last tensor of all of these is what they write, a row a row of x. */
qp_status cuda_fused_rows(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          qp_error *error)
{
    op_call own = *call;
    int64_t rows = call->tensors[op_n_tensors(op_get(kernel->op)) - 1].shape[0];
    int64_t units = kernel->units ? kernel->units : WARPS;
    int64_t blocks = (call->end - call->begin + units - 1) / units, at_once = 1;
    cuda_function function = ops->functions[kernel - cuda_kernels];
    const char *name = kernel->function;
    bool fits = kernel->op != OP_ATTENTION_OUTPUT || elements_together(call) <= X_FLOATS / MANY;
    if (rows > 1 && fits) {
        at_once = MANY;
        TRY(find_many(ops, kernel, &function, &name, error));
    }
    if (!kernel->units) blocks = blocks_in_turn(ops, blocks, at_once);
    return cuda_ops_launch_grid(ops, function, name, (unsigned)blocks,
                                (unsigned)((rows + at_once - 1) / at_once), THREADS,
                                (void *[]){&own, &units}, error);
}

qp_status cuda_attention_partial(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                                 qp_error *error)
{
    op_call own = *call;
    const tensor *q = &call->tensors[ATTENTION_PARTIAL_Q];
    int64_t units = 1, group = q->shape[1] / call->tensors[ATTENTION_PARTIAL_K_CACHE].shape[2];
    return cuda_ops_launch_grid(ops, ops->functions[kernel - cuda_kernels], kernel->function,
                                (unsigned)(q->shape[0] * group),
                                (unsigned)(call->end - call->begin), THREADS,
                                (void *[]){&own, &units}, error);
}
