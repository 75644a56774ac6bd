/* Tolerances of a call: see tolerance.h. */
#include "op/tolerance.h"

#include "op/element.h"
#include "op/view.h"

#include <math.h>

op_limits op_limits_of(const op_info *op, const op_variant *variant, const op_call *call,
                       dtype type, bool adds_up)
{
    bool own = variant && variant->tolerances;
    double terms = op_evaluate(op, call, op->reduction);
    if (terms < 1) terms = 1;
    op_limits allowed = {.exact = true};
    const op_tolerance *entry = own ? variant->tolerances : op->tolerances;
    for (; entry && entry->relative > 0; entry++) {
        if (entry->type != type) continue;
        bool sums_up = own ? adds_up : type == DTYPE_F32;
        double scale = sums_up ? sqrt(terms) : 1;
        allowed.relative = entry->relative * scale;
        allowed.absolute = entry->absolute * scale;
        allowed.exact = false;
    }
    if (op->tolerances && type == DTYPE_F64) { /* the oracle itself, at most in another order */
        allowed.relative = allowed.absolute = 1e-12;
        allowed.exact = false;
    }
    /* Each term may lose a denormal, times a factor of usual magnitude. */
    allowed.floor = type == DTYPE_F16 ? 0x1p-24 : 8 * terms * 0x1p-126;
    allowed.largest = type == DTYPE_F16    ? 65504
                      : type == DTYPE_BF16 ? 0x1.fep127
                      : type == DTYPE_F8   ? (double)F8_LARGEST
                                           : 0x1.fffffep127;
    return allowed;
}

double op_typical_size(const tensor *view)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t row = 0; row < view_rows(view); row++) {
        const void *in = view_row(view, row);
        for (int64_t i = 0; i < view->shape[view->rank - 1]; i++) {
            double value = element_load(view->type, in, i);
            if (!isfinite(value)) continue;
            sum += value * value;
            n++;
        }
    }
    return n ? sqrt(sum / (double)n) : 0;
}

bool op_element_matches(const op_limits *limits, dtype type, double expected, double found,
                        double typical)
{
    if (isnan(expected)) return isnan(found);
    if (found == element_round(type, expected)) return true;
    if (limits->exact || isnan(found) || isinf(expected)) return false;
    if (isinf(found))
        return signbit(found) == signbit(expected) &&
               fabs(expected) * (1 + limits->relative) >= limits->largest;
    return fabs(found - expected) <=
           limits->absolute * typical + limits->relative * fabs(expected) + limits->floor;
}
