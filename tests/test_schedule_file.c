/* Schedules in files: read back unchanged, and refused if they are damaged or made for something
 * else. */
#include "schedule_test.h"

#include "base/hash.h"

#include <math.h>
#include <unistd.h>

static bench tiny;
static char path[] = "/tmp/quipu-schedule-XXXXXX";

static int open_tiny(void **state)
{
    (void)state;
    bench_open(&tiny, "synthetic:tiny:Q8_0");
    int file = mkstemp(path);
    if (file < 0) return -1;
    close(file);
    return 0;
}

static int close_tiny(void **state)
{
    (void)state;
    unlink(path);
    bench_close(&tiny);
    return 0;
}

static void save(int workers)
{
    qp_error error;
    schedule s;
    schedule_options options = {.workers = workers, .assignment = SCHEDULE_DAG};
    assert_ok(schedule_build(&tiny.program, &options, &s, &error));
    assert_ok(schedule_save(&s, 1, path, &error));
    schedule_free(&s);
}

static void test_what_is_saved_is_loaded(void **state)
{
    (void)state;
    for (int setting = 0; schedule_setting_name(setting); setting++) {
        qp_error error;
        schedule made, read;
        schedule_options options = {.workers = 7, .setting = (schedule_setting)setting, .tile = 4};
        assert_ok(schedule_build(&tiny.program, &options, &made, &error));
        assert_ok(schedule_save(&made, 1, path, &error));
        assert_ok(schedule_load(path, &tiny.program, &read, &error));
        assert_int_equal(read.longest, made.longest);
        assert_int_equal(read.n_counters, made.n_counters);
        assert_memory_equal(&read.options, &made.options, sizeof read.options);
        assert_memory_equal(read.length, made.length, 7 * sizeof *made.length);
        assert_memory_equal(read.instructions, made.instructions,
                            7 * (size_t)made.longest * sizeof(instruction));
        schedule_free(&made);
        schedule_free(&read);
    }
}

static char *read_file(size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 16);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void write_file(const char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static qp_error refusal; /* the last load's */

static qp_status load(void)
{
    schedule s;
    refusal = (qp_error){0};
    qp_status status = schedule_load(path, &tiny.program, &s, &refusal);
    assert_true(status == QP_OK || strstr(refusal.message, path));
    schedule_free(&s);
    return status;
}

static void test_damage_is_refused(void **state)
{
    (void)state;
    size_t size;
    save(3);
    char *good = read_file(&size);
    char *bad = malloc(size + 16);
    for (uint64_t i = 0; i < 600; i++) {
        memcpy(bad, good, size);
        size_t at = hash_random(1, 0, i) % size;
        bad[at] = (char)(bad[at] ^ (1 << hash_random(1, 1, i) % 8));
        write_file(bad, size);
        assert_int_equal(load(), QP_FORMAT);
    }
    for (uint64_t i = 0; i < 60; i++) {
        write_file(good, 1 + hash_random(2, 0, i) % (size - 1));
        assert_int_equal(load(), QP_FORMAT);
    }
    memset(bad + size, 0, 16);
    memcpy(bad, good, size);
    write_file(bad, size + 16);
    assert_int_equal(load(), QP_FORMAT);
    schedule s;
    assert_int_equal(schedule_read("parts", bad, size + 16, &tiny.program, &s, NULL), QP_FORMAT);
    schedule_free(&s);
    write_file(good, size);
    assert_int_equal(load(), QP_OK);
    free(good);
    free(bad);
}

/* The checksum of the format: at byte 32, of all words with 0 there. */
static void forge_checksum(char *bytes, size_t size)
{
    uint64_t hash = 0;
    memset(bytes + 32, 0, sizeof hash);
    for (size_t i = 0; i < size; i += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, bytes + i, sizeof word);
        hash = hash_mix(hash ^ word);
    }
    memcpy(bytes + 32, &hash, sizeof hash);
}

/* Damage under a valid checksum: no value may lead out of bounds; most are refused. */
static void test_design_is_refused_too(void **state)
{
    (void)state;
    size_t size;
    int refused = 0;
    save(3);
    char *good = read_file(&size);
    char *bad = malloc(size);
    for (uint64_t i = 0; i < 1000; i++) {
        memcpy(bad, good, size);
        size_t at = hash_random(3, 0, i) % ((i & 1 ? 512 : size) / 4) * 4;
        uint32_t word = (uint32_t)hash_random(3, 1, i);
        if (i % 3 == 0) word %= 64;
        memcpy(bad + at, &word, sizeof word);
        forge_checksum(bad, size);
        write_file(bad, size);
        refused += load() != QP_OK;
    }
    assert_true(refused > 500);
    free(good);
    free(bad);
}

/* Sizes and rates of the header that no schedule of the program has, under a valid checksum. */
static void test_headers_are_checked(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        int64_t whole;
        double real;
    } cases[] = {{56, -1, 0}, {56, 1LL << 40, 0}, {64, 0, 0},   {64, 1LL << 62, 0},
                 {72, 0, 0},  {80, -1, 0},        {88, 0, NAN}, {96, 0, NAN},
                 {96, 0, -1}, {104, 0, INFINITY}, {112, 0, NAN}};
    size_t size;
    save(3);
    char *good = read_file(&size);
    char *bad = malloc(size);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(bad, good, size);
        if (cases[i].at < 88)
            memcpy(bad + cases[i].at, &cases[i].whole, 8);
        else
            memcpy(bad + cases[i].at, &cases[i].real, 8);
        forge_checksum(bad, size);
        write_file(bad, size);
        assert_int_equal(load(), QP_FORMAT);
    }
    free(good);
    free(bad);
}

static void test_reserved_words_are_zero(void **state)
{
    (void)state;
    static const size_t words[] = {52, 120, 124};
    size_t size;
    save(3);
    char *file = read_file(&size);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        file[words[i]] = 7;
        forge_checksum(file, size);
        write_file(file, size);
        assert_int_equal(load(), QP_FORMAT);
        assert_non_null(strstr(refusal.message, "the reserved words of its header must be 0"));
        file[words[i]] = 0;
    }
    free(file);
}

static void test_another_model_is_refused(void **state)
{
    (void)state;
    bench other;
    qp_error error = {0};
    schedule s;
    save(3);
    bench_open(&other, "synthetic:tiny:BF16");
    assert_int_equal(schedule_load(path, &other.program, &s, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "another model"));
    schedule_free(&s);
    bench_close(&other);
}

static void test_what_cannot_be_opened_says_so(void **state)
{
    (void)state;
    qp_error error = {0};
    schedule s;
    assert_int_equal(schedule_load("/nonexistent/x", &tiny.program, &s, &error), QP_IO);
    assert_non_null(strstr(error.message, "/nonexistent/x"));
    schedule_options options = {.workers = 2};
    assert_ok(schedule_build(&tiny.program, &options, &s, &error));
    assert_int_equal(schedule_save(&s, 1, "/nonexistent/x", &error), QP_IO);
    schedule_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_saved_is_loaded),
        cmocka_unit_test(test_damage_is_refused),
        cmocka_unit_test(test_design_is_refused_too),
        cmocka_unit_test(test_headers_are_checked),
        cmocka_unit_test(test_reserved_words_are_zero),
        cmocka_unit_test(test_another_model_is_refused),
        cmocka_unit_test(test_what_cannot_be_opened_says_so),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
