/* The element types of FlashInfer-Bench, and their values one by one. */
#pragma once

#include "tensor/dtype.h"

typedef struct value_type {
    const char *name;   /* "bfloat16" */
    const char *stored; /* in safetensors files: "BF16" */
    size_t bytes;
    dtype type;       /* in an op_call; DTYPE_COUNT: an op_call cannot have it */
    double low, high; /* random values: whole numbers from low to high; both 0: real numbers */
    int parts;        /* values in an element: 2 of 4 bits in a byte; else 1 */
} value_type;

const value_type *value_type_find(const char *name); /* NULL: none */

/* Value i of an array; an element has `parts` of them. */
double value_at(const value_type *type, const void *data, size_t i);

/* Makes rows of n real numbers probabilities: the softmax of each row. */
void values_softmax(const value_type *type, void *data, size_t rows, size_t n);

/* Fills `data` with n random elements, a function of type and seed: real numbers are close to
 * normally distributed, those of 8 and 4 bits lie within [-2, 2]. */
void values_randomize(const value_type *type, void *data, size_t n, uint64_t seed);

/* What a comparison of values with those expected found. */
typedef struct values_error {
    double absolute, relative; /* the largest; infinite where only one of the two is finite */
    size_t n, n_wrong;         /* wrong: beyond both tolerances */
    size_t first;              /* index of the first wrong one */
} values_error;

/* Adds n elements to `out`. A value is right if it differs by at most `atol`, or by at most `rtol`
 * times the expected value; an infinity or NaN, if it is the expected one. */
void values_compare(const value_type *type, const void *data, const void *expected, size_t n,
                    double atol, double rtol, values_error *out);
