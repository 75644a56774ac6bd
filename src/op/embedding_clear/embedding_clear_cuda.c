/* embedding_clear on the GPU. */
#include "op/cuda_ops.h"
#include "op/variants.h"

const cuda_kernel embedding_clear_cuda[] = {
    {CUDA_UNITS(EMBEDDING_CLEAR, "cuda_fused", embedding_clear, 256, 32, op_call_has_no_f64)},
    {0},
};
