/* norm_gate_up_silu on the GPU: one warp per output feature, its row of gate and then its row of
 * up. */
#ifndef QUIPU_OP_NORM_GATE_UP_SILU_CUH
#define QUIPU_OP_NORM_GATE_UP_SILU_CUH

#include "op/fused.cuh"
#include "op/norm_gate_up_silu/norm_gate_up_silu.h"
#include "op/silu_and_mul/silu_and_mul.cuh"

struct norm_gate_up_silu_job {
    enum { ROWS = 2 };
    const op_call &call;

    __device__ fused_weight weight(int64_t feature, int r) const
    {
        return fused_weight_row(call.tensors[NORM_GATE_UP_SILU_GATE_WEIGHT + r], feature);
    }
    __device__ void finish(int64_t feature, int64_t row, const float *sums) const
    {
        const tensor &out = call.tensors[NORM_GATE_UP_SILU_OUT];
        float gate = sums[0] + fused_bias(call.tensors[NORM_GATE_UP_SILU_GATE_BIAS], feature);
        float up = sums[1] + fused_bias(call.tensors[NORM_GATE_UP_SILU_UP_BIAS], feature);
        device_store(out.type, device_row(out, row), feature, silu(gate) * up);
    }
};

/* Features [begin, end), the block's being `step` apart, of M rows from `first` on. */
template <int M>
DEVICE_FN void norm_gate_up_silu_block(const op_call &call, int64_t first, int64_t begin,
                                       int64_t end, int64_t step, fused_shared<M> &shared)
{
    const tensor &x = call.tensors[NORM_GATE_UP_SILU_X];
    fused_rows rows = {&x,         &call.tensors[NORM_GATE_UP_SILU_NORM_WEIGHT], nullptr, first,
                       x.shape[0], (float)call.params[NORM_GATE_UP_SILU_EPS]};
    fused_block<M>(norm_gate_up_silu_job{call}, rows, begin, end, step, shared);
}

#endif
