/* linear_experts on the GPU: see linear_experts_cuda.h. Here: the table, and the kernel for any
 * types. */
#include "op/linear_experts/linear_experts_cuda.h"

#include "op/linear_experts/linear_experts.h"
#include "op/variants.h"

static bool is_f32(const tensor *view)
{
    return !view->rank || view->type == DTYPE_F32;
}

bool cuda_experts_in_f32(const op_call *call)
{
    const tensor *t = call->tensors;
    const bool up = t[LINEAR_EXPERTS_UP_WEIGHT].rank, down = t[LINEAR_EXPERTS_SHARES].rank;
    return !(up && down) && op_call_has_no_f64(call) && is_f32(&t[LINEAR_EXPERTS_X]) &&
           is_f32(&t[LINEAR_EXPERTS_SHARES]) && is_f32(&t[LINEAR_EXPERTS_RESIDUAL]) &&
           is_f32(&t[LINEAR_EXPERTS_OUT]);
}

static bool is_whole(const op_call *call)
{
    return call->begin == 0 && call->end == call->tensors[LINEAR_EXPERTS_WEIGHT].shape[1];
}

bool cuda_experts_are_both(const op_call *calls)
{
    const tensor *up = calls[0].tensors, *down = calls[1].tensors;
    const tensor *from = &up[LINEAR_EXPERTS_OUT], *to = &down[LINEAR_EXPERTS_X];
    return up[LINEAR_EXPERTS_UP_WEIGHT].rank && down[LINEAR_EXPERTS_SHARES].rank &&
           up[LINEAR_EXPERTS_IDS].data == down[LINEAR_EXPERTS_IDS].data && from->data == to->data &&
           from->shape[1] == to->shape[1] && from->shape[2] == to->shape[2] &&
           from->stride[0] == to->stride[0] && from->stride[1] == to->stride[1] &&
           is_whole(&calls[0]) && is_whole(&calls[1]);
}

static qp_status launch_plain(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                              const cuda_forms *forms, qp_error *error)
{
    enum { WARPS = 8 };
    const tensor *out = &call->tensors[LINEAR_EXPERTS_OUT];
    const int64_t outputs = out->shape[0] * out->shape[1] * (call->end - call->begin);
    op_call own = *call;
    int64_t units = 0;
    cuda_start start = {.image = kernel->image,
                        .name = "run_experts_plain",
                        .grid = {(unsigned)((outputs + WARPS - 1) / WARPS), 1, 1},
                        .threads = WARPS * 32,
                        .cluster = 1};
    (void)forms;
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(units)),
                          error);
}

/* The other half in the same entry. */
#define WITH_DOWN .name = "linear_experts", .with = {OP_LINEAR_EXPERTS}, .n_with = 1

static const cuda_fusion tiles_fusions[] = {
    {WITH_DOWN, .accepts = cuda_experts_tiles_both_accepts, .launch = cuda_experts_tiles_both},
    {0},
};
static const cuda_fusion few_fusions[] = {
    {WITH_DOWN, .accepts = cuda_experts_few_both_accepts, .launch = cuda_experts_few_both},
    {0},
};

const cuda_kernel linear_experts_cuda[] = {
    {CUDA_ROW(LINEAR_EXPERTS, "cuda"), .image = "experts_plain", .accepts = op_call_has_no_f64,
     .launch = launch_plain},
    {CUDA_ROW(LINEAR_EXPERTS, "cuda_tiles"), .accepts = cuda_experts_tiles_accepts,
     .pays = cuda_experts_tiles_pays, .workspace = cuda_experts_tiles_workspace,
     .launch = cuda_experts_tiles, .aligned = true, .whole = true,
     .tolerances = cuda_experts_tolerances, .fusions = tiles_fusions},
    {CUDA_ROW(LINEAR_EXPERTS, "cuda_few"), .accepts = cuda_experts_few_accepts,
     .pays = cuda_experts_few_pays, .launch = cuda_experts_few, .aligned = true,
     .fusions = few_fusions},
    {0},
};
