/* The allowed error of an output: op_tolerance (op.h) computed for one call, and the rule applied.
 */
#pragma once

#include "op/op.h"

typedef struct op_limits {
    double relative, absolute; /* of an element's and of the outputs' typical size */
    double floor;              /* the effect of flushing denormals to zero */
    double largest;            /* finite value of the type */
    bool exact;
} op_limits;

/* For an output of `type` that `variant` computes (NULL: any kernel with the operator's own
 * tolerances). `adds_up`: roundings of a coarse variant add up instead of averaging out. */
op_limits op_limits_of(const op_info *op, const op_variant *variant, const op_call *call,
                       dtype type, bool adds_up);

/* Root mean square of a view's finite elements. */
double op_typical_size(const tensor *view);

/* Whether `found` is close enough to `expected`; typical: op_typical_size() of the expected values.
 */
bool op_element_matches(const op_limits *limits, dtype type, double expected, double found,
                        double typical);
