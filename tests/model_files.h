/* Makes model directories for a test: a folder in /tmp with a config.json and an F32 safetensors
 * file with the tensors that a suite lists by name and shape.
 */
#pragma once

#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

/* A new folder; the caller removes it with folder_remove(). */
static inline void folder_make(char path[64])
{
    strcpy(path, "/tmp/quipu-test-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static inline void folder_write(const char *folder, const char *name, const void *data,
                                size_t bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void folder_write_text(const char *folder, const char *name, const char *text)
{
    folder_write(folder, name, text, strlen(text));
}

/* Removes the folder and the files that suites put there. */
static inline void folder_remove(const char *folder)
{
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "model.generation_config.json",
                                        "config.json.generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "model.gguf",
                                        "model.safetensors"};
    char path[256];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* A tensor of a file to write: F32, filled with `fill` + its element's number when step is 1. */
typedef struct file_tensor {
    char name[96];
    int rank;
    int64_t shape[2];
    float fill, step;
} file_tensor;

static inline size_t file_tensor_elements(const file_tensor *t)
{
    return (size_t)(t->rank == 2 ? t->shape[0] * t->shape[1] : t->shape[0]);
}

static inline void folder_write_safetensors(const char *folder, const file_tensor *tensors,
                                            size_t count)
{
    size_t bytes = 0, room = 256 * (count + 1);
    char *header = calloc(1, room);
    size_t length = (size_t)snprintf(header, room, "{");
    for (size_t i = 0; i < count; i++) {
        size_t size = file_tensor_elements(&tensors[i]) * sizeof(float);
        length += (size_t)snprintf(header + length, room - length,
                                   "%s\"%s\":{\"dtype\":\"F32\","
                                   "\"shape\":[%lld",
                                   i ? "," : "", tensors[i].name, (long long)tensors[i].shape[0]);
        if (tensors[i].rank == 2)
            length += (size_t)snprintf(header + length, room - length, ",%lld",
                                       (long long)tensors[i].shape[1]);
        length += (size_t)snprintf(header + length, room - length, "],\"data_offsets\":[%zu,%zu]}",
                                   bytes, bytes + size);
        bytes += size;
    }
    header[length++] = '}';
    while (length % 8)
        header[length++] = ' ';
    char *data = malloc(8 + length + bytes), *to = data + 8 + length;
    uint64_t header_bytes = length;
    memcpy(data, &header_bytes, 8);
    memcpy(data + 8, header, length);
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < file_tensor_elements(&tensors[i]); k++, to += sizeof(float)) {
            float value = tensors[i].fill + tensors[i].step * (float)k;
            memcpy(to, &value, sizeof value);
        }
    }
    folder_write(folder, "model.safetensors", data, 8 + length + bytes);
    free(data);
    free(header);
}
