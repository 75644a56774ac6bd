/* top_k on the GPU. */
#include "op/cuda_ops.h"
#include "op/variants.h"

const cuda_kernel top_k_cuda[] = {
    {CUDA_UNITS(TOP_K, "cuda_ops", top_k, 1024, 1, op_call_has_no_f64), .early = true},
    {0},
};
