/* A bump allocator: see arena.h. */
#include "base/arena.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 * 1024, ALIGNMENT = 16 };

struct arena_block {
    arena_block *next;
    size_t capacity;
    _Alignas(ALIGNMENT) unsigned char data[];
};

void *arena_alloc(arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (!checked_mul(count, size, &bytes) || bytes > SIZE_MAX / 2) return NULL;
    bytes = round_up(bytes ? bytes : 1, ALIGNMENT);
    if (!arena->blocks || arena->blocks->capacity - arena->used < bytes) {
        size_t capacity = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        arena_block *block = calloc(1, sizeof *block + capacity);
        if (!block) return NULL;
        block->next = arena->blocks;
        block->capacity = capacity;
        arena->blocks = block;
        arena->used = 0;
        arena->total += capacity;
    }
    void *memory = arena->blocks->data + arena->used;
    arena->used += bytes;
    return memory;
}

char *arena_strndup(arena *arena, const char *text, size_t length)
{
    if (length == SIZE_MAX) return NULL;
    char *copy = arena_alloc(arena, length + 1, 1);
    if (copy) memcpy(copy, text, length);
    return copy;
}

char *arena_strdup(arena *arena, const char *text)
{
    return arena_strndup(arena, text, strlen(text));
}

void arena_free(arena *arena)
{
    for (arena_block *block = arena->blocks; block;) {
        arena_block *next = block->next;
        free(block);
        block = next;
    }
    memset(arena, 0, sizeof *arena);
}
