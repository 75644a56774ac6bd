/* The element types of FlashInfer-Bench, and their values one by one. */
#ifndef QUIPU_WORKBENCH_VALUES_H
#define QUIPU_WORKBENCH_VALUES_H

#include "tensor/dtype.h"

typedef struct value_type {
    const char *name;   /* "bfloat16" */
    const char *stored; /* in safetensors files: "BF16" */
    size_t bytes;
    dtype type;       /* in an op_call; DTYPE_COUNT: an op_call cannot have it */
    double low, high; /* random values: whole numbers from low to high; both 0: real numbers */
} value_type;

const value_type *value_type_find(const char *name); /* NULL: none */

double value_at(const value_type *type, const void *data, size_t i);

/* Fills `data` with n random values, a function of type and seed: real numbers are close to
 * normally distributed, those of 8 bits lie within [-2, 2]. */
void values_randomize(const value_type *type, void *data, size_t n, uint64_t seed);

/* What a comparison of n values with those expected found. */
typedef struct values_error {
    double absolute, relative; /* the largest; infinite where only one of the two is finite */
    size_t n, n_wrong;         /* wrong: beyond both tolerances */
    size_t first;              /* index of the first wrong one */
} values_error;

/* Adds to `out`. A value is right if it differs by at most `atol`, or by at most `rtol` times the
 * expected value; an infinity or NaN, if it is the expected one. */
void values_compare(const value_type *type, const void *data, const void *expected, size_t n,
                    double atol, double rtol, values_error *out);

#endif
