/* What operators' device functions share: rows and elements of views, sums over a warp and a block.
 *
 * NAME.cuh has an operator's device function, `NAME_block(call, begin, end)`: a thread block
 * computes the units [begin, end) of a call whose tensors are on the GPU. Its contract is that of
 * op_kernel with a block in place of a thread: the values do not depend on how the units were cut.
 * All threads of the block call it, and none returns early. Where a call is so short that its
 * launch matters, the function takes a struct of device_rows.h instead of the call.
 */
#pragma once

#include "op/device_rows.h"
#include "quipu_kernel.h"
#include "tensor/float16.h"
#include "tensor/float8.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#define DEVICE_FN     __device__ static __forceinline__
#define DEVICE_METHOD __device__ __forceinline__

enum { WARP = 32, MAX_WARPS = 32 };
#define ALL_LANES 0xffffffffu

DEVICE_FN char *device_row(const tensor &view, int64_t i)
{
    return (char *)view.data + i * view.stride[0];
}
DEVICE_FN char *device_row2(const tensor &view, int64_t i, int64_t j)
{
    return (char *)view.data + i * view.stride[0] + j * view.stride[1];
}

/* Element i of a row of F32, F16, BF16 or F8. */
DEVICE_FN float device_load(dtype type, const void *row, int64_t i)
{
    switch (type) {
    case DTYPE_F32:
        return ((const float *)row)[i];
    case DTYPE_F16:
        return __half2float(((const __half *)row)[i]);
    case DTYPE_F8:
        return f8_to_f32(((const uint8_t *)row)[i]);
    default:
        return bf16_to_f32(((const uint16_t *)row)[i]);
    }
}

/* Rounded once, to the nearest of the type. */
DEVICE_FN void device_store(dtype type, void *row, int64_t i, float value)
{
    switch (type) {
    case DTYPE_F32:
        ((float *)row)[i] = value;
        break;
    case DTYPE_F16:
        ((__half *)row)[i] = __float2half_rn(value);
        break;
    case DTYPE_F8:
        ((uint8_t *)row)[i] = f32_to_f8(value);
        break;
    default:
        ((__nv_bfloat16 *)row)[i] = __float2bfloat16_rn(value);
        break;
    }
}

DEVICE_FN bool device_aligned(const void *address, unsigned bytes)
{
    return ((uintptr_t)address & (bytes - 1)) == 0;
}

/* Elements [i, i + 4) of a row of n, zeros after its end. One load where they are aligned. */
DEVICE_FN float4 device_load4(dtype type, const void *row, int64_t i, int64_t n)
{
    const char *at = (const char *)row + i * (type == DTYPE_F32 ? 4 : 2);
    bool halves = type == DTYPE_F16 || type == DTYPE_BF16;
    if (type == DTYPE_F32 && i + 4 <= n && device_aligned(at, 16)) return *(const float4 *)at;
    if (halves && i + 4 <= n && device_aligned(at, 8)) {
        uint2 raw = *(const uint2 *)at;
        float2 low, high;
        if (type == DTYPE_F16) {
            low = __half22float2(*(__half2 *)&raw.x), high = __half22float2(*(__half2 *)&raw.y);
        } else {
            low = __bfloat1622float2(*(__nv_bfloat162 *)&raw.x);
            high = __bfloat1622float2(*(__nv_bfloat162 *)&raw.y);
        }
        return make_float4(low.x, low.y, high.x, high.y);
    }
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = i + j < n ? device_load(type, row, i + j) : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* Four neighbours in BF16, at a multiple of 8 bytes. */
DEVICE_FN void device_narrow(uint16_t *to, float4 value)
{
    __nv_bfloat162 low = __floats2bfloat162_rn(value.x, value.y);
    __nv_bfloat162 high = __floats2bfloat162_rn(value.z, value.w);
    *(uint2 *)to = make_uint2(*(uint32_t *)&low, *(uint32_t *)&high);
}

/* Four floats rounded to F8, the first one in the lowest byte. */
DEVICE_FN uint32_t device_pack4_f8(float a, float b, float c, float d)
{
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    return low | (uint32_t)high << 16;
}

/* The inverse of device_load4(): elements after the row's end are left out. */
DEVICE_FN void device_store4(dtype type, void *row, int64_t i, int64_t n, float4 value)
{
    char *at = (char *)row + i * (type == DTYPE_F32 ? 4 : type == DTYPE_F8 ? 1 : 2);
    bool halves = type == DTYPE_F16 || type == DTYPE_BF16;
    if (type == DTYPE_F32 && i + 4 <= n && device_aligned(at, 16)) {
        *(float4 *)at = value;
        return;
    }
    if (type == DTYPE_F8 && i + 4 <= n && device_aligned(at, 4)) {
        *(uint32_t *)at = device_pack4_f8(value.x, value.y, value.z, value.w);
        return;
    }
    if (halves && i + 4 <= n && device_aligned(at, 8)) {
        __half2 low = __floats2half2_rn(value.x, value.y);
        __half2 high = __floats2half2_rn(value.z, value.w);
        if (type == DTYPE_F16)
            *(uint2 *)at = make_uint2(*(uint32_t *)&low, *(uint32_t *)&high);
        else
            device_narrow((uint16_t *)at, value);
        return;
    }
    const float v[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (i + j < n) device_store(type, row, i + j, v[j]);
}

/* Programmatic dependent launch. device_let_next_begin() lets the next kernel's blocks start as
 * soon as all blocks of this one have; device_wait_for_last() waits until the previous kernels have
 * ended. Code before the wait may only read, and only what no kernel of the same pass writes. Both
 * do nothing in a kernel that was launched without it. */
DEVICE_FN void device_let_next_begin(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
DEVICE_FN void device_wait_for_last(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* For kernels that have nothing to do before the wait. */
DEVICE_FN void device_take_turn(void)
{
    device_let_next_begin();
    device_wait_for_last();
}

/* Eight neighbours of a row as in memory; 16-bit types have only `low`. They are converted later,
 * so that several loads are in flight at once. */
typedef struct device_eight {
    uint4 low, high;
} device_eight;

/* Elements [i, i + 8) of a row of n, zeros after its end. VECTORS: the rows are aligned, and n is a
 * multiple of 8. */
template <bool VECTORS>
DEVICE_FN device_eight device_fetch8(const device_rows &rows, int64_t row, int i, int n)
{
    const char *from = rows.data + row * rows.stride;
    device_eight raw = {};
    if (VECTORS) {
        if (i >= n) return raw;
        const uint4 *vector = (const uint4 *)(from + (int64_t)i * (rows.type == DTYPE_F32 ? 4 : 2));
        raw.low = vector[0];
        if (rows.type == DTYPE_F32) raw.high = vector[1];
        return raw;
    }
    uint32_t word[8] = {};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (i + j >= n) continue;
        if (rows.type == DTYPE_F32)
            word[j] = ((const uint32_t *)from)[i + j];
        else
            word[j / 2] |= (uint32_t)((const uint16_t *)from)[i + j] << j % 2 * 16;
    }
    return {make_uint4(word[0], word[1], word[2], word[3]),
            make_uint4(word[4], word[5], word[6], word[7])};
}

DEVICE_FN void device_unpack8(int64_t type, const device_eight &raw, float (&v)[8])
{
    const uint32_t word[8] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                              raw.high.x, raw.high.y, raw.high.z, raw.high.w};
    if (type == DTYPE_F32) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __uint_as_float(word[j]);
    } else if (type == DTYPE_BF16) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __uint_as_float(j % 2 ? word[j / 2] & 0xffff0000u : word[j / 2] << 16);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            float2 pair = __half22float2(*(const __half2 *)&word[j / 2]);
            v[j] = pair.x, v[j + 1] = pair.y;
        }
    }
}

/* Two floats rounded to a 16-bit type, the first one in the lower half. */
DEVICE_FN uint32_t device_pack2(int64_t type, float low, float high)
{
    if (type == DTYPE_BF16) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *(uint32_t *)&pair;
    }
    __half2 pair = __floats2half2_rn(low, high);
    return *(uint32_t *)&pair;
}

/* Stores those of the elements [i, i + 8) that are in the row, each rounded once; VECTORS: all are.
 */
template <bool VECTORS>
DEVICE_FN void device_store8(const device_rows &rows, int64_t row, int i, int n,
                             const float (&v)[8])
{
    char *to = rows.data + row * rows.stride;
    if (!VECTORS) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (i + j < n) device_store((dtype)rows.type, to, i + j, v[j]);
    } else if (rows.type == DTYPE_F32) {
        float4 *vector = (float4 *)((float *)to + i);
        vector[0] = make_float4(v[0], v[1], v[2], v[3]);
        vector[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else if (rows.type == DTYPE_F8) {
        *(uint2 *)(to + i) = make_uint2(device_pack4_f8(v[0], v[1], v[2], v[3]),
                                        device_pack4_f8(v[4], v[5], v[6], v[7]));
    } else {
        *(uint4 *)((uint16_t *)to + i) =
            make_uint4(device_pack2(rows.type, v[0], v[1]), device_pack2(rows.type, v[2], v[3]),
                       device_pack2(rows.type, v[4], v[5]), device_pack2(rows.type, v[6], v[7]));
    }
}

/* The sum over a warp's lanes, in every lane; always added in the same order. */
DEVICE_FN float warp_sum(float value)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

/* The sum over a block's threads, in every thread; `cells` is shared memory of MAX_WARPS floats. */
DEVICE_FN float block_sum(float value, float *cells)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    value = warp_sum(value);
    __syncthreads(); /* no thread reads the cells of an earlier sum any more */
    if (lane == 0) cells[warp] = value;
    __syncthreads();
    return warp_sum(lane < n_warps ? cells[lane] : 0.0f);
}

/* The sequence of token t, by the bounds indptr[0 .. n]. */
DEVICE_FN int64_t device_sequence(const int32_t *border, int64_t n, int64_t t)
{
    int64_t low = 0, high = n;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (border[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    return low;
}
