/* A candidate for rms_norm on the GPU: one block a row, float32 sums.
 *
 *     quipu ops check rms_norm --kernel examples/rms_norm.cu --unconfined
 */
#include "quipu_kernel.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum { X, WEIGHT, OUT };   /* of call->tensors */
enum { EPS, ROUND_FIRST }; /* of call->params */
enum { THREADS = 256 };

extern "C" bool rms_norm_accepts(const op_call *call);
extern "C" void rms_norm_launch(const op_call *call, cudaStream_t stream);

static bool is_known(dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

extern "C" bool rms_norm_accepts(const op_call *call)
{
    return is_known(call->tensors[X].type) && is_known(call->tensors[WEIGHT].type) &&
           is_known(call->tensors[OUT].type);
}

__device__ static float load(dtype type, const void *row, int64_t i)
{
    if (type == DTYPE_F32) return ((const float *)row)[i];
    if (type == DTYPE_F16) return __half2float(((const __half *)row)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)row)[i]);
}

__device__ static void store(dtype type, void *row, int64_t i, float value)
{
    if (type == DTYPE_F32)
        ((float *)row)[i] = value;
    else if (type == DTYPE_F16)
        ((__half *)row)[i] = __float2half_rn(value);
    else
        ((__nv_bfloat16 *)row)[i] = __float2bfloat16_rn(value);
}

__device__ static float rounded(dtype type, float value)
{
    if (type == DTYPE_F16) return __half2float(__float2half_rn(value));
    if (type == DTYPE_BF16) return __bfloat162float(__float2bfloat16_rn(value));
    return value;
}

/* The sum over the block, in an order that depends on the row's length alone. */
__device__ static float block_sum(float value)
{
    __shared__ float sums[THREADS];
    sums[threadIdx.x] = value;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
    return sums[0];
}

__global__ static void norm_rows(tensor x, tensor weight, tensor out, int64_t first, float eps,
                                 bool round_first)
{
    int64_t row = first + blockIdx.x, n = x.shape[1];
    const void *from = (const char *)x.data + row * x.stride[0];
    void *to = (char *)out.data + row * out.stride[0];
    float sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        float value = load(x.type, from, i);
        sum += value * value;
    }
    float scale = 1 / sqrtf(block_sum(sum) / (float)n + eps);
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        float value = load(x.type, from, i) * scale;
        if (round_first) value = rounded(x.type, value);
        store(out.type, to, i, value * load(weight.type, weight.data, i));
    }
}

extern "C" void rms_norm_launch(const op_call *call, cudaStream_t stream)
{
    unsigned rows = (unsigned)(call->end - call->begin);
    if (rows == 0) return;
    norm_rows<<<rows, THREADS, 0, stream>>>(
        call->tensors[X], call->tensors[WEIGHT], call->tensors[OUT], call->begin,
        (float)call->params[EPS], call->params[ROUND_FIRST] != 0);
}
