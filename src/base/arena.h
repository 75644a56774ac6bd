/* A bump allocator for objects with the same lifetime: names, tables, views.
 *
 * Blocks are chained; memory is zeroed and freed all at once. Tensors use buffer.h.
 */
#pragma once

#include <stddef.h>

typedef struct arena_block arena_block;

/* Zero-initialise to get an empty arena. */
typedef struct arena {
    arena_block *blocks;
    size_t used;  /* bytes used of the newest block */
    size_t total; /* bytes taken from the system */
} arena;

/* `count` zeroed objects of `size` bytes each, aligned for any type; NULL when memory is out or the
 * product overflows. A count of 0 gives a valid pointer. */
void *arena_alloc(arena *arena, size_t count, size_t size);

/* A NUL-terminated copy of `length` bytes; NULL when memory is out. */
char *arena_strndup(arena *arena, const char *text, size_t length);
char *arena_strdup(arena *arena, const char *text);

void arena_free(arena *arena);
