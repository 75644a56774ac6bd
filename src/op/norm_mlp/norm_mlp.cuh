/* norm_mlp on the GPU: a block makes a few features between the projections, then adds their
 * columns of down, weighted, to all of x_out. */
#ifndef QUIPU_OP_NORM_MLP_CUH
#define QUIPU_OP_NORM_MLP_CUH

#include "op/norm_gate_up_silu/norm_gate_up_silu.cuh"
#include "op/norm_mlp/norm_mlp.h"

enum {
    NORM_MLP_UNITS = 32,                   /* at most, of a block */
    NORM_MLP_COLUMNS = NORM_MLP_UNITS + 8, /* whole groups of eight around them */
    NORM_MLP_ROWS = 4,                     /* of down, that a lane reads before it adds */
};

template <int M> struct norm_mlp_shared {
    fused_shared<M> norm;
    __align__(16) float features[M][NORM_MLP_COLUMNS]; /* zeros around them */
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

/* Adds columns [first, end) of down, four lanes a row, to M tokens. What a feature adds is rounded
 * by itself, so that it does not matter which of them are a block's. */
template <dtype T, int M>
DEVICE_FN void norm_mlp_down(const op_call &call, int64_t first_token, int64_t first, int64_t end,
                             const norm_mlp_shared<M> &shared)
{
    const tensor &down = call.tensors[NORM_MLP_DOWN_WEIGHT], &out = call.tensors[NORM_MLP_X_OUT];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int64_t f = 8 * warp + lane / 4; f - lane / 4 < down.shape[0];
         f += 8 * FUSED_WARPS * NORM_MLP_ROWS) {
        int64_t sums[NORM_MLP_ROWS][M] = {};
        for (int64_t column = first + lane % 4 * 8; column < end; column += 32) {
            float w[NORM_MLP_ROWS][8];
            for (int r = 0; r < NORM_MLP_ROWS; r++) {
                int64_t row = min(f + r * 8 * FUSED_WARPS, down.shape[0] - 1);
                decode8_of<T>(down.type, device_row(down, row), column, down.shape[1], w[r]);
            }
            for (int r = 0; r < NORM_MLP_ROWS; r++)
                for (int m = 0; m < M; m++)
                    for (int j = 0; j < 8; j++)
                        sums[r][m] += fixed_from(w[r][j] * shared.features[m][column - first + j]);
        }
        for (int r = 0; r < NORM_MLP_ROWS; r++) {
            int64_t row = f + r * 8 * FUSED_WARPS;
            for (int m = 0; m < M; m++) {
                int64_t sum = sums[r][m];
                sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                sum += __shfl_xor_sync(ALL_LANES, sum, 2);
                if (lane % 4 == 0 && row < down.shape[0] && first_token + m < out.shape[0])
                    fixed_add((int64_t *)device_row(out, first_token + m) + row, sum);
            }
        }
    }
}

/* The share of the residual and of down's bias that the features [begin, end) bring along. */
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
    if (call.tensors[NORM_MLP_DOWN_WEIGHT].type == DTYPE_BF16)
        norm_mlp_down<DTYPE_BF16, M>(call, first, column, end, shared);
    else
        norm_mlp_down<DTYPE_COUNT, M>(call, first, column, end, shared);
    for (int64_t t = first; t < min(first + M, x.shape[0]); t++)
        norm_mlp_share(call, t, begin, end);
}

#endif
