/* x for linear_eight.cuh: eight rows as parts of 16 bits, and their products with weights. */
#pragma once

#include "op/linear/eight_weights.cuh"

/* A step of eight rows in three parts each, as a lane has it: row g, and the columns that
 * eight_weights has. */
template <dtype T> struct eight_x {
    typedef eight_weights<T> weights;
    uint32_t v[EIGHT_STEP_BLOCKS][2][EIGHT_PARTS][2];
    /* Sums of blocks of rows 2 t and 2 t + 1. */
    float sums[weights::MINIMUM ? EIGHT_STEP_BLOCKS : 1][2];

    /* Subtracts from two values what a part holds of them, and returns the part. F16 parts are
     * scaled, because F16 has few exponents. */
    template <int PART> static METHOD uint32_t take(float *v, float *w)
    {
        if (!weights::HALF) {
            __nv_bfloat162 pair = __floats2bfloat162_rn(*v, *w);
            uint32_t part = *(uint32_t *)&pair;
            *v -= __uint_as_float(part << 16);
            *w -= __uint_as_float(part & 0xffff0000u);
            return part;
        }
        const float up = 1 / part_unit(PART);
        __half2 part = __floats2half2_rn(*v * up, *w * up);
        float2 taken = __half22float2(part);
        *v -= taken.x * part_unit(PART);
        *w -= taken.y * part_unit(PART);
        return *(uint32_t *)&part;
    }
    static METHOD constexpr float part_unit(int part)
    {
        return !weights::HALF ? 1 : part == 0 ? 64.0f : part == 1 ? 1 / 32.0f : 1 / 65536.0f;
    }
    METHOD void split(uint32_t (*to)[2], int i, float v, float w)
    {
        to[0][i] = take<0>(&v, &w);
        to[1][i] = take<1>(&v, &w);
        to[2][i] = take<2>(&v, &w);
    }

    METHOD void load(const linear_eight &a, int first_row, int step)
    {
        int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
        bool there = first_row + g < a.n_rows;
        const float *row = a.x + (there ? first_row + g : 0) * a.x_pitch;
        float4 f[2 * EIGHT_STEP_BLOCKS];
#pragma unroll
        for (int i = 0; i < 2 * EIGHT_STEP_BLOCKS; i++) {
            int column = step * LINEAR_EIGHT_COLUMNS + 16 * i;
            f[i] = make_float4(0, 0, 0, 0);
            if (there && column < a.n_columns) f[i] = *(const float4 *)(row + column + 4 * t);
        }
#pragma unroll
        for (int i = 0; i < 2 * EIGHT_STEP_BLOCKS; i++) {
            split(v[i / 2][i % 2], 0, f[i].x, weights::PLAIN ? f[i].y : f[i].z);
            split(v[i / 2][i % 2], 1, weights::PLAIN ? f[i].z : f[i].y, f[i].w);
        }
        if (!weights::MINIMUM) return;
        const uint32_t ones[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
#pragma unroll
        for (int j = 0; j < (weights::MINIMUM ? EIGHT_STEP_BLOCKS : 0); j++) {
            float c[4] = {0, 0, 0, 0};
            multiply(c, ones, j, 0);
            multiply(c, ones, j, 1);
            sums[j][0] = c[0], sums[j][1] = c[1];
        }
    }

    /* c += half a block of weights times x, the smallest parts first. */
    METHOD void multiply(float *c, const uint32_t *a, int j, int h) const
    {
#pragma unroll
        for (int part = EIGHT_PARTS - 1; part >= 0; part--)
            multiply_tile<false>(c, a, v[j][h][part][0], v[j][h][part][1]);
    }
};
