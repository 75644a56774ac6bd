/* route on the GPU: its rows, and the fusion of the norm and the router's product with it. */
#pragma once

#include "op/cuda_ops.h"

/* Of few rows: calls are of rms_norm, of the linear that multiplies its output with the router, and
 * of route. */
bool cuda_norm_route_accepts(const cuda_ops *ops, const op_call *calls);
qp_status cuda_norm_route(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                          qp_error *error);
