/* head_norm on the GPU: a warp a head, `units` tokens a block.
 *
 * The order of a head's sum depends on head_dim alone: a lane adds elements lane, lane + 32, ...,
 * and warp_sum() adds the lanes. Its launch may come before the kernel before it has ended, so it
 * waits for that first.
 */
#include "op/device.cuh"
#include "op/head_norm/head_norm.h"

DEVICE_FN void norm_head(dtype type, char *x, const tensor &weight, int n, float eps, int lane)
{
    float sum = 0;
    for (int i = lane; i < n; i += WARP) {
        const float v = device_load(type, x, i);
        sum = fmaf(v, v, sum);
    }
    const float scale = 1.0f / sqrtf(warp_sum(sum) / (float)n + eps);
    for (int i = lane; i < n; i += WARP)
        device_store(type, x, i,
                     device_load(type, x, i) * scale * device_load(weight.type, weight.data, i));
}

extern "C" __global__ void __launch_bounds__(256)
    run_head_norm(const __grid_constant__ op_call call, int64_t units)
{
    device_take_turn();
    const tensor &q = call.tensors[HEAD_NORM_Q], &k = call.tensors[HEAD_NORM_K];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int n_warps = (int)blockDim.x / WARP, n_heads = (int)q.shape[1];
    const int64_t begin = call.begin + blockIdx.x * units, end = min(begin + units, call.end);
    for (int64_t t = begin; t < end; t++) {
        for (int head = warp; head < n_heads + (int)k.shape[1]; head += n_warps) {
            const bool of_q = head < n_heads;
            norm_head(of_q ? q.type : k.type,
                      (char *)(of_q ? device_row2(q, t, head) : device_row2(k, t, head - n_heads)),
                      call.tensors[of_q ? HEAD_NORM_Q_WEIGHT : HEAD_NORM_K_WEIGHT], (int)q.shape[2],
                      (float)call.params[HEAD_NORM_EPS], lane);
        }
    }
}
