/* Finds a name among many: entries sorted by name, and binary search.
 *
 * Sorted rather than hashed because the names come from files: no choice of names makes it slow,
 * and duplicates are neighbours.
 */
#pragma once

#include "file/slice.h"

typedef struct name_entry {
    text_slice name;
    size_t index; /* the caller's number for it */
} name_entry;

typedef struct name_index {
    name_entry *entries; /* [count], sorted by name and then by index */
    size_t count;
} name_index;

enum { NAME_ABSENT = -1 };

/* Sorts `entries`, which stays the caller's memory and must outlive the index. */
name_index name_index_build(name_entry *entries, size_t count);

/* The number of the first entry of that name, or NAME_ABSENT. */
ptrdiff_t name_index_find(const name_index *index, text_slice name);

/* A name that occurs twice, or NULL when all differ. */
const name_entry *name_index_duplicate(const name_index *index);
