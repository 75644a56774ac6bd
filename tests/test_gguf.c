/* GGUF files: what is written is read back, real files open, and every damage gives a message that
 * names the file, the key or tensor, expected and found. */
#include "test.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/strbuf.h"
#include "file/gguf.h"
#include "file/gguf_write.h"
#include "file/mapping.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/quipu-gguf-XXXXXX";

static const char *in_folder(const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int files_in_folder(void)
{
    int n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    if (dir) closedir(dir);
    return n;
}

static int clear_folder(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] != '.') unlink(in_folder(entry->d_name));
    }
    if (dir) closedir(dir);
    return 0;
}

static int remove_folder(void **state)
{
    clear_folder(state);
    return rmdir(folder);
}

/* --- Files written byte by byte, each of which breaks one rule --- */

static void u32(strbuf *out, uint32_t value)
{
    strbuf_append(out, &value, sizeof value);
}

static void u64(strbuf *out, uint64_t value)
{
    strbuf_append(out, &value, sizeof value);
}

static void string(strbuf *out, const char *text)
{
    u64(out, strlen(text));
    strbuf_puts(out, text);
}

static void header(strbuf *out, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    strbuf_clear(out);
    strbuf_append(out, "GGUF", 4);
    u32(out, version);
    u64(out, n_tensors);
    u64(out, n_keys);
}

static void tensor_info(strbuf *out, const char *name, uint32_t rank, uint64_t n0, uint64_t n1,
                        uint32_t type, uint64_t offset)
{
    string(out, name);
    u32(out, rank);
    for (uint32_t d = 0; d < rank; d++)
        u64(out, d == 0 ? n0 : d == 1 ? n1 : 1);
    u32(out, type);
    u64(out, offset);
}

static void data(strbuf *out, size_t bytes)
{
    while (out->length % 32)
        strbuf_putc(out, 0);
    while (bytes--)
        strbuf_putc(out, 0);
}

/* Opens the bytes from an allocation of exactly their size, so that AddressSanitizer sees every
 * step outside. */
static qp_status open_bytes(const void *bytes, size_t size, gguf **out, qp_error *error)
{
    static void *copy;
    free(copy);
    copy = size ? malloc(size) : NULL;
    if (size == 0 && !bytes) return QP_OK;
    if (size) memcpy(copy, bytes, size);
    return gguf_open_memory(copy, size, "x.gguf", out, error);
}

static void release_bytes(void)
{
    open_bytes(NULL, 0, NULL, NULL);
}

/* Refused with `status` and a message that holds each of the given parts (up to NULL). */
static void assert_refused(strbuf *bytes, qp_status status, const char *const *parts)
{
    gguf *file = NULL;
    qp_error error = {0};
    qp_status found = open_bytes(bytes->data, bytes->length, &file, &error);
    if (found == QP_OK) fail_msg("opened, though \"%s\" was expected", parts[0]);
    assert_null(file);
    if (!strstr(error.message, "x.gguf: ")) fail_msg("no file's name in: %s", error.message);
    for (; *parts; parts++) {
        if (!strstr(error.message, *parts)) fail_msg("no \"%s\" in: %s", *parts, error.message);
    }
    assert_int_equal(found, status);
    assert_int_equal(error.status, status);
    release_bytes();
}

#define REFUSED(bytes, status, ...)                                                                \
    assert_refused(bytes, status, (const char *const[]){__VA_ARGS__, NULL})

static void test_header_errors(void **state)
{
    (void)state;
    strbuf b = {0};
    strbuf_puts(&b, "GGU");
    REFUSED(&b, QP_FORMAT, "not a GGUF file", "\"GGUF\"");
    header(&b, 1, 0, 0);
    REFUSED(&b, QP_UNSUPPORTED, "expected GGUF version 2 or 3", "found 1");
    header(&b, 4, 0, 0);
    REFUSED(&b, QP_UNSUPPORTED, "found 4");
    header(&b, 0x03000000, 0, 0);
    REFUSED(&b, QP_UNSUPPORTED, "big-endian");
    header(&b, 3, UINT64_MAX, 0);
    REFUSED(&b, QP_FORMAT, "18446744073709551615 tensors", "24 bytes");
    header(&b, 3, 0, 1ull << 60);
    REFUSED(&b, QP_FORMAT, "1152921504606846976 keys");
    header(&b, 3, 10, 10);
    REFUSED(&b, QP_FORMAT, "10 keys and 10 tensors", "0 bytes");
    strbuf_free(&b);
}

static void test_key_errors(void **state)
{
    (void)state;
    strbuf b = {0};
    header(&b, 3, 0, 1);
    string(&b, "");
    u32(&b, GGUF_U32);
    u64(&b, 7);
    REFUSED(&b, QP_FORMAT, "key 0", "length must be 1 to 65535", "found 0");

    header(&b, 3, 0, 1);
    string(&b, "a.b");
    u32(&b, 13);
    u64(&b, 0);
    REFUSED(&b, QP_FORMAT, "key \"a.b\"", "from 0 to 12", "found 13");

    header(&b, 3, 0, 1);
    string(&b, "a.b");
    u32(&b, GGUF_STRING);
    u64(&b, 1000);
    REFUSED(&b, QP_FORMAT, "key \"a.b\"", "expected 1000 bytes", "found 0");

    header(&b, 3, 0, 1);
    string(&b, "a.b");
    u32(&b, GGUF_ARRAY);
    u32(&b, GGUF_ARRAY);
    u64(&b, 1);
    REFUSED(&b, QP_UNSUPPORTED, "key \"a.b\"", "arrays of arrays");

    static const gguf_type types[] = {GGUF_U64, GGUF_STRING, GGUF_U8};
    static const uint64_t counts[] = {2, UINT64_MAX, 1ull << 61};
    for (size_t i = 0; i < 9; i++) {
        header(&b, 3, 0, 1);
        string(&b, "a\n.b");
        u32(&b, GGUF_ARRAY);
        u32(&b, (uint32_t)types[i / 3]);
        u64(&b, counts[i % 3]);
        REFUSED(&b, QP_FORMAT, "key \"a\\x0a.b\"", "found 0");
    }

    header(&b, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        string(&b, "same.key");
        u32(&b, GGUF_U32);
        u32(&b, 1);
    }
    REFUSED(&b, QP_FORMAT, "key \"same.key\"", "occurs twice");

    static const uint32_t alignments[] = {0, 1, 4, 24, 33};
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        header(&b, 3, 0, 1);
        string(&b, "general.alignment");
        u32(&b, GGUF_U32);
        u32(&b, alignments[i]);
        REFUSED(&b, QP_FORMAT, "key \"general.alignment\"", "power of two", "found ");
    }
    header(&b, 3, 0, 1);
    string(&b, "general.alignment");
    u32(&b, GGUF_STRING);
    string(&b, "32");
    REFUSED(&b, QP_FORMAT, "key \"general.alignment\"", "an integer", "type string");

    header(&b, 3, 0, 1);
    string(&b, "split.count");
    u32(&b, GGUF_U32);
    u32(&b, 2);
    REFUSED(&b, QP_UNSUPPORTED, "\"split.count\" is 2", "from memory");
    strbuf_free(&b);
}

static void test_tensor_errors(void **state)
{
    (void)state;
    enum { F32 = 0, Q4_0 = 2 };
    strbuf b = {0};
    const struct {
        uint32_t rank;
        uint64_t n0, n1;
        uint32_t type;
        uint64_t offset;
        const char *parts[3];
    } cases[] = {
        {0, 0, 0, F32, 0, {"1 to 4 dimensions", "found 0"}},
        {5, 1, 1, F32, 0, {"1 to 4 dimensions", "found 5"}},
        {1, 0, 0, F32, 0, {"dimension 0 must be 1 or more", "found 0"}},
        {2, 1, 1ull << 63, F32, 0, {"dimension 1 must be 1 or more", "found -9223372036854775808"}},
        {2, 1ull << 40, 1ull << 40, F32, 0, {"product of its 2 dimensions", "64 bits"}},
        {2, 1ull << 31, 1ull << 31, F32, 0, {"does not fit in 64 bits"}},
        {2, 1ull << 31, 1ull << 30, F32, 0, {"expected 9223372036854775808 bytes"}},
        {1, 48, 1, Q4_0, 0, {"rows of Q4_0", "multiple of 32", "found 48"}},
        {1, 8, 1, F32, 16, {"offset must be a multiple of 32", "found 16"}},
        {1, 8, 1, F32, 64, {"expected 32 bytes at offset 64", "found 64 bytes of data"}},
        {1, 17, 1, F32, 0, {"expected 68 bytes at offset 0", "found 64 bytes"}},
        {1, 8, 1, F32, ~31ull, {"expected 32 bytes at offset 18446744073709551584"}},
        {1, 8, 1, 999, 96, {"offset 96", "found 64 bytes"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        header(&b, 3, 1, 0);
        tensor_info(&b, "t.weight", cases[i].rank, cases[i].n0, cases[i].n1, cases[i].type,
                    cases[i].offset);
        data(&b, 64);
        REFUSED(&b, QP_FORMAT, "tensor \"t.weight\"", cases[i].parts[0], cases[i].parts[1]);
    }
    header(&b, 3, 2, 0);
    tensor_info(&b, "a", 1, 16, 1, F32, 0);
    tensor_info(&b, "b", 1, 8, 1, F32, 32);
    data(&b, 64);
    REFUSED(&b, QP_FORMAT, "tensor \"b\" overlaps tensor \"a\"");

    header(&b, 3, 2, 0);
    tensor_info(&b, "a", 1, 8, 1, F32, 0);
    tensor_info(&b, "a", 1, 8, 1, F32, 32);
    data(&b, 64);
    REFUSED(&b, QP_FORMAT, "tensor \"a\" occurs twice");

    char name[300];
    memset(name, 'n', sizeof name);
    name[256] = '\0';
    header(&b, 3, 1, 0);
    tensor_info(&b, name, 1, 8, 1, F32, 0);
    data(&b, 64);
    REFUSED(&b, QP_FORMAT, "tensor 0", "length must be 1 to 255", "found 256");
    strbuf_free(&b);
}

static void test_unsupported_type(void **state)
{
    (void)state;
    strbuf b = {0};
    qp_error error = {0};
    gguf *file = NULL;
    header(&b, 2, 2, 0);
    tensor_info(&b, "a", 1, 256, 1, 17, 0);
    tensor_info(&b, "b", 1, 8, 1, 0, 32);
    data(&b, 64);
    assert_ok(open_bytes(b.data, b.length, &file, &error));
    const stored_tensor *stored = gguf_find_tensor(file, "a");
    assert_non_null(stored);
    assert_int_equal(stored->type, DTYPE_COUNT);
    assert_int_equal(stored->type_id, 17);
    char text[64];
    assert_string_equal(stored_tensor_describe(stored, text, sizeof text), "IQ2_XS [256]");
    tensor view = {0};
    assert_int_equal(gguf_get_tensor(file, "a", &view, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "x.gguf: tensor \"a\" has type IQ2_XS (number 17"));
    assert_ok(gguf_get_tensor(file, "b", &view, &error));
    assert_int_equal(view.shape[0], 8);
    assert_ok(gguf_get_tensor(file, "absent", &view, &error));
    assert_int_equal(view.shape[0], 8);
    gguf_close(file);
    release_bytes();
    strbuf_free(&b);
}

/* --- What the writer writes is read back --- */

static const int64_t small_shape[] = {2, 3, 256};

/* A small file with a key of every type and a tensor of every type. */
static void write_everything(const char *path)
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

static void check_numbers(gguf *file)
{
    static const struct {
        const char *key;
        int64_t value;
    } expected[] = {
        {"n.u8", 200},         {"n.i8", -100},         {"n.u16", 60000},     {"n.i16", -30000},
        {"n.u32", 4000000000}, {"n.i32", -2000000000}, {"n.i64", INT64_MIN}, {"absent", 77},
    };
    qp_error error = {0};
    double number = 0;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        int64_t value = 77;
        assert_ok(gguf_get_i64(file, expected[i].key, &value, &error));
        assert_int_equal(value, expected[i].value);
        number = 77;
        assert_ok(gguf_get_double(file, expected[i].key, &number, &error));
        assert_true(number == (double)expected[i].value);
    }
    assert_ok(gguf_get_double(file, "n.f32", &number, &error));
    assert_true(number == (double)1e-5f);
    assert_ok(gguf_get_double(file, "n.f64", &number, &error));
    assert_true(number == 0.1);
    assert_ok(gguf_get_double(file, "n.u64", &number, &error));
    assert_true(number == 0x1p64);
    int64_t value = 5;
    assert_int_equal(gguf_get_i64(file, "n.u64", &value, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "key \"n.u64\" must be at most 9223372036854775807, "
                                          "found 18446744073709551615"));
    assert_int_equal(gguf_get_i64(file, "n.f32", &value, &error), QP_FORMAT);
    assert_non_null(
        strstr(error.message, "\"n.f32\" must be an integer, found a value of type f32"));
    assert_int_equal(gguf_get_i64(file, "a.i16", &value, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "found an array of i16"));
    assert_int_equal(gguf_get_double(file, "b.true", &number, &error), QP_FORMAT);
    assert_int_equal(value, 5);
}

static void check_arrays(gguf *file)
{
    qp_error error = {0};
    const text_slice *strings = NULL, *again = NULL;
    size_t count = 0;
    assert_ok(gguf_get_strings(file, "a.strings", &strings, &count, &error));
    assert_int_equal(count, 3);
    assert_true(slice_is(strings[0], "x"));
    assert_int_equal(strings[1].length, 0);
    assert_true(slice_equals(strings[2], (text_slice){"\0\xff", 2}));
    assert_ok(gguf_get_strings(file, "a.strings", &again, &count, &error));
    assert_ptr_equal(strings, again);
    assert_ok(gguf_get_strings(file, "a.empty", &strings, &count, &error));
    assert_int_equal(count, 0);
    assert_int_equal(gguf_get_strings(file, "a.i16", &strings, &count, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "\"a.i16\" must be an array of strings"));

    int64_t *whole = NULL;
    double *numbers = NULL;
    assert_ok(gguf_get_i64_array(file, "a.i16", &whole, &count, &error));
    assert_int_equal(count, 3);
    assert_int_equal(whole[2], -3);
    free(whole);
    assert_ok(gguf_get_i64_array(file, "a.bool", &whole, &count, &error));
    assert_int_equal(whole[0] + whole[1] + whole[2], 2);
    free(whole);
    assert_int_equal(gguf_get_i64_array(file, "a.u64", &whole, &count, &error), QP_FORMAT);
    assert_int_equal(gguf_get_i64_array(file, "a.f32", &whole, &count, &error), QP_FORMAT);
    assert_ok(gguf_get_double_array(file, "a.f32", &numbers, &count, &error));
    assert_int_equal(count, 2);
    assert_true(numbers[0] == 0.5 && numbers[1] == -0.25);
    free(numbers);
    assert_ok(gguf_get_double_array(file, "a.u64", &numbers, &count, &error));
    assert_true(numbers[1] == 0x1p64);
    free(numbers);
    assert_int_equal(gguf_get_double_array(file, "a.strings", &numbers, &count, &error), QP_FORMAT);
    numbers = NULL;
    assert_ok(gguf_get_double_array(file, "absent", &numbers, &count, &error));
    assert_null(numbers);
}

static void check_tensors(gguf *file)
{
    qp_error error = {0};
    for (int t = 0; t < DTYPE_COUNT; t++) {
        if (dtype_gguf_id((dtype)t) < 0) continue;
        tensor view = {0};
        assert_ok(gguf_get_tensor(file, dtype_name((dtype)t), &view, &error));
        assert_int_equal(view.type, t);
        assert_int_equal(view.rank, 3);
        assert_memory_equal(view.shape, small_shape, sizeof small_shape);
        assert_int_equal((uintptr_t)view.data % 64, 0);
        const uint8_t *bytes = view.data;
        for (size_t i = 0; i < tensor_bytes(&view); i++)
            assert_int_equal(bytes[i], t + 1);
        const stored_tensor *stored = gguf_find_tensor(file, dtype_name((dtype)t));
        assert_int_equal(stored->bytes, tensor_bytes(&view));
        assert_int_equal(stored->offset % 64, 0);
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    qp_error error = {0};
    gguf *file = NULL;
    write_everything(in_folder("all.gguf"));
    assert_int_equal(files_in_folder(), 1);
    assert_ok(gguf_open(in_folder("all.gguf"), &file, &error));
    assert_string_equal(gguf_path(file), in_folder("all.gguf"));
    check_numbers(file);
    check_arrays(file);
    check_tensors(file);
    bool flag = false;
    assert_ok(gguf_get_bool(file, "b.true", &flag, &error));
    assert_true(flag);
    assert_int_equal(gguf_get_bool(file, "b.bad", &flag, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "\"b.bad\" must be 0 or 1, found 2"));
    assert_int_equal(gguf_get_bool(file, "n.u8", &flag, &error), QP_FORMAT);
    text_slice text = {0};
    assert_ok(gguf_get_string(file, "general.architecture", &text, &error));
    assert_true(slice_is(text, "llama"));
    assert_int_equal(gguf_get_string(file, "n.u8", &text, &error), QP_FORMAT);
    gguf_close(file);
}

static void test_describe(void **state)
{
    (void)state;
    static const struct {
        const char *key, *text;
    } expected[] = {
        {"general.architecture", "\"llama\""},
        {"n.i8", "-100"},
        {"n.u64", "18446744073709551615"},
        {"n.f32", "1e-05"},
        {"n.f64", "0.1"},
        {"b.true", "true"},
        {"a.strings", "3 x string: \"x\" \"\" \"\\x00\\xff\""},
        {"a.i16", "3 x i16: -1 2 -3"},
    };
    qp_error error = {0};
    gguf *file = NULL;
    write_everything(in_folder("all.gguf"));
    assert_ok(gguf_open(in_folder("all.gguf"), &file, &error));
    char text[128];
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const gguf_value *value = gguf_find(file, expected[i].key);
        assert_non_null(value);
        assert_string_equal(gguf_value_describe(value, text, sizeof text), expected[i].text);
    }
    for (size_t i = 0; i < gguf_key_count(file); i++) { /* no size is too small */
        for (size_t size = 1; size < sizeof text; size++) {
            gguf_value_describe(gguf_key_at(file, i), text, size);
            assert_true(strlen(text) < size);
        }
    }
    gguf_close(file);
}

/* Copying every key and tensor of a file gives the same file. */
static void test_copy(void **state)
{
    (void)state;
    qp_error error = {0};
    gguf *file = NULL;
    gguf_writer *w = NULL;
    write_everything(in_folder("all.gguf"));
    assert_ok(gguf_open(in_folder("all.gguf"), &file, &error));
    assert_ok(gguf_writer_create(in_folder("copy.gguf"), 64, &w, &error));
    for (size_t i = 1; i < gguf_key_count(file); i++) /* the first is the alignment */
        gguf_put_value(w, gguf_key_at(file, i));
    for (size_t i = 0; i < gguf_tensor_count(file); i++) {
        const stored_tensor *t = gguf_tensor_at(file, i);
        gguf_put_tensor(w, t->name, t->type, t->rank, t->shape);
    }
    assert_ok(gguf_writer_begin(w, &error));
    for (size_t i = 0; i < gguf_tensor_count(file); i++) {
        const stored_tensor *t = gguf_tensor_at(file, i);
        assert_ok(gguf_writer_data(w, t->data, (size_t)t->bytes, &error));
    }
    assert_ok(gguf_writer_finish(w, &error));
    gguf_writer_destroy(w);
    gguf_close(file);
    mapping a = {0}, b = {0};
    assert_ok(mapping_open(in_folder("all.gguf"), &a, &error));
    assert_ok(mapping_open(in_folder("copy.gguf"), &b, &error));
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
    mapping_close(&a);
    mapping_close(&b);
}

/* --- The writer's own failures --- */

static void test_writer_refuses(void **state)
{
    (void)state;
    qp_error error = {0};
    gguf_writer *w = NULL;
    const char *path = in_folder("never.gguf");
    assert_int_equal(gguf_writer_create(path, 24, &w, &error), QP_INVALID);
    assert_ok(gguf_writer_create(path, 0, &w, &error));
    gguf_put_u32(w, "k", 1);
    gguf_put_u32(w, "k", 2);
    assert_int_equal(gguf_writer_begin(w, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "\"k\": the name is given twice"));
    gguf_writer_destroy(w);

    assert_ok(gguf_writer_create(path, 0, &w, &error));
    gguf_put_tensor(w, slice_of(""), DTYPE_F32, 1, (int64_t[]){1});
    assert_int_equal(gguf_writer_begin(w, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "\"\": the name is empty or too long"));
    gguf_writer_destroy(w);

    assert_ok(gguf_writer_create(path, 0, &w, &error));
    gguf_put_tensor(w, slice_of("t"), DTYPE_Q4_0, 1, (int64_t[]){33});
    assert_int_equal(gguf_writer_begin(w, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "never.gguf: \"t\""));
    gguf_writer_destroy(w);

    assert_ok(gguf_writer_create(path, 0, &w, &error));
    gguf_put_tensor(w, slice_of("t"), DTYPE_F32, 1, (int64_t[]){4});
    assert_int_equal(gguf_writer_data(w, "0123", 4, &error), QP_INVALID);
    assert_ok(gguf_writer_begin(w, &error));
    assert_ok(gguf_writer_data(w, "0123", 4, &error));
    assert_int_equal(gguf_writer_data(w, "0123456789abcdef", 16, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "at most 12 more bytes"));
    assert_int_equal(gguf_writer_finish(w, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "expected 16 bytes, found 4"));
    assert_int_equal(files_in_folder(), 1);
    gguf_writer_destroy(w);
    assert_int_equal(files_in_folder(), 0);

    assert_ok(gguf_writer_create(in_folder("no/such/folder.gguf"), 0, &w, &error));
    assert_int_equal(gguf_writer_begin(w, &error), QP_IO);
    assert_non_null(strstr(error.message, "No such file or directory"));
    gguf_writer_destroy(w);
}

/* A disk that fills up: a limit on the size of files stands for it. An older file stays. */
static void test_disk_full(void **state)
{
    (void)state;
    qp_error error = {0};
    gguf_writer *w = NULL;
    FILE *older = fopen(in_folder("model.gguf"), "wb");
    fputs("older", older);
    fclose(older);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 1 << 16;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    static uint8_t bytes[1 << 20];
    assert_ok(gguf_writer_create(in_folder("model.gguf"), 0, &w, &error));
    gguf_put_tensor(w, slice_of("t"), DTYPE_F32, 1, (int64_t[]){1 << 18});
    assert_ok(gguf_writer_begin(w, &error));
    qp_status status = gguf_writer_data(w, bytes, sizeof bytes, &error);
    if (status == QP_OK) status = gguf_writer_finish(w, &error);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, QP_IO);
    assert_non_null(strstr(error.message, "model.gguf: cannot write: File too large"));
    assert_int_equal(gguf_writer_data(w, bytes, 1, &error), QP_INVALID);
    gguf_writer_destroy(w);
    assert_int_equal(files_in_folder(), 1);
    char *text = NULL;
    size_t length = 0;
    assert_ok(file_read_text(in_folder("model.gguf"), 100, &text, &length, &error));
    assert_string_equal(text, "older");
    free(text);
}

/* --- Mappings --- */

static void test_files(void **state)
{
    (void)state;
    qp_error error = {0};
    gguf *file = NULL;
    mapping map = {0};
    char *text = NULL;
    size_t length = 0;
    assert_int_equal(gguf_open(in_folder("absent.gguf"), &file, &error), QP_IO);
    assert_non_null(strstr(error.message, "absent.gguf: cannot open: No such file"));
    assert_int_equal(gguf_open(folder, &file, &error), QP_IO);
    assert_non_null(strstr(error.message, "found a directory"));
    fclose(fopen(in_folder("empty.gguf"), "wb"));
    assert_int_equal(gguf_open(in_folder("empty.gguf"), &file, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "empty.gguf: the file is empty"));
    assert_int_equal(mapping_open("/dev/null", &map, &error), QP_IO);
    assert_non_null(strstr(error.message, "regular file"));
    assert_ok(file_read_text(in_folder("empty.gguf"), 0, &text, &length, &error));
    assert_string_equal(text, "");
    free(text);
    FILE *six = fopen(in_folder("six"), "wb");
    fputs("sixsix", six);
    fclose(six);
    assert_int_equal(file_read_text(in_folder("six"), 5, &text, &length, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "expected at most 5 bytes, found 6"));
    assert_true(file_exists(in_folder("six")) && file_exists(folder));
    assert_false(file_exists(in_folder("seven")));
    assert_true(file_is_directory(folder) && !file_is_directory(in_folder("six")));
    if (geteuid() != 0) {
        chmod(in_folder("six"), 0);
        assert_int_equal(mapping_open(in_folder("six"), &map, &error), QP_IO);
        assert_non_null(strstr(error.message, "Permission denied"));
    }
}

/* --- Split files --- */

static void write_part(const char *name, uint16_t number, uint16_t count, int total)
{
    qp_error error = {0};
    gguf_writer *w = NULL;
    assert_ok(gguf_writer_create(in_folder(name), 0, &w, &error));
    if (number == 0) gguf_put_string(w, "general.architecture", slice_of("llama"));
    gguf_put_u16(w, "split.no", number);
    gguf_put_u16(w, "split.count", count);
    gguf_put_i32(w, "split.tensors.count", total);
    char tensor_name[16];
    snprintf(tensor_name, sizeof tensor_name, "t%u", number);
    gguf_put_tensor(w, slice_of(tensor_name), DTYPE_F32, 1, (int64_t[]){2});
    assert_ok(gguf_writer_begin(w, &error));
    assert_ok(gguf_writer_data(w, (float[]){(float)number, 1}, 8, &error));
    assert_ok(gguf_writer_finish(w, &error));
    gguf_writer_destroy(w);
}

static void assert_split_fails(const char *name, const char *a, const char *b)
{
    qp_error error = {0};
    gguf *file = NULL;
    assert_int_not_equal(gguf_open(in_folder(name), &file, &error), QP_OK);
    if (!strstr(error.message, a) || !strstr(error.message, b))
        fail_msg("expected \"%s\" and \"%s\" in: %s", a, b, error.message);
}

static void test_split(void **state)
{
    (void)state;
    qp_error error = {0};
    gguf *file = NULL;
    const char *first = "m-00001-of-00003.gguf", *third = "m-00003-of-00003.gguf";
    write_part(first, 0, 3, 3);
    write_part("m-00002-of-00003.gguf", 1, 3, 3);
    assert_split_fails(first, "part 3 of 3", "m-00003-of-00003.gguf: cannot open");
    write_part(third, 2, 3, 3);
    assert_ok(gguf_open(in_folder(first), &file, &error));
    assert_int_equal(gguf_tensor_count(file), 3);
    for (int i = 0; i < 3; i++) {
        tensor view = {0};
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        assert_ok(gguf_get_tensor(file, name, &view, &error));
        assert_int_equal(*(float *)view.data, i);
        assert_int_equal(gguf_find_tensor(file, name)->part, i);
    }
    gguf_close(file);

    assert_split_fails(third, "this is part 3 of 3 of a split model: pass ", first);
    write_part(third, 2, 4, 3);
    assert_split_fails(first, third, "expected part 3 of 3 of a split model, found part 3 of 4");
    write_part(third, 1, 3, 3);
    assert_split_fails(first, "m-00003-of-00003.gguf", "found part 2 of 3");
    write_part(third, 2, 3, 3);
    write_part(first, 0, 3, 4);
    assert_split_fails(first, "\"split.tensors.count\" promises 4", "found 3");
    write_part("other.gguf", 0, 3, 3);
    assert_split_fails("other.gguf", "part 1 of 3", "must end in \"-00001-of-00003.gguf\"");
    write_part(first, 5, 3, 3);
    assert_split_fails(first, "\"split.no\" must be from 0 to 2", "found 5");
}

/* --- Damage: nothing crashes, nothing reads outside, damage to the structure is reported --- */

/* Uses everything that an opened file offers. */
static void read_everything(gguf *file)
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

/* A small file whose bytes are returned, to free(); *head is where its data begin. */
static uint8_t *small_file(size_t *size, size_t *head)
{
    qp_error error = {0};
    gguf *file = NULL;
    char *bytes = NULL;
    write_everything(in_folder("all.gguf"));
    assert_ok(gguf_open(in_folder("all.gguf"), &file, &error));
    *head = (size_t)gguf_tensor_at(file, 0)->offset;
    gguf_close(file);
    assert_ok(file_read_text(in_folder("all.gguf"), 1 << 20, &bytes, size, &error));
    return (uint8_t *)bytes;
}

static void test_truncation(void **state)
{
    (void)state;
    size_t size, head;
    uint8_t *bytes = small_file(&size, &head);
    for (size_t n = 0; n < size; n += n < head ? 1 : 997) {
        qp_error error = {0};
        gguf *file = NULL;
        qp_status status = n ? open_bytes(bytes, n, &file, &error) : QP_FORMAT;
        if (status == QP_OK) fail_msg("opened with %zu of %zu bytes", n, size);
        assert_true(n == 0 || strstr(error.message, "x.gguf: "));
    }
    release_bytes();
    free(bytes);
}

static void test_mutation(void **state)
{
    (void)state;
    enum { ROUNDS = 10000 };
    size_t size, head;
    int refused = 0;
    uint8_t *bytes = small_file(&size, &head);
    uint8_t *damaged = malloc(size);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        memcpy(damaged, bytes, size);
        uint64_t flips = 1 + hash_random(1, round, 0) % 4;
        for (uint64_t i = 1; i <= flips; i++) {
            uint64_t bits = hash_random(1, round, i);
            size_t at = (size_t)(bits % head);
            damaged[at] =
                bits >> 63 ? (uint8_t)(bits >> 32) : damaged[at] ^ (1u << (bits >> 40 & 7));
        }
        qp_error error = {0};
        gguf *file = NULL;
        if (open_bytes(damaged, size, &file, &error) == QP_OK) {
            read_everything(file);
            gguf_close(file);
        } else {
            refused++;
            assert_true(strstr(error.message, "x.gguf: ") && error.status != QP_OK);
        }
    }
    assert_true(refused > ROUNDS / 10);
    release_bytes();
    free(damaged);
    free(bytes);
}

/* --- Size --- */

static void test_large_vocabulary(void **state)
{
    (void)state;
    enum { COUNT = 250000 };
    qp_error error = {0};
    gguf_writer *w = NULL;
    gguf *file = NULL;
    text_slice *tokens = malloc(COUNT * sizeof *tokens);
    char(*text)[16] = malloc(COUNT * sizeof *text);
    for (int i = 0; i < COUNT; i++)
        tokens[i] = (text_slice){text[i], (size_t)snprintf(text[i], sizeof text[i], "token%d", i)};
    assert_ok(gguf_writer_create(in_folder("vocab.gguf"), 0, &w, &error));
    gguf_put_strings(w, "tokenizer.ggml.tokens", tokens, COUNT);
    assert_ok(gguf_writer_begin(w, &error));
    assert_ok(gguf_writer_finish(w, &error));
    gguf_writer_destroy(w);

    uint64_t start = clock_ns();
    assert_ok(gguf_open(in_folder("vocab.gguf"), &file, &error));
    const text_slice *found = NULL;
    size_t count = 0;
    assert_ok(gguf_get_strings(file, "tokenizer.ggml.tokens", &found, &count, &error));
    double ms = (double)(clock_ns() - start) * 1e-6;
    print_message("%d tokens opened and indexed in %.1f ms\n", COUNT, ms);
    assert_true(ms < 1000); /* generous: sanitizers, busy machines */
    assert_int_equal(count, COUNT);
    for (int i = 0; i < COUNT; i += 1000)
        assert_true(slice_equals(found[i], tokens[i]));
    gguf_close(file);
    free(text);
    free(tokens);
}

/* --- Real files --- */

static void test_stories(void **state)
{
    (void)state;
    const char *path = test_data("stories260K/stories260K-f32.gguf");
    require_data(path, "stories260K/stories260K-f32.gguf");
    qp_error error = {0};
    gguf *full = NULL, *half = NULL;
    assert_ok(gguf_open(path, &full, &error));
    assert_ok(gguf_open(test_data("stories260K/stories260K-f16.gguf"), &half, &error));
    int64_t layers = 0;
    assert_ok(gguf_get_i64(full, "llama.block_count", &layers, &error));
    assert_int_equal(layers, 5);
    text_slice architecture = {0};
    assert_ok(gguf_get_string(full, "general.architecture", &architecture, &error));
    assert_true(slice_is(architecture, "llama"));
    tensor embedding = {0}, up = {0}, absent = {0};
    assert_ok(gguf_get_tensor(full, "token_embd.weight", &embedding, &error));
    assert_int_equal(embedding.shape[0], 512);
    assert_int_equal(embedding.shape[1], 64);
    assert_ok(gguf_get_tensor(full, "blk.4.ffn_up.weight", &up, &error));
    assert_int_equal(up.shape[0], 172);
    assert_ok(gguf_get_tensor(full, "output.bias", &absent, &error));
    assert_null(absent.data);
    assert_int_equal(gguf_tensor_count(full), gguf_tensor_count(half));
    assert_ok(gguf_get_tensor(half, "blk.4.ffn_up.weight", &up, &error));
    assert_int_equal(up.type, DTYPE_F16);
    read_everything(full);
    gguf_close(full);
    gguf_close(half);
}

static void test_vocabularies(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t tokens;
    } files[] = {
        {"tokenizers/ggml-vocab-llama-spm.gguf", 32000},
        {"tokenizers/ggml-vocab-llama-bpe.gguf", 128256},
        {"tokenizers/vocab-smollm2.gguf", 49152},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = test_data(files[i].name);
        require_data(path, files[i].name);
        qp_error error = {0};
        gguf *file = NULL;
        const text_slice *tokens = NULL;
        size_t count = 0;
        assert_ok(gguf_open(path, &file, &error));
        assert_int_equal(gguf_tensor_count(file), 0);
        assert_ok(gguf_get_strings(file, "tokenizer.ggml.tokens", &tokens, &count, &error));
        assert_int_equal(count, files[i].tokens);
        read_everything(file);
        gguf_close(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header_errors),
        cmocka_unit_test(test_key_errors),
        cmocka_unit_test(test_tensor_errors),
        cmocka_unit_test(test_unsupported_type),
        cmocka_unit_test_teardown(test_round_trip, clear_folder),
        cmocka_unit_test_teardown(test_describe, clear_folder),
        cmocka_unit_test_teardown(test_copy, clear_folder),
        cmocka_unit_test_teardown(test_writer_refuses, clear_folder),
        cmocka_unit_test_teardown(test_disk_full, clear_folder),
        cmocka_unit_test_teardown(test_files, clear_folder),
        cmocka_unit_test_teardown(test_split, clear_folder),
        cmocka_unit_test_teardown(test_truncation, clear_folder),
        cmocka_unit_test_teardown(test_mutation, clear_folder),
        cmocka_unit_test_teardown(test_large_vocabulary, clear_folder),
        cmocka_unit_test(test_stories),
        cmocka_unit_test(test_vocabularies),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
