/* Damaged GGUF files: each gives a message that names the file, the key or tensor, expected and
 * found. */
#include "gguf_test.h"

#include "base/hash.h"
#include "base/strbuf.h"
#include "file/mapping.h"

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
    tensor_info(&b, "a", 1, 256, 1, 41, 0);
    tensor_info(&b, "b", 1, 8, 1, 0, 32);
    data(&b, 64);
    assert_ok(open_bytes(b.data, b.length, &file, &error));
    const stored_tensor *stored = gguf_find_tensor(file, "a");
    assert_non_null(stored);
    assert_int_equal(stored->type, DTYPE_COUNT);
    assert_int_equal(stored->type_id, 41);
    char text[64];
    assert_string_equal(stored_tensor_describe(stored, text, sizeof text), "Q1_0 [256]");
    tensor view = {0};
    assert_int_equal(gguf_get_tensor(file, "a", &view, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "x.gguf: tensor \"a\" has type Q1_0 (number 41"));
    assert_ok(gguf_get_tensor(file, "b", &view, &error));
    assert_int_equal(view.shape[0], 8);
    assert_ok(gguf_get_tensor(file, "absent", &view, &error));
    assert_int_equal(view.shape[0], 8);
    gguf_close(file);
    release_bytes();
    strbuf_free(&b);
}

/* --- Damage: nothing crashes, nothing reads outside, damage to the structure is reported --- */

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header_errors),
        cmocka_unit_test(test_key_errors),
        cmocka_unit_test(test_tensor_errors),
        cmocka_unit_test(test_unsupported_type),
        cmocka_unit_test_teardown(test_truncation, clear_folder),
        cmocka_unit_test_teardown(test_mutation, clear_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
