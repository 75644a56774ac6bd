/* A sorted list of names with binary search: see name_index.h. */
#include "file/name_index.h"

#include <stdlib.h>

static int compare_entries(const void *left, const void *right)
{
    const name_entry *a = left, *b = right;
    int order = slice_compare(a->name, b->name);
    return order ? order : (a->index > b->index) - (a->index < b->index);
}

name_index name_index_build(name_entry *entries, size_t count)
{
    if (count > 1) qsort(entries, count, sizeof *entries, compare_entries);
    return (name_index){entries, count};
}

ptrdiff_t name_index_find(const name_index *index, text_slice name)
{
    size_t low = 0, high = index->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (slice_compare(index->entries[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == index->count || !slice_equals(index->entries[low].name, name)) return NAME_ABSENT;
    return (ptrdiff_t)index->entries[low].index;
}

const name_entry *name_index_duplicate(const name_index *index)
{
    for (size_t i = 1; i < index->count; i++) {
        if (slice_equals(index->entries[i - 1].name, index->entries[i].name))
            return &index->entries[i];
    }
    return NULL;
}
