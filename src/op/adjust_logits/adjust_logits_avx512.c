/* adjust_logits for AVX-512: the reference's loops in wider vectors. */
#include "op/adjust_logits/adjust_logits_row.h"

void adjust_logits_avx512(const op_call *call)
{
    adjust_units(call);
}
