/* Views of values in memory: see tensor.h. */
#include "tensor/tensor.h"

#include <assert.h>
#include <stdio.h>

tensor tensor_make(void *data, dtype type, int rank, const int64_t *shape)
{
    assert(rank >= 1 && rank <= TENSOR_MAX_RANK);
    tensor view = {.data = data, .type = type, .rank = rank};
    int64_t stride = (int64_t)dtype_row_bytes(type, shape[rank - 1]);
    for (int d = rank - 1; d >= 0; d--) {
        view.shape[d] = shape[d];
        view.stride[d] = d == rank - 1 ? (int64_t)dtype_block_bytes(type) : stride;
        if (d < rank - 1) stride *= shape[d];
    }
    return view;
}

tensor tensor_slice(tensor view, int dim, int64_t begin, int64_t count)
{
    assert(dim >= 0 && dim < view.rank && begin >= 0 && begin + count <= view.shape[dim]);
    int64_t block = dim == view.rank - 1 ? dtype_block_elements(view.type) : 1;
    assert(begin % block == 0 && count % block == 0);
    if (view.data) view.data = (char *)view.data + begin / block * view.stride[dim];
    view.shape[dim] = count;
    return view;
}

tensor tensor_split(tensor view, int dim, int64_t outer)
{
    assert(view.rank < TENSOR_MAX_RANK && outer > 0 && view.shape[dim] % outer == 0);
    int64_t inner = view.shape[dim] / outer;
    int64_t block = dim == view.rank - 1 ? dtype_block_elements(view.type) : 1;
    assert(inner % block == 0);
    for (int d = view.rank; d > dim; d--) {
        view.shape[d] = view.shape[d - 1];
        view.stride[d] = view.stride[d - 1];
    }
    view.rank++;
    view.shape[dim] = outer;
    view.shape[dim + 1] = inner;
    view.stride[dim] = inner / block * view.stride[dim + 1];
    return view;
}

int64_t tensor_elements(const tensor *view)
{
    int64_t n = 1;
    for (int d = 0; d < view->rank; d++)
        n *= view->shape[d];
    return n;
}

size_t tensor_bytes(const tensor *view)
{
    int64_t block = dtype_block_elements(view->type);
    return (size_t)(tensor_elements(view) / block) * dtype_block_bytes(view->type);
}

bool tensor_is_contiguous(const tensor *view)
{
    int64_t stride = (int64_t)dtype_row_bytes(view->type, view->shape[view->rank - 1]);
    for (int d = view->rank - 2; d >= 0; d--) {
        if (view->shape[d] > 1 && view->stride[d] != stride) return false;
        stride *= view->shape[d];
    }
    return true;
}

const char *tensor_describe(const tensor *view, char *text, size_t size)
{
    int used = snprintf(text, size, "%s [", dtype_name(view->type));
    for (int d = 0; d < view->rank && used >= 0 && (size_t)used < size; d++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", d ? ", " : "",
                         (long long)view->shape[d]);
    if (used >= 0 && (size_t)used < size) snprintf(text + used, size - (size_t)used, "]");
    return text;
}
