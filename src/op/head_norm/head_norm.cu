/* head_norm on the GPU: a warp a head, `units` tokens a block.
 *
 * The order of a head's sum depends only on head_dim: a lane adds the squares of four neighbours,
 * and of the four that are 128 elements further, and warp_sum() adds the lanes. Code that computes
 * the norm elsewhere (op/linear/chain_rope.cuh) adds them in this order too. Its launch may come
 * before the kernel before it has ended, so it waits for that first.
 */
#include "op/device.cuh"
#include "op/head_norm/head_norm.h"
#include "op/rms_norm/rms_norm.cuh"

DEVICE_FN void norm_head(dtype type, char *x, const tensor &weight, int n, float eps, int lane)
{
    float sum = 0;
    for (int i = 4 * lane; i < n; i += 4 * WARP) {
        const float4 v = device_load4(type, x, i, n);
        sum += norm_squares4(v.x, v.y, v.z, v.w);
    }
    const float scale = norm_scale(warp_sum(sum), n, eps);
    for (int i = 4 * lane; i < n; i += 4 * WARP)
        device_store4(type, x, i, n,
                      norm_apply4(device_load4(type, x, i, n), scale,
                                  device_load4(weight.type, weight.data, i, n)));
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
