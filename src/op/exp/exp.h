/* Call layout of exp: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum { EXP_X, EXP_MAX, EXP_OUT };
enum { EXP_SCALE };

op_kernel exp_reference;
