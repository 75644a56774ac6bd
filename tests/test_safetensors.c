/* safetensors files: real ones open, shards form one model, and every damage is detected. */
#include "folder_test.h"

#include "base/hash.h"
#include "base/strbuf.h"
#include "file/mapping.h"
#include "file/safetensors.h"

#include <sys/stat.h>

/* A file of this header and `n` bytes of data: 0, 1, 2, ... */
static void make_file(strbuf *out, const char *header, size_t n)
{
    uint64_t length = strlen(header);
    strbuf_clear(out);
    strbuf_append(out, &length, sizeof length);
    strbuf_puts(out, header);
    for (size_t i = 0; i < n; i++)
        strbuf_putc(out, (char)i);
}

/* Opens the bytes from an allocation of exactly their size. */
static qp_status open_bytes(const void *bytes, size_t size, safetensors **out, qp_error *error)
{
    static void *copy;
    free(copy);
    copy = NULL;
    if (!bytes) return QP_OK;
    copy = malloc(size ? size : 1);
    memcpy(copy, bytes, size);
    return safetensors_open_memory(copy, size, "x.safetensors", out, error);
}

static void release_bytes(void)
{
    open_bytes(NULL, 0, NULL, NULL);
}

static void assert_refused(const char *header, size_t n, const char *a, const char *b)
{
    strbuf bytes = {0};
    safetensors *file = NULL;
    qp_error error = {0};
    make_file(&bytes, header, n);
    qp_status status = open_bytes(bytes.data, bytes.length, &file, &error);
    if (status == QP_OK) fail_msg("opened: %s", header);
    if (status != QP_FORMAT || !strstr(error.message, "x.safetensors: ") ||
        !strstr(error.message, a) || !strstr(error.message, b))
        fail_msg("expected \"%s\" and \"%s\" in: %s", a, b, error.message);
    assert_null(file);
    release_bytes();
    strbuf_free(&bytes);
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t bytes;
        const char *a, *b;
    } cases[] = {
        {"[]", 0, "must be a JSON object", "an array"},
        {"{\"t\":", 0, "not valid JSON", "line 1"},
        {"{\"t\":5}", 0, "tensor \"t\"", "expected an object, found a number"},
        {"{\"t\":{}}", 0, "tensor \"t\"", "\"dtype\" must be a string, found nothing"},
        {"{\"t\":{\"dtype\":\"F32\"}}", 0, "tensor \"t\"", "\"shape\" must be an array"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "tensor \"t\"", "\"data_offsets\""},
        {"{\"t\":" T("F32", "[2]", "[0,8,9]") "}", 9, "tensor \"t\"", "two whole numbers"},
        {"{\"t\":" T("F32", "[2]", "[8,0]") "}", 9, "tensor \"t\"", "two whole numbers"},
        {"{\"t\":" T("F32", "[2]", "[-8,0]") "}", 9, "tensor \"t\"", "two whole numbers"},
        {"{\"t\":" T("F32", "[2]", "[0,8.5]") "}", 9, "tensor \"t\"", "two whole numbers"},
        {"{\"t\":" T("F32", "[2]", "[0,1e99]") "}", 9, "tensor \"t\"", "two whole numbers"},
        {"{\"t\":" T("F32", "[2]", "[0,8]") "}", 7, "ends at byte 8", "the file holds 7"},
        {"{\"t\":" T("F32", "[3]", "[0,8]") "}", 8, "3 elements of F32 take 12 bytes", "span 8"},
        {"{\"t\":" T("U8", "[3]", "[0,8]") "}", 8, "3 elements of U8 take 3 bytes", "span 8"},
        {"{\"t\":" T("F32", "[-1]", "[0,8]") "}", 8, "dimension 0", "0 or more"},
        {"{\"t\":" T("F32", "[1.5]", "[0,8]") "}", 8, "dimension 0", "0 or more"},
        {"{\"t\":" T("F32", "[\"1\"]", "[0,8]") "}", 8, "dimension 0", "0 or more"},
        {"{\"t\":" T("F32", "[1,1,1,1,1,1]", "[0,4]") "}", 8, "at most 5 dimensions", "found more"},
        {"{\"t\":" T("F32", "[4503599627370496,4503599627370496]", "[0,8]") "}", 8,
         "product of its dimensions", "64 bits"},
        {"{\"t\":" T("F32", "[4503599627370496,1024]", "[0,8]") "}", 8, "tensor \"t\"",
         "does not fit in 64 bits"},
        {"{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[2]", "[4,12]") "}", 12,
         "tensor \"b\" overlaps tensor \"a\"", "expected it at offset"},
        {"{\"a\":" T("F32", "[2]", "[0,8]") ",\"a\":" T("F32", "[1]", "[8,12]") "}", 12,
         "tensor \"a\"", "the name occurs twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(cases[i].header, cases[i].bytes, cases[i].a, cases[i].b);

    static const struct {
        uint64_t length;
        const char *message;
    } lengths[] = {
        {UINT64_MAX, "at most 100000000 bytes, found 18446744073709551615"},
        {100000001, "at most 100000000 bytes, found 100000001"},
        {3, "at most 2 bytes, found 3"},
    };
    qp_error error = {0};
    safetensors *file = NULL;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char bytes[10] = "........{}";
        memcpy(bytes, &lengths[i].length, 8);
        assert_int_equal(open_bytes(bytes, sizeof bytes, &file, &error), QP_FORMAT);
        if (!strstr(error.message, lengths[i].message)) fail_msg("%s", error.message);
    }
    assert_int_equal(open_bytes("1234567", 7, &file, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "expected at least 8 bytes, found 7"));
    release_bytes();
}

static const char small_header[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"n\":1},"
    "\"a\":" T("F32", "[2,3]", "[0,24]") ",\"none\":" T(
        "F16", "[0,4]",
        "[24,24]") ","
                   "\"one\":" T("BF16", "[]", "[24,26]") ",\"odd\":" T(
                       "F32", "[1]",
                       "[26,30]") ","
                                  "\"eight\":" T("F8_E4M3", "[2]", "[30,32]") ",\"future\":" T(
                                      "F4_X", "[5]", "[32,33]") "}";

static void test_views(void **state)
{
    (void)state;
    strbuf bytes = {0};
    safetensors *file = NULL;
    qp_error error = {0};
    make_file(&bytes, small_header, 33);
    assert_ok(open_bytes(bytes.data, bytes.length, &file, &error));
    assert_int_equal(safetensors_tensor_count(file), 6);
    tensor view = {0}, again = {0};
    assert_ok(safetensors_get_tensor(file, "a", &view, &error));
    assert_int_equal(view.rank, 2);
    assert_int_equal(view.shape[0], 2);
    assert_int_equal(view.shape[1], 3);
    assert_int_equal(*((uint8_t *)view.data + 23), 23);
    assert_ok(safetensors_get_tensor(file, "none", &view, &error));
    assert_int_equal(tensor_elements(&view), 0);
    assert_ok(safetensors_get_tensor(file, "one", &view, &error));
    assert_int_equal(view.type, DTYPE_BF16);
    assert_int_equal(view.rank, 1);
    assert_int_equal(view.shape[0], 1);
    assert_ok(safetensors_get_tensor(file, "odd", &view, &error));
    assert_int_equal((uintptr_t)view.data % 4, 0);
    assert_memory_equal(view.data, "\x1a\x1b\x1c\x1d", 4);
    assert_ok(safetensors_get_tensor(file, "odd", &again, &error));
    assert_ptr_equal(view.data, again.data);
    assert_ok(safetensors_get_tensor(file, "__metadata__", &view, &error));
    assert_ptr_equal(view.data, again.data);
    assert_int_equal(safetensors_get_tensor(file, "eight", &view, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "x.safetensors: tensor \"eight\" has type F8_E4M3"));
    const stored_tensor *future = safetensors_find_tensor(file, "future");
    assert_non_null(future);
    assert_int_equal(future->type, DTYPE_COUNT);
    assert_int_equal(future->bytes, 1);
    assert_null(safetensors_find_tensor(file, "b"));
    safetensors_close(file);
    make_file(&bytes, "{}", 0);
    assert_ok(open_bytes(bytes.data, bytes.length, &file, &error));
    assert_int_equal(safetensors_tensor_count(file), 0);
    assert_null(safetensors_find_tensor(file, "a"));
    safetensors_close(file);
    release_bytes();
    strbuf_free(&bytes);
}

/* --- Shards --- */

static void write_shards(void)
{
    strbuf bytes = {0};
    make_file(&bytes, "{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[1]", "[8,12]") "}",
              12);
    write_file("m-1.safetensors", bytes.data, bytes.length);
    make_file(&bytes, "{\"c\":" T("F16", "[2]", "[0,4]") "}", 4);
    write_file("m-2.safetensors", bytes.data, bytes.length);
    strbuf_free(&bytes);
}

static void write_index(const char *map)
{
    strbuf text = {0};
    strbuf_printf(&text, "{\"metadata\":{\"total_size\":16},\"weight_map\":%s}\n", map);
    write_file("model.safetensors.index.json", text.data, text.length);
    strbuf_free(&text);
}

static void test_shards(void **state)
{
    (void)state;
    qp_error error = {0};
    safetensors *file = NULL;
    write_shards();
    write_index("{\"a\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}");
    const char *paths[] = {folder, in_folder("model.safetensors.index.json")};
    for (int i = 0; i < 2; i++) {
        assert_ok(safetensors_open(paths[i], &file, &error));
        assert_int_equal(safetensors_tensor_count(file), 3);
        assert_string_equal(safetensors_path(file), in_folder("model.safetensors.index.json"));
        tensor view = {0};
        assert_ok(safetensors_get_tensor(file, "c", &view, &error));
        assert_int_equal(view.type, DTYPE_F16);
        assert_int_equal(safetensors_find_tensor(file, "c")->part, 1);
        safetensors_close(file);
    }
}

static void test_shard_errors(void **state)
{
    (void)state;
    static const struct {
        const char *map, *a, *b;
    } cases[] = {
        {"{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}", "tensor \"a\": expected it in",
         "m-2.safetensors, found it in"},
        {"{\"z\":\"m-2.safetensors\"}", "tensor \"z\": expected it in", "found it nowhere"},
        {"{\"a\":\"../m-1.safetensors\"}", "tensor \"a\"", "plain name of a file"},
        {"{\"a\":\"/etc/passwd\"}", "tensor \"a\"", "found \"/etc/passwd\""},
        {"{\"a\":\"..\"}", "tensor \"a\"", "found \"..\""},
        {"{\"a\":\"\"}", "tensor \"a\"", "found \"\""},
        {"{\"a\":7}", "tensor \"a\"", "expected a file's name, found a number"},
        {"{\"a\":\"m-9.safetensors\"}", "shard 1 of 1", "m-9.safetensors: cannot open"},
        {"{\"a\":\"x-1.safetensors\",\"b\":\"m-1.safetensors\"}", "tensor \"a\"", "twice"},
        {"{}", "\"weight_map\"", "found an empty one"},
        {"7", "\"weight_map\"", "must be an object"},
    };
    qp_error error = {0};
    safetensors *file = NULL;
    write_shards();
    strbuf bytes = {0};
    make_file(&bytes, "{\"a\":" T("F32", "[2]", "[0,8]") "}", 8);
    write_file("x-1.safetensors", bytes.data, bytes.length);
    strbuf_free(&bytes);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_index(cases[i].map);
        assert_int_not_equal(safetensors_open(folder, &file, &error), QP_OK);
        if (!strstr(error.message, folder)) fail_msg("no file's name in: %s", error.message);
        if (!strstr(error.message, cases[i].a) || !strstr(error.message, cases[i].b))
            fail_msg("expected \"%s\" and \"%s\" in: %s", cases[i].a, cases[i].b, error.message);
    }
    clear_folder(NULL);
    assert_int_equal(safetensors_open(folder, &file, &error), QP_IO);
    assert_non_null(strstr(error.message, "expected model.safetensors or "
                                          "model.safetensors.index.json in this directory"));
    assert_int_equal(safetensors_open(in_folder("no.safetensors"), &file, &error), QP_IO);
}

/* --- Damage --- */

static void read_everything(safetensors *file)
{
    qp_error error = {0};
    for (size_t i = 0; i < safetensors_tensor_count(file); i++) {
        const stored_tensor *stored = safetensors_tensor_at(file, i);
        tensor view = {0};
        char text[128];
        stored_tensor_describe(stored, text, sizeof text);
        if (safetensors_get_tensor(file, stored->name.data, &view, &error) != QP_OK) continue;
        uint8_t *copy = malloc(tensor_bytes(&view) + 1);
        memcpy(copy, view.data, tensor_bytes(&view));
        free(copy);
    }
}

static void test_truncation(void **state)
{
    (void)state;
    strbuf bytes = {0};
    make_file(&bytes, small_header, 33);
    for (size_t n = 0; n < bytes.length; n++) {
        qp_error error = {0};
        safetensors *file = NULL;
        if (open_bytes(bytes.data, n, &file, &error) == QP_OK)
            fail_msg("opened with %zu of %zu bytes", n, bytes.length);
        assert_non_null(strstr(error.message, "x.safetensors: "));
    }
    release_bytes();
    strbuf_free(&bytes);
}

static void test_mutation(void **state)
{
    (void)state;
    enum { ROUNDS = 10000 };
    strbuf bytes = {0};
    int refused = 0;
    make_file(&bytes, small_header, 33);
    uint8_t *damaged = malloc(bytes.length);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        memcpy(damaged, bytes.data, bytes.length);
        uint64_t flips = 1 + hash_random(2, round, 0) % 3;
        for (uint64_t i = 1; i <= flips; i++) {
            uint64_t bits = hash_random(2, round, i);
            size_t at = (size_t)(bits % (bytes.length - 33));
            if (bits >> 63)
                damaged[at] = (uint8_t) "0123456789[]{}\",:."[(bits >> 32) % 18];
            else
                damaged[at] ^= (uint8_t)(1u << (bits >> 40 & 7));
        }
        qp_error error = {0};
        safetensors *file = NULL;
        if (open_bytes(damaged, bytes.length, &file, &error) == QP_OK) {
            read_everything(file);
            safetensors_close(file);
        } else {
            refused++;
            assert_true(strstr(error.message, "x.safetensors: ") && error.status != QP_OK);
        }
    }
    assert_true(refused > ROUNDS / 10);
    release_bytes();
    free(damaged);
    strbuf_free(&bytes);
}

static void test_index_mutation(void **state)
{
    (void)state;
    enum { ROUNDS = 1000 };
    static const char map[] = "{\"a\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\"}";
    write_shards();
    for (uint64_t round = 0; round < ROUNDS; round++) {
        char damaged[sizeof map];
        memcpy(damaged, map, sizeof map);
        for (uint64_t i = 0; i <= round % 3; i++) {
            uint64_t bits = hash_random(3, round, i);
            damaged[bits % (sizeof map - 1)] ^= (char)(1 << (bits >> 40 & 7));
        }
        write_index(damaged);
        qp_error error = {0};
        safetensors *file = NULL;
        if (safetensors_open(folder, &file, &error) == QP_OK) {
            read_everything(file);
            safetensors_close(file);
        } else {
            assert_non_null(strstr(error.message, folder));
        }
    }
}

/* --- Real files --- */

static void test_stories(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        dtype type;
    } files[] = {{"stories260K/hf/model.safetensors", DTYPE_F32},
                 {"stories260K/hf-bf16/model.safetensors", DTYPE_BF16}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = test_data(files[i].name);
        require_data(path, files[i].name);
        char directory[4096];
        snprintf(directory, sizeof directory, "%s", path);
        *strrchr(directory, '/') = '\0';
        qp_error error = {0};
        safetensors *file = NULL;
        assert_ok(safetensors_open(directory, &file, &error));
        tensor view = {0};
        assert_ok(safetensors_get_tensor(file, "model.embed_tokens.weight", &view, &error));
        assert_int_equal(view.type, files[i].type);
        assert_int_equal(view.shape[0], 512);
        assert_int_equal(view.shape[1], 64);
        assert_ok(
            safetensors_get_tensor(file, "model.layers.4.mlp.down_proj.weight", &view, &error));
        assert_int_equal(view.shape[1], 172);
        read_everything(file);
        safetensors_close(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_views),
        cmocka_unit_test_teardown(test_shards, clear_folder),
        cmocka_unit_test_teardown(test_shard_errors, clear_folder),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_mutation),
        cmocka_unit_test_teardown(test_index_mutation, clear_folder),
        cmocka_unit_test(test_stories),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
