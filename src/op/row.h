/* Whole rows as float64, for references: element.h for a row of values at the speed of vectorised
 * code, and the dot product that linear and attention share.
 */
#pragma once

#include "tensor/dtype.h"

/* out[i] = element i of a row of a float type (F32, F16, BF16, F8, F64). */
void row_load(dtype type, const void *row, int64_t n, double *out);

/* The same for any type of OP_WEIGHTS at any alignment; `decoded` is room for n floats. */
void row_decode(dtype type, const void *row, int64_t n, float *decoded, double *out);

/* Rounds each value once, to the nearest of the float type. */
void row_store(dtype type, void *row, int64_t n, const double *values);

/* sum_i a[i] * b[i]: eight partial sums, i modulo 8, added pairwise at the end. The order depends
 * only on n, so equal rows give equal bits at any address. */
double row_dot(const double *a, const double *b, int64_t n);

/* The part of a slice of elements that lies in one row, for operators whose unit is an element. */
typedef struct row_span {
    int64_t row, first, count;
} row_span;

static inline row_span row_span_at(int64_t unit, int64_t end, int64_t row_length)
{
    row_span span = {.row = unit / row_length, .first = unit % row_length};
    int64_t rest = row_length - span.first;
    span.count = rest < end - unit ? rest : end - unit;
    return span;
}
