/* The activation of gate and up, with silu_and_mul's parameters. */
#pragma once

#include "op/silu_and_mul/silu_and_mul.cuh"

/* `limit` may be infinite. NaN stays. */
DEVICE_FN float experts_activate(float gate, float up, float alpha, float limit, float added)
{
    if (gate > limit) gate = limit;
    if (fabsf(up) > limit) up = copysignf(limit, up);
    return (alpha == 1.0f ? silu(gate) : silu(alpha * gate) / alpha) * (up + added);
}
