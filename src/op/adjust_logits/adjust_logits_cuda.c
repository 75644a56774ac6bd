/* adjust_logits on the GPU. */
#include "op/cuda_ops.h"
#include "op/variants.h"

const cuda_kernel adjust_logits_cuda[] = {
    {CUDA_UNITS(ADJUST_LOGITS, "adjust_logits", adjust_logits, 256, 2048, op_call_has_no_f64),
     .early = true},
    {0},
};
