/* embedding on the GPU. */
#include "op/cuda_ops.h"
#include "op/variants.h"

const cuda_kernel embedding_cuda[] = {
    {CUDA_UNITS(EMBEDDING, "cuda_ops", embedding, 256, 1, op_call_has_no_f64), .early = true},
    {0},
};
