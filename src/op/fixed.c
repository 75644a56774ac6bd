/* Sums in fixed point: see fixed.h. */
#include "op/fixed.h"

#include "base/hash.h"
#include "op/view.h"

#include <math.h>

int64_t fixed_from(double v)
{
    const double most = 0x1p52 - 1;
    double scaled = v * 0x1p32;
    if (isnan(scaled)) return 0;
    if (fabs(scaled) > most) scaled = copysign(most, scaled);
    return (int64_t)llrint(scaled);
}

void fixed_load(const int64_t *row, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = fixed_to_double(row[i]);
}

void fixed_load_f32(const int64_t *row, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)fixed_value(row[i]) * (1 / FIXED_ONE);
}

void fixed_fill(const tensor *view, bool counted, uint64_t seed)
{
    int64_t n = view->shape[view->rank - 1];
    for (int64_t row = 0; row < view_rows(view); row++) {
        int64_t *to = view_row(view, row);
        for (int64_t i = 0; i < n; i++) {
            uint64_t bits = hash_random(seed, (uint64_t)row, (uint64_t)i);
            int64_t value = (int64_t)(bits >> 29) - ((int64_t)1 << 34); /* -4 .. 4 */
            to[i] = (int64_t)((uint64_t)value + (counted ? bits << FIXED_COUNT_AT : 0));
        }
    }
}
