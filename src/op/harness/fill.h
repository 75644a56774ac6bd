/* The contents of test inputs: see fill_kind. */
#pragma once

#include "base/hash.h"
#include "op/op.h"

/* Floating-point inputs; quantised ones are random blocks except for zeros, integers are 0. */
typedef enum fill_kind {
    FILL_NORMAL,
    FILL_ZEROS, /* of both signs */
    FILL_SMALL, /* squares below the eps of a norm, so that eps decides */
    FILL_DENORMALS,
    FILL_TIES, /* few distinct values */
    FILL_HUGE,
    FILL_INFINITY, /* some minus infinity, whole rows too */
    FILL_NAN,      /* some NaN */
    FILL_COUNT
} fill_kind;

const char *fill_name(fill_kind fill);

/* Whether the operator is defined for it. */
bool fill_applies(const op_info *op, fill_kind fill);

/* Fills the elements of a view: a function of its type, shape and the seed. */
void fill_tensor(const tensor *view, fill_kind fill, uint64_t seed);
