/* linear_experts on the GPU for any types and sizes: a warp for each output.
 *
 * A lane takes groups of eight columns, 256 apart, and the lanes are added at the end. An output
 * that is a sum over a token's experts adds them in the order of their numbers.
 */
#include "op/linear_experts/activate.cuh"
#include "op/linear_experts/linear_experts.h"
#include "tensor/decode_all.cuh"

/* A function, because its code is long. */
__device__ static __noinline__ void decode_any(dtype type, const char *row, int64_t i, int64_t n,
                                               float *out)
{
    decode8_all_of<DTYPE_COUNT>(type, row, i, n, out);
}

/* Row o of an expert's matrix times a row of x, plus the bias; in every lane. */
DEVICE_FN float multiply(const op_call &call, int matrix, int bias, int64_t expert, int64_t o,
                         const char *x)
{
    const tensor &weight = call.tensors[matrix], &biases = call.tensors[bias];
    const dtype type = call.tensors[LINEAR_EXPERTS_X].type;
    const char *row = device_row2(weight, expert, o);
    const int64_t n = weight.shape[2];
    float sum = 0;
    for (int64_t i = 8 * (threadIdx.x % WARP); i < n; i += 8 * WARP) {
        float w[8];
        const float4 low = device_load4(type, x, i, n), high = device_load4(type, x, i + 4, n);
        decode_any(weight.type, row, i, n, w);
        sum = fmaf(w[0], low.x, fmaf(w[1], low.y, fmaf(w[2], low.z, fmaf(w[3], low.w, sum))));
        sum = fmaf(w[4], high.x, fmaf(w[5], high.y, fmaf(w[6], high.z, fmaf(w[7], high.w, sum))));
    }
    sum = warp_sum(sum);
    return biases.rank ? sum + device_load(biases.type, device_row(biases, expert), o) : sum;
}

/* Output o of choice j of a token. */
DEVICE_FN float choice(const op_call &call, int64_t token, int64_t j, int64_t expert, int64_t o)
{
    const tensor &rows = call.tensors[LINEAR_EXPERTS_X];
    const char *x = device_row2(rows, token, rows.shape[1] == 1 ? 0 : j);
    const float gate = multiply(call, LINEAR_EXPERTS_WEIGHT, LINEAR_EXPERTS_BIAS, expert, o, x);
    if (!call.tensors[LINEAR_EXPERTS_UP_WEIGHT].rank) return gate;
    const float limit = (float)call.params[LINEAR_EXPERTS_LIMIT];
    const float up = multiply(call, LINEAR_EXPERTS_UP_WEIGHT, LINEAR_EXPERTS_UP_BIAS, expert, o, x);
    return experts_activate(gate, up, (float)call.params[LINEAR_EXPERTS_ALPHA],
                            limit > 0 ? limit : CUDART_INF_F,
                            (float)call.params[LINEAR_EXPERTS_ADDED]);
}

/* The choice with the lowest number of an expert among those after *last, a number and choice; -1:
 * there is none, since choices of no expert (-1) are left out. */
DEVICE_FN int64_t next_choice(const int32_t *ids, int64_t k, int64_t *last)
{
    int64_t best = INT64_MAX;
    for (int64_t j = 0; j < k; j++) {
        const int64_t key = ids[j] * k + j;
        if (key > *last && key < best) best = key;
    }
    *last = best;
    return best == INT64_MAX ? -1 : best % k;
}

DEVICE_FN float sum_choices(const op_call &call, int64_t token, const int32_t *ids, int64_t o)
{
    const tensor &shares = call.tensors[LINEAR_EXPERTS_SHARES];
    const tensor &residual = call.tensors[LINEAR_EXPERTS_RESIDUAL];
    const int64_t k = call.tensors[LINEAR_EXPERTS_IDS].shape[1];
    int64_t last = -1;
    float sum = residual.rank ? device_load(residual.type, device_row(residual, token), o) : 0.0f;
    for (int64_t n = 0; n < k; n++) {
        const int64_t j = next_choice(ids, k, &last);
        if (j < 0) break;
        const float share = device_load(shares.type, device_row(shares, token), j);
        sum = fmaf(share, choice(call, token, j, ids[j], o), sum);
    }
    return sum;
}

/* A block has eight outputs, first of a row of out, then of the next one. */
extern "C" __global__ void __launch_bounds__(256)
    run_experts_plain(const __grid_constant__ op_call call, int64_t)
{
    device_take_turn();
    const tensor &out = call.tensors[LINEAR_EXPERTS_OUT], &ids = call.tensors[LINEAR_EXPERTS_IDS];
    const int64_t n = call.end - call.begin;
    const int64_t unit = (int64_t)blockIdx.x * 8 + threadIdx.x / WARP, row = unit / n;
    const int64_t token = row / out.shape[1], j = row % out.shape[1], o = call.begin + unit % n;
    if (token >= out.shape[0]) return;
    const int32_t *chosen = (const int32_t *)device_row(ids, token);
    if (!call.tensors[LINEAR_EXPERTS_SHARES].rank && chosen[j] < 0) return;
    const float value = call.tensors[LINEAR_EXPERTS_SHARES].rank
                            ? sum_choices(call, token, chosen, o)
                            : choice(call, token, j, chosen[j], o);
    if (threadIdx.x % WARP == 0) device_store(out.type, device_row2(out, token, j), o, value);
}
