/* attention_sinks on the GPU: a warp a head of a token. */
#include "op/attention_sinks/attention_sinks.h"
#include "op/device.cuh"

DEVICE_FN void scale_head(const op_call &call, int64_t token, int64_t head, int lane)
{
    const tensor &v = call.tensors[ATTENTION_SINKS_V], &lse = call.tensors[ATTENTION_SINKS_LSE];
    const tensor &sinks = call.tensors[ATTENTION_SINKS_SINKS];
    const float log2_e = 1.44269504f, sum = ((const float *)device_row(lse, token))[head];
    const float sink = device_load(sinks.type, sinks.data, head) * log2_e;
    const float kept = 1.0f / (1.0f + exp2f(sink - sum));
    char *row = device_row2(v, token, head);
    for (int i = 4 * lane; i < (int)v.shape[2]; i += 4 * WARP) {
        float4 value = device_load4(v.type, row, i, v.shape[2]);
        value = make_float4(value.x * kept, value.y * kept, value.z * kept, value.w * kept);
        device_store4(v.type, row, i, v.shape[2], value);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    run_attention_sinks(const __grid_constant__ op_call call, int64_t units)
{
    device_take_turn();
    const int64_t n_heads = call.tensors[ATTENTION_SINKS_LSE].shape[1];
    const int64_t unit = call.begin + blockIdx.x * units + threadIdx.x / WARP;
    if (unit < call.end) scale_head(call, unit / n_heads, unit % n_heads, (int)threadIdx.x % WARP);
}
