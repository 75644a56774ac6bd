/* Rows as float64: see row.h. */
#include "op/row.h"

#include "op/element.h"
#include "tensor/codec.h"

void row_load(dtype type, const void *row, int64_t n, double *out)
{
    const float *floats = row;
    const uint16_t *halves = row;
    const uint8_t *bytes = row;
    switch (type) {
    case DTYPE_F32:
        for (int64_t i = 0; i < n; i++)
            out[i] = floats[i];
        break;
    case DTYPE_F16:
        for (int64_t i = 0; i < n; i++)
            out[i] = f16_to_f32(halves[i]);
        break;
    case DTYPE_BF16:
        for (int64_t i = 0; i < n; i++)
            out[i] = bf16_to_f32(halves[i]);
        break;
    case DTYPE_F8:
        for (int64_t i = 0; i < n; i++)
            out[i] = f8_to_f32(bytes[i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            out[i] = element_load(type, row, i);
        break;
    }
}

void row_decode(dtype type, const void *row, int64_t n, float *decoded, double *out)
{
    dtype_decode(type, row, decoded, n);
    for (int64_t i = 0; i < n; i++)
        out[i] = decoded[i];
}

void row_store(dtype type, void *row, int64_t n, const double *values)
{
    if (type == DTYPE_F32) {
        float *floats = row;
        for (int64_t i = 0; i < n; i++)
            floats[i] = (float)values[i];
        return;
    }
    for (int64_t i = 0; i < n; i++)
        element_store(type, row, i, values[i]);
}

enum { LANES = 8 };
typedef double lanes __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double))));

double row_dot(const double *a, const double *b, int64_t n)
{
    lanes sums = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sums += *(const lanes *)(a + i) * *(const lanes *)(b + i);
    for (int lane = 0; i < n; i++, lane++)
        sums[lane] += a[i] * b[i];
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    }
    return sums[0];
}
