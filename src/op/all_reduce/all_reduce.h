/* Call layout of all_reduce: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { ALL_REDUCE_PARTS, ALL_REDUCE_OUT };

op_kernel all_reduce_reference;
