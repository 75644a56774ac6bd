/* Masks on the GPU: see mask.h. */
#pragma once

#include <stdint.h>

/* Words of the masks of the sequences before b; `last_page_len` NULL: kv_indptr counts positions.
 * All lanes of a warp call it. */
__device__ static __forceinline__ int64_t mask_words_before(const int32_t *qo_indptr,
                                                            const int32_t *kv_indptr,
                                                            const int32_t *last_page_len,
                                                            int page_size, int b)
{
    int64_t words = 0;
    for (int i = (int)threadIdx.x % 32; i < b; i += 32) {
        int64_t count = kv_indptr[i + 1] - kv_indptr[i], length = count;
        if (last_page_len) length = count > 0 ? (count - 1) * page_size + last_page_len[i] : 0;
        words += ((qo_indptr[i + 1] - qo_indptr[i]) * length + 31) / 32;
    }
    for (int step = 16; step > 0; step /= 2)
        words += __shfl_xor_sync(0xffffffffu, words, step);
    return words;
}

/* 64 bits from number `bit` on; those after the last word are arbitrary. */
__device__ static __forceinline__ uint64_t mask_bits(const uint32_t *mask, int64_t bit,
                                                     int64_t last_word)
{
    int64_t word = bit / 32;
    uint32_t low = __ldg(mask + word), middle = __ldg(mask + min(word + 1, last_word)),
             high = __ldg(mask + min(word + 2, last_word));
    uint32_t shift = (uint32_t)bit % 32;
    return (uint64_t)__funnelshift_r(middle, high, shift) << 32 |
           __funnelshift_r(low, middle, shift);
}
