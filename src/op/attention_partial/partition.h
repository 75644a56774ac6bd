/* The positions that a part of the KV cache covers: the same arithmetic on every machine. */
#pragma once

#include "op/portable.h"

#include <stdint.h>

enum { PARTITION_LEAST = 64 }; /* the fewest positions that are worth a part of their own */

/* Positions of each part except the last when `visible` positions are divided into `parts` parts:
 * whole pages. */
OP_FN int64_t partition_size(int64_t visible, int64_t parts, int64_t page_size)
{
    int64_t size = (visible + parts - 1) / parts;
    if (size < PARTITION_LEAST) size = PARTITION_LEAST;
    return (size + page_size - 1) / page_size * page_size;
}

/* Part `part` covers the positions [*begin, *end); equal where it is empty. */
OP_FN void partition_range(int64_t visible, int64_t parts, int64_t page_size, int64_t part,
                           int64_t *begin, int64_t *end)
{
    int64_t size = partition_size(visible, parts, page_size);
    *begin = part * size < visible ? part * size : visible;
    *end = *begin + size < visible ? *begin + size : visible;
}
