/* Call layout of add_rms_norm: indices of its tensors and parameters. */
#ifndef QUIPU_OP_ADD_RMS_NORM_H
#define QUIPU_OP_ADD_RMS_NORM_H

#include "op/op.h"

enum { ADD_RMS_NORM_X, ADD_RMS_NORM_RESIDUAL, ADD_RMS_NORM_WEIGHT };
enum { ADD_RMS_NORM_EPS };

op_kernel add_rms_norm_reference;

#endif
