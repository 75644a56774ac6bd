/* What CUDA's attention kernels share: arguments, the walk through a page table, tiles in shared
 * memory, fragments of the tensor cores, the running softmax.
 *
 * Scores and outputs are in registers as mma.sync's and wgmma's accumulators: of 16 rows, lane 4 g
 * + t of a warp holds rows g and g + 8, and columns 2 t and 2 t + 1 of each 8. A tile in shared
 * memory is cut into columns of 128 bytes, all rows of one column before the next, and the 16-byte
 * chunks of a row are permuted by the row's number (wgmma's 128-byte swizzle), so that eight rows
 * of a column are in eight different banks.
 *
 * The arithmetic of a row depends only on its own query and on positions counted from 0: neither
 * the batch nor the cut of a prompt changes a bit. Queries and weights are rounded to the cache's
 * type before their products, with a cache in FP8 to F16; sums are float32.
 */
#pragma once

#include "op/attention/paged_cuda.h"
#include "tensor/decode.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* An element of a cache in FP8 (E4M3). Products have it as F16, to which it converts exactly. */
struct element_f8 {
    uint8_t bits;
};
template <typename T> struct product_of {
    typedef T type;
};
template <> struct product_of<element_f8> {
    typedef __half type;
};

/* Eight elements of a cache's row. */
template <typename T> struct eight_of {
    typedef uint4 type;
};
template <> struct eight_of<element_f8> {
    typedef uint2 type;
};

/* Pairs of floats to and from a cache's type. */
__device__ __forceinline__ uint32_t pack_pair(__nv_bfloat16, float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}
__device__ __forceinline__ uint32_t pack_pair(__half, float low, float high)
{
    __half2 pair = __floats2half2_rn(low, high);
    return *(uint32_t *)&pair;
}
__device__ __forceinline__ float2 unpack_pair(__nv_bfloat16, uint32_t pair)
{
    return __bfloat1622float2(*(__nv_bfloat162 *)&pair);
}
__device__ __forceinline__ float2 unpack_pair(__half, uint32_t pair)
{
    return __half22float2(*(__half2 *)&pair);
}

__device__ __forceinline__ int dtype_of(__nv_bfloat16)
{
    return DTYPE_BF16;
}
__device__ __forceinline__ int dtype_of(__half)
{
    return DTYPE_F16;
}

/* Eight elements of a query in the cache's type, times `sign`. */
template <typename T>
__device__ __forceinline__ uint4 load_query(int type, const char *row, int element, float sign)
{
    float2 pair[4];
    if (type == DTYPE_F32) {
        const float4 *from = (const float4 *)(row + element * 4);
        float4 low = from[0], high = from[1];
        pair[0] = make_float2(low.x, low.y), pair[1] = make_float2(low.z, low.w);
        pair[2] = make_float2(high.x, high.y), pair[3] = make_float2(high.z, high.w);
    } else {
        uint4 raw = *(const uint4 *)(row + element * 2);
        uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            pair[i] = type == DTYPE_BF16 ? unpack_pair(__nv_bfloat16(), word[i])
                                         : unpack_pair(__half(), word[i]);
    }
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        word[i] = pack_pair(T(), pair[i].x * sign, pair[i].y * sign);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* Two neighbouring elements of a row of outputs. */
__device__ __forceinline__ void store_pair(int type, char *row, int element, float low, float high)
{
    if (type == DTYPE_F32)
        *(float2 *)(row + element * 4) = make_float2(low, high);
    else
        *(uint32_t *)(row + element * 2) = type == DTYPE_BF16
                                               ? pack_pair(__nv_bfloat16(), low, high)
                                               : pack_pair(__half(), low, high);
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/* Whether the output of a head of a token is wanted. */
__device__ __forceinline__ bool is_wanted(const paged_attention &call, int64_t token, int64_t head)
{
    int64_t unit = token * call.n_kv_heads * call.group + head;
    return unit >= call.begin && unit < call.end;
}

/* The pages of a sequence. Sixteen positions from a multiple of 16 on are in one page, because page
 * sizes are multiples of 16. */
typedef struct page_walk {
    const int32_t *pages;
    int length;         /* positions in the cache */
    uint32_t page_size; /* in sixteens, like the next two */
    uint32_t inverse;   /* 2^32 / page_size rounded up, 0 for page_size 1 */
} page_walk;

__device__ __forceinline__ page_walk page_walk_of(const paged_attention &call, int sequence)
{
    page_walk walk;
    int first = call.kv_indptr[sequence], count = call.kv_indptr[sequence + 1] - first;
    bool paged = call.kv_last_page_len;
    walk.pages = call.kv_indices + (paged ? first : sequence);
    walk.length = !paged      ? count
                  : count > 0 ? (count - 1) * call.page_size + call.kv_last_page_len[sequence]
                              : 0;
    walk.page_size = (uint32_t)call.page_size / 16;
    walk.inverse = 0xffffffffu / walk.page_size + 1;
    return walk;
}

/* Where the positions from 16 * sixteen on begin in a cache. The product with the inverse is exact
 * below 2^32 / page_size sixteens, more than a cache holds. */
__device__ __forceinline__ int64_t page_offset(const page_walk &walk, const paged_strides &strides,
                                               uint32_t sixteen)
{
    uint32_t slot = walk.inverse ? __umulhi(sixteen, walk.inverse) : sixteen;
    uint32_t offset = (sixteen - slot * walk.page_size) * 16;
    return __ldg(walk.pages + slot) * strides.page + offset * (uint32_t)strides.position;
}

/* Byte of a 16-byte chunk in a tile of `rows` rows in shared memory. */
__device__ __forceinline__ uint32_t tile_byte(int rows, int row, int chunk)
{
    return (uint32_t)((chunk / 8 * rows + row) * 128 + ((chunk % 8 ^ row % 8) * 16));
}

__device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* Where the sixteens of some steps of COUNT positions begin in the two caches. In shared memory: a
 * few threads look them up before they are needed, because every thread needs them and the lookup
 * takes longer than starting the copy. */
template <int COUNT> struct page_places {
    enum { STEPS = 4 }; /* from the step whose values are copied to the step that is looked up */
    int64_t k[STEPS][COUNT / 16], v[STEPS][COUNT / 16];
};

/* Looks up the positions [first, first + COUNT); the sequence has at least one. */
template <int COUNT>
__device__ __forceinline__ void page_places_find(page_places<COUNT> *places,
                                                 const paged_attention &call, const page_walk &walk,
                                                 int first)
{
    if (threadIdx.x >= COUNT / 16) return;
    uint32_t sixteen = min((uint32_t)first / 16 + threadIdx.x, (uint32_t)(walk.length - 1) / 16);
    int step = first / COUNT % page_places<COUNT>::STEPS;
    places->k[step][threadIdx.x] = page_offset(walk, call.k_strides, sixteen);
    places->v[step][threadIdx.x] = page_offset(walk, call.v_strides, sixteen);
}

/* Starts to copy COUNT positions, whose sixteens begin at `places` in the cache, into a tile;
 * positions from n_there on are zeros, because a weight of 0 must not meet NaN. All threads of the
 * block. */
template <int HEAD_DIM, int COUNT, int THREADS>
__device__ __forceinline__ void tile_fetch(const char *cache, const int64_t (&places)[COUNT / 16],
                                           int64_t stride, int n_there, uint32_t tile)
{
    constexpr int CHUNKS = HEAD_DIM / 8, STEP = THREADS / CHUNKS;
    int chunk = (int)threadIdx.x % CHUNKS, row = (int)threadIdx.x / CHUNKS;
#pragma unroll 2 /* registers are few */
    for (int i = 0; i < (COUNT + STEP - 1) / STEP; i++, row += STEP) {
        if (COUNT % STEP != 0 && row >= COUNT) break;
        const char *from = cache + (row % 16 * (uint32_t)stride + chunk * 16) + places[row / 16];
        copy_async(tile + tile_byte(COUNT, row, chunk), from, row < n_there);
    }
}

/* The running softmax of a lane's two rows; `sum` is of the lane's own columns. */
typedef struct softmax_rows {
    float maximum[2], sum[2];
    int n_visible[2]; /* positions that the row sees */
} softmax_rows;

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* What exponents are relative to: the maximum, or 0 while nothing is seen. Rounded by itself, not
 * inside an fma, so that the factor of earlier sums is exactly 1 while the maximum stays. */
__device__ __forceinline__ float softmax_base(float maximum, float scale)
{
    return maximum == -INFINITY ? 0 : __fmul_rn(maximum, scale);
}
__device__ __forceinline__ float softmax_shrink(float before, float scale, float base)
{
    return exp2_fast(__fsub_rn(__fmul_rn(before, scale), base));
}

/* Turns the scores of 8 * TILES positions from `first` on into weights, and returns the factors for
 * earlier sums. `masked`: some row may not see some of them. */
template <int TILES>
__device__ __forceinline__ void softmax_step(float (&s)[TILES][4], softmax_rows &rows, int first,
                                             bool masked, float scale, float (&shrink)[2])
{
    if (masked) {
        int column = first + (int)threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < TILES * 4; i++)
            if (column + i / 4 * 8 + i % 2 >= rows.n_visible[i % 4 / 2])
                s[i / 4][i % 4] = -INFINITY;
    }
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float maximum = rows.maximum[r];
#pragma unroll
        for (int i = 0; i < TILES; i++)
            maximum = fmaxf(maximum, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
        maximum = quad_max(maximum);
        base[r] = softmax_base(maximum, scale);
        shrink[r] = softmax_shrink(rows.maximum[r], scale, base[r]);
        rows.maximum[r] = maximum;
        rows.sum[r] *= shrink[r];
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            s[i][j] = exp2_fast(fmaf(s[i][j], scale, -base[j / 2]));
            rows.sum[j / 2] += s[i][j];
        }
    }
}

/* Weights of 16 positions as the first operand of their product with the values. */
template <typename T, int TILES>
__device__ __forceinline__ void weights_pack(const float (&s)[TILES][4], int sixteenth,
                                             uint32_t (&a)[4])
{
    a[0] = pack_pair(T(), s[2 * sixteenth][0], s[2 * sixteenth][1]);
    a[1] = pack_pair(T(), s[2 * sixteenth][2], s[2 * sixteenth][3]);
    a[2] = pack_pair(T(), s[2 * sixteenth + 1][0], s[2 * sixteenth + 1][1]);
    a[3] = pack_pair(T(), s[2 * sixteenth + 1][2], s[2 * sixteenth + 1][3]);
}

/* d (16, 8) += a (16, 16) b (16, 8) */
__device__ __forceinline__ void mma_16816(__nv_bfloat16, float (&d)[4], const uint32_t (&a)[4],
                                          uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_16816(__half, float (&d)[4], const uint32_t (&a)[4],
                                          uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
