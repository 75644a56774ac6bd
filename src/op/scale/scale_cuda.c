/* scale on the GPU. */
#include "op/cuda_ops.h"
#include "op/variants.h"

const cuda_kernel scale_cuda[] = {
    {CUDA_UNITS(SCALE, "cuda_ops", scale, 256, 1024, op_call_has_no_f64), .early = true},
    {0},
};
