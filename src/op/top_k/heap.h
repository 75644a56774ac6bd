/* The k first entries of a block, in a heap: what top_k's reference and its variants share. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct entry {
    double value;
    int32_t id; /* -1: no entry */
} entry;

/* Whether a comes before b: larger values first, then lower ids; real entries before empty ones. */
static inline bool entry_before(entry a, entry b)
{
    if (a.value != b.value) return a.value > b.value;
    return (uint32_t)a.id < (uint32_t)b.id;
}

/* The heap's root is the last of the entries kept so far: sifts down what was put there. */
static inline void heap_sift(entry *heap, int64_t n, int64_t at)
{
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && entry_before(heap[child], heap[child + 1])) child++;
        if (!entry_before(heap[at], heap[child])) return;
        entry moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
        at = child;
    }
}

/* Turns the heap into a list, the first entry first. */
static inline void heap_order(entry *heap, int64_t k)
{
    for (int64_t n = k - 1; n > 0; n--) { /* the last goes to the end, again and again */
        entry last = heap[0];
        heap[0] = heap[n];
        heap[n] = last;
        heap_sift(heap, n, 0);
    }
}
