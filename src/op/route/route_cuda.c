/* route on the GPU: see route_cuda.h. */
#include "op/route/route_cuda.h"

#include "op/linear/linear.h"
#include "op/rms_norm/rms_norm.h"
#include "op/route/route.h"
#include "op/route/route_device.h"
#include "op/rows_cuda.h"
#include "op/variants.h"

#include <stdio.h>

static bool accepts(const op_call *call)
{
    return op_call_has_no_f64(call) && call->tensors[ROUTE_LOGITS].shape[1] <= ROUTE_MOST;
}

static route_rows rows_of(const op_call *call)
{
    const tensor *t = call->tensors;
    return (route_rows){.logits = cuda_rows_of(&t[ROUTE_LOGITS]),
                        .ids = cuda_rows_of(&t[ROUTE_IDS]),
                        .shares = cuda_rows_of(&t[ROUTE_SHARES]),
                        .begin = call->begin,
                        .n_experts = (int32_t)t[ROUTE_LOGITS].shape[1],
                        .top_k = (int32_t)t[ROUTE_IDS].shape[1],
                        .normalised = call->params[ROUTE_NORMALISED] != 0};
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    route_rows rows = rows_of(call);
    cuda_start start = {.image = "route",
                        .name = "run_route",
                        .grid = {(unsigned)(call->end - call->begin), 1, 1},
                        .threads = 32,
                        .cluster = 1};
    (void)kernel, (void)forms;
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(rows)), error);
}

/* ---- norm, router, route --------------------------------------------------------------------- */

static bool is_float(dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

static bool is_whole(const op_call *call, int64_t units)
{
    return call->begin == 0 && call->end == units;
}

bool cuda_norm_route_accepts(const cuda_ops *ops, const op_call *calls)
{
    const tensor *x = &calls[0].tensors[RMS_NORM_OUT], *router = calls[1].tensors;
    const tensor *logits = &router[LINEAR_OUT], *chosen = &calls[2].tensors[ROUTE_LOGITS];
    const norm_rows norm = cuda_norm_rows(&calls[0]);
    (void)ops;
    return x->shape[0] <= CUDA_FEW_ROWS && router[LINEAR_X].data == x->data &&
           router[LINEAR_X].stride[0] == x->stride[0] && is_float(router[LINEAR_WEIGHT].type) &&
           !router[LINEAR_RESIDUAL].rank && cuda_norm_by_eights(&norm) &&
           cuda_rows_on_vectors(cuda_rows_of(&router[LINEAR_WEIGHT])) &&
           logits->type == DTYPE_F32 && logits->data == chosen->data &&
           logits->shape[1] == chosen->shape[1] && logits->stride[0] == chosen->stride[0] &&
           is_whole(&calls[0], x->shape[0]) && is_whole(&calls[1], logits->shape[1]) &&
           is_whole(&calls[2], x->shape[0]) && accepts(&calls[2]);
}

qp_status cuda_norm_route(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                          qp_error *error)
{
    const tensor *router = calls[1].tensors;
    norm_route run = {.norm = cuda_norm_rows(&calls[0]),
                      .weight = cuda_rows_of(&router[LINEAR_WEIGHT]),
                      .route = rows_of(&calls[2]),
                      .counters = cuda_host_form(cuda_ops_counters(ops))};
    if (router[LINEAR_BIAS].rank) run.bias = cuda_rows_of(&router[LINEAR_BIAS]);
    const unsigned n = (unsigned)run.route.n_experts;
    cuda_start start = {.image = "route",
                        .name = "run_norm_route",
                        .grid = {(n + NORM_ROUTE_WARPS - 1) / NORM_ROUTE_WARPS + 1,
                                 (unsigned)router[LINEAR_X].shape[0], 1},
                        .threads = NORM_ROUTE_WARPS * 32,
                        .cluster = 1};
    (void)forms;
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(run)), error);
}

const cuda_kernel route_cuda[] = {
    {CUDA_ROW(ROUTE, "cuda"), .accepts = accepts, .launch = launch},
    {0},
};
