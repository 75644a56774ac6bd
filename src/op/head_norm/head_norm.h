/* Call layout of head_norm: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum { HEAD_NORM_Q, HEAD_NORM_K, HEAD_NORM_Q_WEIGHT, HEAD_NORM_K_WEIGHT };
enum { HEAD_NORM_EPS };

op_kernel head_norm_reference;
