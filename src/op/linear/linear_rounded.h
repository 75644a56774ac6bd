/* What variants compute that round x on purpose: linear's reference on x rounded to 8 or 16 bits,
 * as linear_quant.h says, or to BF16. A variant differs from it only by its float32 sums.
 */
#pragma once

#include "op/op.h"

op_kernel linear_rounded_8, linear_rounded_16, linear_rounded_bf16;
size_t linear_rounded_bytes(const op_call *call);
