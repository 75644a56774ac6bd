/* Call layout of scale: indices of its tensors and parameters. */
#ifndef QUIPU_OP_SCALE_H
#define QUIPU_OP_SCALE_H

#include "op/op.h"

enum { SCALE_X, SCALE_OUT };
enum { SCALE_FACTOR, SCALE_SOFT_CAP };

op_kernel scale_reference;

#endif
