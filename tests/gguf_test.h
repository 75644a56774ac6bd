/* What the suites of GGUF files share: a file with a key and a tensor of every type, a reader of
 * all that a file offers, and files that are opened from memory of exactly their size.
 */
#pragma once

#include "folder_test.h"

#include "file/gguf.h"
#include "file/gguf_write.h"

static const int64_t small_shape[] = {2, 3, 256};

/* A small file with a key of every type and a tensor of every type. */
static inline void write_everything(const char *path)
{
    qp_error error = {0};
    gguf_writer *w = NULL;
    assert_ok(gguf_writer_create(path, 64, &w, &error));
    gguf_put_string(w, "general.architecture", slice_of("llama"));
    gguf_put_scalar(w, "n.u8", GGUF_U8, &(uint8_t){200});
    gguf_put_scalar(w, "n.i8", GGUF_I8, &(int8_t){-100});
    gguf_put_u16(w, "n.u16", 60000);
    gguf_put_scalar(w, "n.i16", GGUF_I16, &(int16_t){-30000});
    gguf_put_u32(w, "n.u32", 4000000000u);
    gguf_put_i32(w, "n.i32", -2000000000);
    gguf_put_u64(w, "n.u64", UINT64_MAX);
    gguf_put_scalar(w, "n.i64", GGUF_I64, &(int64_t){INT64_MIN});
    gguf_put_f32(w, "n.f32", 1e-5f);
    gguf_put_scalar(w, "n.f64", GGUF_F64, &(double){0.1});
    gguf_put_bool(w, "b.true", true);
    gguf_put_scalar(w, "b.bad", GGUF_BOOL, &(uint8_t){2});
    gguf_put_strings(w, "a.strings", (text_slice[]){slice_of("x"), slice_of(""), {"\0\xff", 2}}, 3);
    gguf_put_strings(w, "a.empty", NULL, 0);
    gguf_put_array(w, "a.i16", GGUF_I16, (int16_t[]){-1, 2, -3}, 3);
    gguf_put_array(w, "a.f32", GGUF_F32, (float[]){0.5f, -0.25f}, 2);
    gguf_put_array(w, "a.bool", GGUF_BOOL, (uint8_t[]){1, 0, 1}, 3);
    gguf_put_array(w, "a.u64", GGUF_U64, (uint64_t[]){1, UINT64_MAX}, 2);
    size_t largest = 0;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        if (dtype_gguf_id((dtype)t) < 0) continue;
        gguf_put_tensor(w, slice_of(dtype_name((dtype)t)), (dtype)t, 3, small_shape);
        size_t bytes = 6 * dtype_row_bytes((dtype)t, 256);
        if (bytes > largest) largest = bytes;
    }
    assert_ok(gguf_writer_begin(w, &error));
    uint8_t *bytes = malloc(largest);
    for (int t = 0; t < DTYPE_COUNT; t++) {
        if (dtype_gguf_id((dtype)t) < 0) continue;
        size_t size = 6 * dtype_row_bytes((dtype)t, 256);
        memset(bytes, t + 1, size);
        assert_ok(gguf_writer_data(w, bytes, 1, &error));
        assert_ok(gguf_writer_data(w, bytes, size - 1, &error));
    }
    free(bytes);
    assert_int_equal(gguf_writer_data(w, "x", 1, &error), QP_INVALID);
    assert_ok(gguf_writer_finish(w, &error));
    gguf_writer_destroy(w);
}

/* Uses everything that an opened file offers. */
static inline void read_everything(gguf *file)
{
    qp_error error = {0};
    char text[128];
    uint64_t sum = 0;
    for (size_t i = 0; i < gguf_key_count(file); i++) {
        const gguf_value *value = gguf_key_at(file, i);
        gguf_value_describe(value, text, sizeof text);
        char key[256];
        snprintf(key, sizeof key, "%.*s", (int)value->key.length, value->key.data);
        const text_slice *strings = NULL;
        size_t count = 0;
        if (gguf_get_strings(file, key, &strings, &count, &error) == QP_OK && strings) {
            for (size_t s = 0; s < count; s++)
                sum +=
                    strings[s].length ? (unsigned char)strings[s].data[strings[s].length - 1] : 0;
        }
        int64_t *whole = NULL;
        double *numbers = NULL;
        if (gguf_get_i64_array(file, key, &whole, &count, &error) == QP_OK) free(whole);
        if (gguf_get_double_array(file, key, &numbers, &count, &error) == QP_OK) free(numbers);
    }
    for (size_t i = 0; i < gguf_tensor_count(file); i++) {
        const stored_tensor *stored = gguf_tensor_at(file, i);
        stored_tensor_describe(stored, text, sizeof text);
        if (stored->bytes) sum += ((const uint8_t *)stored->data)[stored->bytes - 1];
    }
    assert_true(sum < UINT64_MAX);
}

/* Opens the bytes from an allocation of exactly their size, so that AddressSanitizer sees every
 * step outside. */
static inline qp_status open_bytes(const void *bytes, size_t size, gguf **out, qp_error *error)
{
    static void *copy;
    free(copy);
    copy = size ? malloc(size) : NULL;
    if (size == 0 && !bytes) return QP_OK;
    if (size) memcpy(copy, bytes, size);
    return gguf_open_memory(copy, size, "x.gguf", out, error);
}

static inline void release_bytes(void)
{
    open_bytes(NULL, 0, NULL, NULL);
}
