/* Tensors as files list them: see stored_tensor.h. */
#include "file/stored_tensor.h"

#include <stdio.h>

const char *stored_tensor_describe(const stored_tensor *stored, char *text, size_t size)
{
    int used = snprintf(text, size, "%s [", stored->type_name);
    for (int d = 0; d < stored->rank && used >= 0 && (size_t)used < size; d++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", d ? ", " : "",
                         (long long)stored->shape[d]);
    if (used >= 0 && (size_t)used < size) snprintf(text + used, size - (size_t)used, "]");
    return text;
}
