/* merge_states on the GPU. */
#include "op/cuda_ops.h"
#include "op/variants.h"

const cuda_kernel merge_states_cuda[] = {
    {CUDA_UNITS(MERGE_STATES, "cuda_ops", merge_states, 256, 1, op_call_has_no_f64), .early = true},
    {0},
};
