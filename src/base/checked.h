/* Arithmetic on sizes that come from files: every product and sum is checked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* *out = a * b; false on overflow. */
static inline bool checked_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* *out = a + b; false on overflow. */
static inline bool checked_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Whether [offset, offset + bytes) lies inside [0, total). */
static inline bool range_inside(uint64_t offset, uint64_t bytes, uint64_t total)
{
    return offset <= total && bytes <= total - offset;
}

/* x rounded up to a multiple of `to`, a power of two. */
static inline size_t round_up(size_t x, size_t to)
{
    return (x + to - 1) & ~(to - 1);
}
