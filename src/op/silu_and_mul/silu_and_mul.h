/* Call layout of silu_and_mul: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

#include <math.h>

enum { SILU_AND_MUL_X, SILU_AND_MUL_OUT };
enum { SILU_AND_MUL_ALPHA, SILU_AND_MUL_LIMIT, SILU_AND_MUL_ADDED };

/* Whether the parameters have their usual values, with which they change nothing. */
static inline bool silu_and_mul_is_plain(const op_call *call)
{
    return call->params[SILU_AND_MUL_ALPHA] == 1 && call->params[SILU_AND_MUL_LIMIT] == 0 &&
           call->params[SILU_AND_MUL_ADDED] == 0;
}

static inline double silu_and_mul_limit(const op_call *call)
{
    const double limit = call->params[SILU_AND_MUL_LIMIT];
    return limit > 0 ? limit : HUGE_VAL;
}

op_kernel silu_and_mul_reference;
