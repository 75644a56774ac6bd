/* GGUF files: what is written is read back, split and real files open, and the writer's own
 * failures are named. */
#include "gguf_test.h"

#include "base/clock.h"
#include "file/mapping.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* --- What the writer writes is read back --- */

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
    assert_non_null(strstr(error.message, "no file remains"));
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
        cmocka_unit_test_teardown(test_round_trip, clear_folder),
        cmocka_unit_test_teardown(test_describe, clear_folder),
        cmocka_unit_test_teardown(test_copy, clear_folder),
        cmocka_unit_test_teardown(test_writer_refuses, clear_folder),
        cmocka_unit_test_teardown(test_disk_full, clear_folder),
        cmocka_unit_test_teardown(test_files, clear_folder),
        cmocka_unit_test_teardown(test_split, clear_folder),
        cmocka_unit_test_teardown(test_large_vocabulary, clear_folder),
        cmocka_unit_test(test_stories),
        cmocka_unit_test(test_vocabularies),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
