/* Call layout of renorm_probs, and what its reference and its variants share. */
#pragma once

#include "op/op.h"

enum { RENORM_PROBS_PROBS, RENORM_PROBS_TOP_KS, RENORM_PROBS_TOP_PS, RENORM_PROBS_OUT };
enum { RENORM_PROBS_TOP_K, RENORM_PROBS_TOP_P };

/* The filters of one row. */
typedef struct renorm_limits {
    int64_t count; /* fewer than `count` probabilities are larger than one that is kept, */
    double weight; /* and they weigh less than this */
    bool any;      /* false: both filters keep everything */
} renorm_limits;
renorm_limits renorm_limits_of(const op_call *call, int64_t row);

op_kernel renorm_probs_reference;
