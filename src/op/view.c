/* Walking a view of any rank: see view.h. */
#include "op/view.h"

#include <stdio.h>

int64_t view_rows(const tensor *view)
{
    int64_t rows = 1;
    for (int d = 0; d < view->rank - 1; d++)
        rows *= view->shape[d];
    return view->shape[view->rank - 1] ? rows : 0;
}

void *view_row(const tensor *view, int64_t row)
{
    char *data = view->data;
    for (int d = view->rank - 2; d >= 0; d--) {
        data += row % view->shape[d] * view->stride[d];
        row /= view->shape[d];
    }
    return data;
}

const char *view_index(const tensor *view, int64_t row, int64_t i, char *text, size_t size)
{
    int64_t index[TENSOR_MAX_RANK] = {0};
    index[view->rank - 1] = i;
    for (int d = view->rank - 2; d >= 0; d--) {
        index[d] = row % view->shape[d];
        row /= view->shape[d];
    }
    int used = snprintf(text, size, "[");
    for (int d = 0; d < view->rank && used >= 0 && (size_t)used < size; d++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", d ? ", " : "",
                         (long long)index[d]);
    if (used >= 0 && (size_t)used < size) snprintf(text + used, size - (size_t)used, "]");
    return text;
}
