/* What operators that begin with a norm share on the GPU: rows normalised into shared memory, and
 * rows of weights times them.
 *
 * A block computes its rows' factors once. A warp takes a unit, which has one or two rows of
 * weights of any types; it adds as linear does for few rows, so the order of a sum depends on the
 * row's length alone. The function that decodes a type's row is called, not inlined: it is compiled
 * once for each type and serves all operators.
 */
#ifndef QUIPU_OP_FUSED_CUH
#define QUIPU_OP_FUSED_CUH

#include "op/fixed.h"
#include "op/linear/linear.cuh"

enum { FUSED_WARPS = LINEAR_WARPS, FUSED_THREADS = FUSED_WARPS * WARP };

/* Up to M rows of x from `first` on, of `count` in all; with `which`, the rows that it lists. */
struct fused_rows {
    const tensor *x, *norm_weight;
    const int32_t *which;
    int64_t first, count;
    float eps;
};

/* A row of a weight matrix. */
struct fused_weight {
    dtype type;
    const char *row;
    int64_t bytes;
};

/* Prefetches a row that will be read: the first one while the norm is computed, the next while one
 * is multiplied. */
DEVICE_FN void fused_prefetch(const fused_weight &weight)
{
    if (device_aligned(weight.row, 16) && weight.bytes >= 16)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(weight.row),
                     "r"((unsigned)weight.bytes & ~15u));
}

template <int M> struct fused_shared {
    __align__(16) float x[LINEAR_X_FLOATS];
    float scales[M], cells[MAX_WARPS];
};

DEVICE_FN const char *fused_row(const fused_rows &rows, int m)
{
    int64_t at = rows.first + m;
    return device_row(*rows.x, rows.which ? rows.which[at] : at);
}

/* Elements [i, i + 4) of a row of n, zeros after its end; I64: in fixed point. */
DEVICE_FN float4 fused_norm_load(dtype type, const void *row, int64_t i, int64_t n)
{
    if (type != DTYPE_I64) return device_load4(type, row, i, n);
    float v[4];
    for (int j = 0; j < 4; j++)
        v[j] = i + j < n ? fixed_to_float(((const int64_t *)row)[i + j]) : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* 1 / sqrt(mean of squares + eps) of a row, in every thread. */
DEVICE_FN float fused_norm_scale(dtype type, const void *row, int64_t n, float eps, float *cells)
{
    float sum = 0;
    for (int64_t i = 4 * threadIdx.x; i < n; i += 4 * blockDim.x) {
        float4 v = fused_norm_load(type, row, i, n);
        sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
    }
    return 1.0f / sqrtf(block_sum(sum, cells) / (float)n + eps);
}

/* The rows' factors, once per block. */
template <int M> DEVICE_FN void fused_scales(const fused_rows &rows, fused_shared<M> &shared)
{
    int64_t n = rows.x->shape[1];
    for (int m = 0; m < M && rows.first + m < rows.count; m++) {
        float scale = fused_norm_scale(rows.x->type, fused_row(rows, m), n, rows.eps, shared.cells);
        if (threadIdx.x == 0) shared.scales[m] = scale;
    }
}

/* Elements from `first` on of the rows, normalised, zeros after their end; a row has
 * LINEAR_X_FLOATS / M. */
template <int M>
DEVICE_FN void fused_load(const fused_rows &rows, int64_t first, fused_shared<M> &shared)
{
    const int chunk = LINEAR_X_FLOATS / M;
    const tensor &x = *rows.x, &weight = *rows.norm_weight;
    int64_t n = x.shape[1];
    int wanted = (int)min((int64_t)chunk, (n - first + 7) / 8 * 8);
    for (int m = 0; m < M; m++) {
        bool there = rows.first + m < rows.count;
        const char *row = there ? fused_row(rows, m) : nullptr;
        float scale = there ? shared.scales[m] : 0;
        for (int i = 4 * threadIdx.x; i < wanted; i += 4 * blockDim.x) {
            float4 y = make_float4(0, 0, 0, 0);
            if (there) {
                float4 v = fused_norm_load(x.type, row, first + i, n);
                float4 f = fused_norm_load(weight.type, weight.data, first + i, n);
                y = make_float4(v.x * scale * f.x, v.y * scale * f.y, v.z * scale * f.z,
                                v.w * scale * f.w);
            }
            *(float4 *)(shared.x + m * chunk + i) = y;
        }
    }
}

template <int M> struct fused_sums {
    float of[M];
};

/* The lane's part of the products of a row's elements [first, n) with those in shared memory. */
template <dtype T, int M>
__device__ __noinline__ fused_sums<M> fused_product_of(const char *row, int64_t n, int64_t first,
                                                       const float *shared)
{
    fused_sums<M> sums = {};
    __builtin_assume(__isShared(shared));
    linear_add<T, M>(T, row, n, first, shared, sums.of);
    return sums;
}

template <int M>
DEVICE_FN fused_sums<M> fused_product(const fused_weight &weight, int64_t n, int64_t first,
                                      const float *shared)
{
#define FUSED_TYPE(T)                                                                              \
    case DTYPE_##T:                                                                                \
        return fused_product_of<DTYPE_##T, M>(weight.row, n, first, shared)
    switch (weight.type) {
        FUSED_TYPE(F32);
        FUSED_TYPE(F16);
        FUSED_TYPE(BF16);
        FUSED_TYPE(Q8_0);
        FUSED_TYPE(Q4_0);
        FUSED_TYPE(Q4_1);
        FUSED_TYPE(Q5_0);
        FUSED_TYPE(Q5_1);
        FUSED_TYPE(Q2_K);
        FUSED_TYPE(Q3_K);
        FUSED_TYPE(Q4_K);
        FUSED_TYPE(Q5_K);
    default:
        FUSED_TYPE(Q6_K);
    }
#undef FUSED_TYPE
}

/* Units [begin, end), one per warp; the warps' rounds are `step` apart. `JOB` has ROWS rows of
 * weights per unit: weight(unit, r) is one of them, finish(unit, row, sums[ROWS]) takes their
 * products with a row of x; one lane per row calls it, all in one warp. */
template <int M, typename JOB>
DEVICE_FN void fused_block(const JOB &job, const fused_rows &rows, int64_t begin, int64_t end,
                           int64_t step, fused_shared<M> &shared)
{
    const int chunk = LINEAR_X_FLOATS / M;
    int64_t n = rows.x->shape[1];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (lane < JOB::ROWS && begin + warp < end) fused_prefetch(job.weight(begin + warp, lane));
    fused_scales(rows, shared);
    for (int64_t group = begin; group < end; group += step) {
        int64_t unit = group + warp;
        fused_sums<M> sums[JOB::ROWS] = {};
        if (lane < JOB::ROWS && unit + step < end) fused_prefetch(job.weight(unit + step, lane));
        for (int64_t first = 0; first < n; first += chunk) {
            if (n > chunk || group == begin) { /* a single chunk is loaded once */
                __syncthreads();
                fused_load(rows, first, shared);
                __syncthreads();
            }
            for (int r = 0; r < JOB::ROWS && unit < end; r++) {
                fused_sums<M> part = fused_product<M>(job.weight(unit, r), n, first, shared.x);
                for (int m = 0; m < M; m++)
                    sums[r].of[m] += part.of[m];
            }
        }
        for (int m = 0; m < M; m++) {
            float all[JOB::ROWS];
            for (int r = 0; r < JOB::ROWS; r++)
                all[r] = warp_sum(sums[r].of[m]);
            if (lane == m && unit < end && rows.first + m < rows.count)
                job.finish(unit, rows.first + m, all);
        }
    }
}

DEVICE_FN fused_weight fused_weight_row(const tensor &weight, int64_t row)
{
    return fused_weight{weight.type, device_row(weight, row), weight.stride[0]};
}

/* An element of an optional bias. */
DEVICE_FN float fused_bias(const tensor &bias, int64_t i)
{
    return bias.rank ? device_load(bias.type, bias.data, i) : 0.0f;
}

#endif
