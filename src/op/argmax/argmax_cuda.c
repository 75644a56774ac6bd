/* argmax on the GPU. */
#include "op/cuda_ops.h"
#include "op/variants.h"

const cuda_kernel argmax_cuda[] = {
    {CUDA_UNITS(ARGMAX, "cuda_ops", argmax, 1024, 1, op_call_has_no_f64), .early = true},
    {0},
};
