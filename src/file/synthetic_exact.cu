/* Synthetic weights made on the GPU, where they are needed: the same bits as synthetic_fill()'s. */
#include "file/synthetic_bits.h"

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
