/* Synthetic weights made on the GPU, where they are needed: the same bits as synthetic_fill()'s. */
#include "file/synthetic_bits.h"
#include "tensor/codec_blocks.h"
#include "tensor/float8.h"

/* Elements [0, count) of a plain type, a word of the stream (two of them) a thread. */
extern "C" __global__ void synthetic_plain(synthetic_stream stream, dtype type, uint64_t count,
                                           void *out)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; 2 * i < count; i += step) {
        uint64_t word = synthetic_word(&stream, i);
        for (uint64_t half = 0; half < 2 && 2 * i + half < count; half++) {
            float value = synthetic_from_half(&stream, (uint32_t)(word >> 32 * half));
            if (type == DTYPE_F32)
                ((float *)out)[2 * i + half] = value;
            else
                ((uint16_t *)out)[2 * i + half] =
                    type == DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
        }
    }
}

/* Blocks [0, count) of a quantised type of block_bytes each, a block a thread. */
extern "C" __global__ void synthetic_blocks(synthetic_stream stream, dtype type, uint64_t count,
                                            uint32_t block_bytes, uint8_t *out)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        uint8_t block[SYNTHETIC_MAX_BLOCK];
        synthetic_block(&stream, type, i, block);
        for (uint32_t b = 0; b < block_bytes; b++)
            out[i * block_bytes + b] = block[b];
    }
}

/* Blocks [0, count) of F8_128, a block a warp: fill_f8() of synthetic.c. */
extern "C" __global__ void synthetic_f8(synthetic_stream stream, uint64_t count, uint64_t per_row,
                                        uint8_t *out)
{
    const uint64_t warps = (uint64_t)gridDim.x * blockDim.x / 32, lane = threadIdx.x % 32;
    for (uint64_t i = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < count;
         i += warps) {
        const float scale = synthetic_f8_scale(&stream, i / per_row), inverse = 1 / scale;
        uint32_t word = 0;
        for (uint64_t j = 0; j < 4; j++) {
            const float value = synthetic_value(&stream, i * BLOCK_128 + lane * 4 + j);
            word |= (uint32_t)f32_to_f8(value * inverse) << 8 * j;
        }
        uint32_t *block = (uint32_t *)(out + i * BLOCK_BYTES_F8_128);
        block[1 + lane] = word;
        if (lane == 0) block[0] = float_bits(scale);
    }
}

/* Elements of a plain type of a part of a matrix: row blockIdx.y of the part is the elements [at,
 * at + columns) of the tensor, at = first + blockIdx.y * pitch. A part's rows are contiguous in
 * `out`. */
extern "C" __global__ void synthetic_plain_part(synthetic_stream stream, dtype type, uint64_t first,
                                                uint64_t pitch, uint64_t columns, void *out)
{
    const uint64_t at = first + blockIdx.y * pitch, step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < columns; i += step) {
        const float value = synthetic_value(&stream, at + i);
        const uint64_t to = blockIdx.y * columns + i;
        if (type == DTYPE_F32)
            ((float *)out)[to] = value;
        else
            ((uint16_t *)out)[to] = type == DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
    }
}

/* The same in blocks of a quantised type: first, pitch and columns count blocks. */
extern "C" __global__ void synthetic_blocks_part(synthetic_stream stream, dtype type,
                                                 uint64_t first, uint64_t pitch, uint64_t columns,
                                                 uint32_t block_bytes, uint8_t *out)
{
    const uint64_t at = first + blockIdx.y * pitch, step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < columns; i += step) {
        uint8_t block[SYNTHETIC_MAX_BLOCK];
        synthetic_block(&stream, type, at + i, block);
        for (uint32_t b = 0; b < block_bytes; b++)
            out[(blockIdx.y * columns + i) * block_bytes + b] = block[b];
    }
}
