/* norm_linear on the GPU: one warp per output feature, the norms' factors once per block. */
#ifndef QUIPU_OP_NORM_LINEAR_CUH
#define QUIPU_OP_NORM_LINEAR_CUH

#include "op/fused.cuh"
#include "op/norm_linear/norm_linear.h"

struct norm_linear_job {
    enum { ROWS = 1 };
    const op_call &call;

    __device__ fused_weight weight(int64_t feature, int) const
    {
        return fused_weight_row(call.tensors[NORM_LINEAR_WEIGHT], feature);
    }
    __device__ void finish(int64_t feature, int64_t row, const float *sums) const
    {
        const tensor &out = call.tensors[NORM_LINEAR_OUT];
        device_store(out.type, device_row(out, row), feature,
                     sums[0] + fused_bias(call.tensors[NORM_LINEAR_BIAS], feature));
    }
};

/* Features [begin, end), the block's being `step` apart, of M rows of out from `first` on. */
template <int M>
DEVICE_FN void norm_linear_block(const op_call &call, int64_t first, int64_t begin, int64_t end,
                                 int64_t step, fused_shared<M> &shared)
{
    const tensor &which = call.tensors[NORM_LINEAR_ROWS];
    fused_rows rows = {&call.tensors[NORM_LINEAR_X],
                       &call.tensors[NORM_LINEAR_NORM_WEIGHT],
                       which.rank ? (const int32_t *)which.data : nullptr,
                       first,
                       call.tensors[NORM_LINEAR_OUT].shape[0],
                       (float)call.params[NORM_LINEAR_EPS]};
    fused_block<M>(norm_linear_job{call}, rows, begin, end, step, shared);
}

#endif
