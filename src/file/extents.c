/* Finds overlapping tensors in a file: sorts by offset and compares neighbours. */
#include "file/extents.h"

#include <stdlib.h>

static int compare_offsets(const void *left, const void *right)
{
    const stored_tensor *a = *(const stored_tensor *const *)left;
    const stored_tensor *b = *(const stored_tensor *const *)right;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes); /* empty ones first */
}

qp_status extents_check(const stored_tensor *tensors, size_t count, const char *path,
                        qp_error *error)
{
    if (count < 2) return QP_OK;
    const stored_tensor **sorted = calloc(count, sizeof *sorted);
    if (!sorted) return error_no_memory(error, "a list of tensors", count * sizeof *sorted);
    for (size_t i = 0; i < count; i++)
        sorted[i] = &tensors[i];
    qsort(sorted, count, sizeof *sorted, compare_offsets);
    qp_status status = QP_OK;
    for (size_t i = 1; i < count && status == QP_OK; i++) {
        const stored_tensor *a = sorted[i - 1], *b = sorted[i];
        if (b->offset - a->offset >= a->bytes) continue;
        char first[SLICE_QUOTE_SIZE], second[SLICE_QUOTE_SIZE];
        status =
            error_set(error, QP_FORMAT,
                      "%s: tensor \"%s\" overlaps tensor \"%s\": expected it at offset %llu "
                      "or later, found %llu",
                      path, slice_quote(b->name, second), slice_quote(a->name, first),
                      (unsigned long long)(a->offset + a->bytes), (unsigned long long)b->offset);
    }
    free(sorted);
    return status;
}
