/* GGUF files from memory: whatever opens is read to the last byte. */
#include "file/gguf.h"

#include <stdlib.h>
#include <string.h>

static uint64_t sum;

static void read_bytes(const void *data, uint64_t bytes)
{
    const uint8_t *p = data;
    for (uint64_t i = 0; i < bytes; i++)
        sum += p[i];
}

static void read_key(gguf *file, const gguf_value *value)
{
    char text[256];
    gguf_value_describe(value, text, sizeof text);
    char *key = strndup(value->key.data, value->key.length);
    if (!key) abort();
    qp_error error;
    int64_t whole = 0, *wholes = NULL;
    double number = 0, *numbers = NULL;
    bool flag = false;
    text_slice string = {0};
    const text_slice *strings = NULL;
    size_t count = 0;
    gguf_get_i64(file, key, &whole, &error);
    gguf_get_double(file, key, &number, &error);
    gguf_get_bool(file, key, &flag, &error);
    gguf_get_string(file, key, &string, &error);
    read_bytes(string.data, string.length);
    gguf_get_i64_array(file, key, &wholes, &count, &error);
    gguf_get_double_array(file, key, &numbers, &count, &error);
    if (gguf_get_strings(file, key, &strings, &count, &error) == QP_OK && strings) {
        for (size_t i = 0; i < count; i++)
            read_bytes(strings[i].data, strings[i].length);
    }
    free(wholes);
    free(numbers);
    free(key);
}

static void read_tensor(const gguf *file, const stored_tensor *stored)
{
    char text[256];
    stored_tensor_describe(stored, text, sizeof text);
    read_bytes(stored->data, stored->bytes);
    char *name = strndup(stored->name.data, stored->name.length);
    if (!name) abort();
    tensor view = {0};
    qp_error error;
    if (gguf_get_tensor(file, name, &view, &error) == QP_OK && view.data)
        read_bytes(view.data, tensor_bytes(&view));
    free(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    gguf *file = NULL;
    qp_error error = {0};
    if (gguf_open_memory(data, size, "fuzz.gguf", &file, &error) != QP_OK) {
        if (error.status == QP_OK || !strstr(error.message, "fuzz.gguf")) abort();
        return 0;
    }
    for (size_t i = 0; i < gguf_key_count(file); i++)
        read_key(file, gguf_key_at(file, i));
    for (size_t i = 0; i < gguf_tensor_count(file); i++)
        read_tensor(file, gguf_tensor_at(file, i));
    gguf_close(file);
    return 0;
}
