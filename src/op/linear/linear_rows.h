/* Rows of x, the residual and the output of linear: float32, or BF16, which fast variants widen
 * when they read it and round to when they write. */
#pragma once

#include "op/linear/linear.h"
#include "op/op.h"
#include "tensor/float16.h"

#include <string.h>

/* Whether fast variants take the tensors but the weight as they are. */
static inline bool linear_takes_rows(const op_call *call)
{
    const int rows[] = {LINEAR_X, LINEAR_RESIDUAL, LINEAR_OUT};
    for (int i = 0; i < 3; i++) {
        const tensor *t = &call->tensors[rows[i]];
        if (t->rank && t->type != DTYPE_F32 && t->type != DTYPE_BF16) return false;
    }
    const tensor *bias = &call->tensors[LINEAR_BIAS];
    return bias->rank == 0 || bias->type == DTYPE_F32;
}

/* Where element i of a row lies. */
static inline char *linear_row_at(const tensor *t, int64_t row, int64_t i)
{
    return (char *)tensor_row(t, row) + (size_t)i * (t->type == DTYPE_F32 ? 4 : 2);
}

/* out[0 .. n) = elements [i, i + n) of a row. */
static inline void linear_row_load(const tensor *t, int64_t row, int64_t i, int64_t n, float *out)
{
    const char *from = linear_row_at(t, row, i);
    if (t->type == DTYPE_F32) {
        memcpy(out, from, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t k = 0; k < n; k++)
        out[k] = bf16_to_f32(((const uint16_t *)from)[k]);
}

/* The elements where they lie, if they are float32; else in `room`. */
static inline const float *linear_row_floats(const tensor *t, int64_t row, int64_t i, int64_t n,
                                             float *room)
{
    if (t->type == DTYPE_F32) return (const float *)linear_row_at(t, row, i);
    linear_row_load(t, row, i, n, room);
    return room;
}

/* Elements [i, i + n) of a row = values[0 .. n), rounded once. */
static inline void linear_row_store(const tensor *t, int64_t row, int64_t i, int64_t n,
                                    const float *values)
{
    char *to = linear_row_at(t, row, i);
    if (t->type == DTYPE_F32) {
        memcpy(to, values, (size_t)n * sizeof *values);
        return;
    }
    for (int64_t k = 0; k < n; k++)
        ((uint16_t *)to)[k] = f32_to_bf16(values[k]);
}
