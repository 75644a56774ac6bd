/* safetensors files from memory: whatever opens is read to the last byte. */
#include "file/safetensors.h"

#include <stdlib.h>
#include <string.h>

static uint64_t sum;

static void read_bytes(const void *data, uint64_t bytes)
{
    const uint8_t *p = data;
    for (uint64_t i = 0; i < bytes; i++)
        sum += p[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    safetensors *file = NULL;
    qp_error error = {0};
    if (safetensors_open_memory(data, size, "fuzz.safetensors", &file, &error) != QP_OK) {
        if (error.status == QP_OK || !strstr(error.message, "fuzz.safetensors")) abort();
        return 0;
    }
    for (size_t i = 0; i < safetensors_tensor_count(file); i++) {
        const stored_tensor *stored = safetensors_tensor_at(file, i);
        char text[256];
        tensor view = {0};
        stored_tensor_describe(stored, text, sizeof text);
        read_bytes(stored->data, stored->bytes);
        if (safetensors_get_tensor(file, stored->name.data, &view, &error) == QP_OK)
            read_bytes(view.data, tensor_bytes(&view));
    }
    safetensors_close(file);
    return 0;
}
