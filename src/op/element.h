/* Reading and writing single elements of the plain types, for references. */
#pragma once

#include "tensor/float16.h"
#include "tensor/float8.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* The float next to the value, odd when inexact, so that a second rounding to a narrower type gives
 * the same result as a single rounding (Boldo, Melquiond: When double rounding is odd, 2004). */
static inline float float_round_odd(double value)
{
    float near = (float)value;
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    if ((double)near == value || value != value || (bits & 0x7fffffffu) == 0x7f800000u) return near;
    if (fabs((double)near) > fabs(value)) bits--;
    bits |= 1;
    memcpy(&near, &bits, sizeof near);
    return near;
}

/* Element i of a row of a plain type. */
static inline double element_load(dtype type, const void *row, int64_t i)
{
    switch (type) {
    case DTYPE_F32:
        return ((const float *)row)[i];
    case DTYPE_F64:
        return ((const double *)row)[i];
    case DTYPE_F16:
        return f16_to_f32(((const uint16_t *)row)[i]);
    case DTYPE_BF16:
        return bf16_to_f32(((const uint16_t *)row)[i]);
    case DTYPE_F8:
        return f8_to_f32(((const uint8_t *)row)[i]);
    case DTYPE_I32:
        return ((const int32_t *)row)[i];
    default:
        return (double)((const int64_t *)row)[i];
    }
}

/* Rounds once, to the nearest value of the type; F8 saturates. */
static inline void element_store(dtype type, void *row, int64_t i, double value)
{
    switch (type) {
    case DTYPE_F32:
        ((float *)row)[i] = (float)value;
        break;
    case DTYPE_F64:
        ((double *)row)[i] = value;
        break;
    case DTYPE_F16:
        ((uint16_t *)row)[i] = f32_to_f16(float_round_odd(value));
        break;
    case DTYPE_BF16:
        ((uint16_t *)row)[i] = f32_to_bf16(float_round_odd(value));
        break;
    case DTYPE_F8:
        ((uint8_t *)row)[i] = f32_to_f8(float_round_odd(value));
        break;
    case DTYPE_I32:
        ((int32_t *)row)[i] = (int32_t)value;
        break;
    default:
        ((int64_t *)row)[i] = (int64_t)value;
        break;
    }
}

/* The value rounded to the nearest of the type. */
static inline double element_round(dtype type, double value)
{
    double cell;
    element_store(type, &cell, 0, value);
    return element_load(type, &cell, 0);
}
