/* attention_sinks on the GPU. */
#include "op/cuda_ops.h"
#include "op/variants.h"

const cuda_kernel attention_sinks_cuda[] = {
    {CUDA_UNITS(ATTENTION_SINKS, "attention_sinks", attention_sinks, 256, 8, op_call_has_no_f64),
     .early = true},
    {0},
};
