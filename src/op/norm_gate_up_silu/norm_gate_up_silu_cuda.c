/* norm_gate_up_silu on the GPU. */
#include "op/fused_cuda.h"

const cuda_kernel norm_gate_up_silu_cuda[] = {
    {CUDA_FUSED_ROWS(NORM_GATE_UP_SILU, norm_gate_up_silu, 0, op_call_has_no_f64)},
    {0},
};
