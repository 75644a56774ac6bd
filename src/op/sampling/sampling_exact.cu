/* The stand-alone kernel of sampling: apart from the others, since nothing may be fused in it. */
#include "op/sampling/sampling.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    run_sampling(const __grid_constant__ op_call call, int64_t units)
{
    int64_t begin = call.begin + blockIdx.x * units;
    sampling_block(call, begin, min(begin + units, call.end));
}
