/* merge_state on the GPU. */
#include "op/cuda_ops.h"
#include "op/variants.h"

const cuda_kernel merge_state_cuda[] = {
    {CUDA_UNITS(MERGE_STATE, "cuda_ops", merge_state, 256, 8, op_call_has_no_f64), .early = true},
    {0},
};
