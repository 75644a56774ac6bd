/* adjust_logits as a kernel: `units` logits per block. It may start while the previous kernel runs,
 * so it waits for that kernel first. */
#include "op/adjust_logits/adjust_logits.cuh"

extern "C" __global__ void __launch_bounds__(256)
    run_adjust_logits(const __grid_constant__ op_call call, int64_t units)
{
    device_take_turn();
    const int64_t begin = call.begin + blockIdx.x * units;
    adjust_logits_block(call, begin, min(begin + units, call.end));
}
