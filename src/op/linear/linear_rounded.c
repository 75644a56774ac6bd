/* linear's reference on rounded x: see linear_rounded.h. */
#include "op/linear/linear_rounded.h"

#include "base/checked.h"
#include "op/linear/linear.h"
#include "op/linear/linear_quant_part.h"
#include "op/linear/linear_rows.h"
#include "op/table.h"

#include <float.h>
#include <math.h>

enum { ROUNDED_ROWS = 32 }; /* at a time: weights are decoded once for all of them */

static size_t rows_bytes(const op_call *call)
{
    size_t in_features = (size_t)call->tensors[LINEAR_X].shape[1];
    return round_up(ROUNDED_ROWS * in_features * sizeof(float), 64);
}

size_t linear_rounded_bytes(const op_call *call)
{
    return rows_bytes(call) + op_linear.scratch_bytes(call);
}

/* `levels`: the greatest whole number; `least`: blocks below it are zeros. */
static void round_block(const float *x, float levels, float least, float *out)
{
    float a = 0;
    for (int i = 0; i < QUANT_BLOCK; i++) {
        float size = fabsf(x[i]);
        if (size > a || isnan(size)) a = size;
        if (isnan(a)) break;
    }
    if (!(a >= least && a <= FLT_MAX)) {
        for (int i = 0; i < QUANT_BLOCK; i++)
            out[i] = a < 1 ? 0 : NAN;
        return;
    }
    const float by = levels / a, d = a / levels;
    for (int i = 0; i < QUANT_BLOCK; i++)
        out[i] = rintf(x[i] * by) * d;
}

/* Rounds a row of n inputs. */
typedef void row_rounding(const float *from, int64_t n, float *out);

static void round_row_8(const float *from, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i += QUANT_BLOCK)
        round_block(from + i, 127, QUANT_LEAST_8, out + i);
}

static void round_row_16(const float *from, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i += QUANT_BLOCK)
        round_block(from + i, QUANT_LEVELS_16, QUANT_LEAST_16, out + i);
}

static void round_row_bf16(const float *from, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_to_f32(f32_to_bf16(from[i]));
}

static void run_rounded(const op_call *call, row_rounding *round_row)
{
    const tensor *x = &call->tensors[LINEAR_X]; /* (n_rows, in_features) */
    const tensor *residual = &call->tensors[LINEAR_RESIDUAL];
    int64_t n_rows = x->shape[0], in_features = x->shape[1];
    float *rounded = call->scratch; /* (ROUNDED_ROWS, in_features) */
    for (int64_t first = 0; first < n_rows; first += ROUNDED_ROWS) {
        int64_t rows = n_rows - first < ROUNDED_ROWS ? n_rows - first : ROUNDED_ROWS;
        for (int64_t row = 0; row < rows; row++) {
            float *out = rounded + row * in_features;
            round_row(linear_row_floats(x, first + row, 0, in_features, out), in_features, out);
        }
        op_call part = *call;
        part.scratch = (char *)call->scratch + rows_bytes(call);
        part.tensors[LINEAR_X] = tensor_2d(rounded, DTYPE_F32, rows, in_features);
        part.tensors[LINEAR_OUT] = tensor_slice(call->tensors[LINEAR_OUT], 0, first, rows);
        if (residual->rank) part.tensors[LINEAR_RESIDUAL] = tensor_slice(*residual, 0, first, rows);
        linear_reference(&part);
    }
}

void linear_rounded_8(const op_call *call)
{
    run_rounded(call, round_row_8);
}

void linear_rounded_16(const op_call *call)
{
    run_rounded(call, round_row_16);
}

void linear_rounded_bf16(const op_call *call)
{
    run_rounded(call, round_row_bf16);
}
