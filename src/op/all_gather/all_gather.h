/* Call layout of all_gather: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum { ALL_GATHER_PART, ALL_GATHER_OTHERS, ALL_GATHER_OUT };
enum { ALL_GATHER_FIRST };

op_kernel all_gather_reference;
