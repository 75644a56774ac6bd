/* Transposes squares of 4 by 4 words, which is what packing mostly does. The compiler's vectors are
 * in every x86-64 and ARM processor, so this needs no variant. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint32_t transpose_words __attribute__((vector_size(16)));

/* out[column * pitch + row] = word `column` of rows[row], for four of each. Rows need no alignment.
 */
static inline void transpose_square(const char *const *rows, size_t offset, uint32_t *out,
                                    size_t pitch)
{
    transpose_words r[4], low, high, low2, high2;
    for (int i = 0; i < 4; i++)
        memcpy(&r[i], rows[i] + offset, sizeof r[i]);
    low = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    high = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    low2 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    high2 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(low, low2, 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(low, low2, 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(high, high2, 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(high, high2, 2, 3, 6, 7);
    for (size_t i = 0; i < 4; i++)
        memcpy(out + i * pitch, &r[i], sizeof r[i]);
}
