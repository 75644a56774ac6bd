/* Call layout of attention_scores: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { ATTENTION_SCORES_Q, ATTENTION_SCORES_K, ATTENTION_SCORES_SCORES };

op_kernel attention_scores_reference;
