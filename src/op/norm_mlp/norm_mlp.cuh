/* norm_mlp on the GPU: a block computes a few features between the projections, then adds their
 * columns of down, weighted, to all of x_out. */
#ifndef QUIPU_OP_NORM_MLP_CUH
#define QUIPU_OP_NORM_MLP_CUH

#include "op/norm_gate_up_silu/norm_gate_up_silu.cuh"
#include "op/norm_mlp/norm_mlp.h"

enum {
    NORM_MLP_UNITS = 32,                     /* of a block, at most */
    NORM_MLP_LANES = NORM_MLP_UNITS / 8,     /* that share a row of down */
    NORM_MLP_BESIDE = WARP / NORM_MLP_LANES, /* rows that a warp reads side by side */
    NORM_MLP_COLUMNS = NORM_MLP_UNITS + 8,   /* whole groups of eight that contain them */
};

template <int M> struct norm_mlp_shared {
    fused_shared<M> norm;
    __align__(16) float features[M][NORM_MLP_COLUMNS]; /* with zeros before and after */
};

template <int M> struct norm_mlp_job {
    enum { ROWS = 2 };
    const op_call &call;
    norm_mlp_shared<M> &shared;
    int64_t first_token, first_column;

    __device__ fused_weight weight(int64_t feature, int r) const
    {
        return fused_weight_row(call.tensors[NORM_MLP_GATE_WEIGHT + r], feature);
    }
    __device__ void finish(int64_t feature, int64_t t, const float *sums) const
    {
        float gate = sums[0] + fused_bias(call.tensors[NORM_MLP_GATE_BIAS], feature);
        float up = sums[1] + fused_bias(call.tensors[NORM_MLP_UP_BIAS], feature);
        shared.features[t - first_token][feature - first_column] = silu(gate) * up;
    }
};

/* Eight columns of the lane's rows of down, `step` apart from `f` on; after the last row that row
 * again. T: BF16 at multiples of 16 bytes; DTYPE_COUNT: any. */
template <dtype T, int N>
DEVICE_FN void norm_mlp_columns(const tensor &down, int64_t f, int64_t step, int64_t column,
                                float (&w)[N][8])
{
    uint4 words[N];
#pragma unroll
    for (int r = 0; r < N; r++) {
        const char *row = device_row(down, min(f + r * step, down.shape[0] - 1));
        if (T == DTYPE_COUNT)
            decode8_of<T>(down.type, row, column, down.shape[1], w[r]);
        else
            words[r] = __ldg((const uint4 *)(row + 2 * column));
    }
#pragma unroll
    for (int r = 0; r < N && T != DTYPE_COUNT; r++)
        decode_words<T>(words[r], w[r]);
}

/* Adds columns [first, end) of down to M tokens. What a feature adds is rounded by itself, so it
 * does not matter which features a block has. */
template <dtype T, int M>
DEVICE_FN void norm_mlp_down(const op_call &call, int64_t first_token, int64_t first, int64_t end,
                             const norm_mlp_shared<M> &shared)
{
    const tensor &down = call.tensors[NORM_MLP_DOWN_WEIGHT], &out = call.tensors[NORM_MLP_X_OUT];
    const int step = NORM_MLP_BESIDE * FUSED_WARPS;     /* from row to row of a lane */
    const int rows = M > 1 || T == DTYPE_COUNT ? 2 : 8; /* that a lane loads before it adds */
    int lane = threadIdx.x % WARP;
    int64_t base = threadIdx.x / WARP * NORM_MLP_BESIDE;
    for (; base < down.shape[0]; base += step * rows) {
        int64_t f = base + lane / NORM_MLP_LANES, sums[rows][M] = {};
        for (int64_t column = first + lane % NORM_MLP_LANES * 8; column < end;
             column += NORM_MLP_UNITS) {
            float w[rows][8];
            norm_mlp_columns<T, rows>(down, f, step, column, w);
#pragma unroll
            for (int r = 0; r < rows; r++)
                for (int m = 0; m < M; m++)
                    for (int j = 0; j < 8; j++)
                        sums[r][m] += fixed_from(w[r][j] * shared.features[m][column - first + j]);
        }
#pragma unroll
        for (int r = 0; r < rows; r++) {
            for (int m = 0; m < M; m++) {
                for (int other = 1; other < NORM_MLP_LANES; other *= 2)
                    sums[r][m] += __shfl_xor_sync(ALL_LANES, sums[r][m], other);
                bool there = f + r * step < down.shape[0] && first_token + m < out.shape[0];
                if (lane % NORM_MLP_LANES == 0 && there)
                    fixed_add((int64_t *)device_row(out, first_token + m) + f + r * step,
                              sums[r][m]);
            }
        }
    }
}

/* The share of the residual and of down's bias that goes with the features [begin, end). */
DEVICE_FN void norm_mlp_share(const op_call &call, int64_t t, int64_t begin, int64_t end)
{
    const tensor &x = call.tensors[NORM_MLP_X], &bias = call.tensors[NORM_MLP_DOWN_BIAS];
    int64_t all = call.tensors[NORM_MLP_GATE_WEIGHT].shape[0], n = x.shape[1];
    const int64_t *from = (const int64_t *)device_row(x, t);
    int64_t *to = (int64_t *)device_row(call.tensors[NORM_MLP_X_OUT], t);
    for (int64_t i = n * begin / all + threadIdx.x; i < n * end / all; i += blockDim.x)
        fixed_add(to + i, fixed_value(from[i]) + fixed_from(fused_bias(bias, i)));
}

/* Features [begin, end), NORM_MLP_UNITS at most, for M tokens from `first` on. */
template <int M>
DEVICE_FN void norm_mlp_block(const op_call &call, int64_t first, int64_t begin, int64_t end,
                              norm_mlp_shared<M> &shared)
{
    const tensor &x = call.tensors[NORM_MLP_X];
    int64_t column = begin / 8 * 8;
    fused_rows rows = {&x,         &call.tensors[NORM_MLP_NORM_WEIGHT], nullptr, first,
                       x.shape[0], (float)call.params[NORM_MLP_EPS]};
    for (int i = threadIdx.x; i < M * NORM_MLP_COLUMNS; i += blockDim.x)
        (&shared.features[0][0])[i] = 0;
    fused_block<M>(norm_mlp_job<M>{call, shared, first, column}, rows, begin, end, FUSED_WARPS,
                   shared.norm);
    __syncthreads(); /* the features are there */
    const tensor &down = call.tensors[NORM_MLP_DOWN_WEIGHT];
    if (down.type == DTYPE_BF16 && device_aligned(down.data, 16) &&
        (down.stride[0] | 2 * down.shape[1]) % 16 == 0)
        norm_mlp_down<DTYPE_BF16, M>(call, first, column, end, shared);
    else
        norm_mlp_down<DTYPE_COUNT, M>(call, first, column, end, shared);
    for (int64_t t = first; t < min(first + M, x.shape[0]); t++)
        norm_mlp_share(call, t, begin, end);
}

#endif
