/* Call layout of bias_pad_rope: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum {
    BIAS_PAD_ROPE_QKV,
    BIAS_PAD_ROPE_BIAS,
    BIAS_PAD_ROPE_PADDING_OFFSETS,
    BIAS_PAD_ROPE_POSITIONS,
    BIAS_PAD_ROPE_COS_SIN,
    BIAS_PAD_ROPE_Q,
    BIAS_PAD_ROPE_K,
    BIAS_PAD_ROPE_V
};
enum { BIAS_PAD_ROPE_INTERLEAVED };

op_kernel bias_pad_rope_reference;
