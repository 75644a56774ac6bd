/* adjust_logits: the reference's loops, which the compiler makes vectors of. */
#include "op/adjust_logits/adjust_logits_row.h"
#include "op/simd.h"

SIMD_KERNEL(adjust_logits)(const op_call *call)
{
    adjust_units(call);
}
