/* src/base: statuses, memory, strings, threads, hashes, processor features, log. */
#include "test.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/keyed_hash.h"
#include "base/progress.h"
#include "base/printable.h"
#include "base/strbuf.h"
#include "base/threads.h"

#include <sys/stat.h>
#include <unistd.h>

static void test_status(void **state)
{
    (void)state;
    qp_error error;
    assert_int_equal(error_set(&error, QP_FORMAT, "%s: %d", "file", 3), QP_FORMAT);
    assert_int_equal(error.status, QP_FORMAT);
    assert_string_equal(error.message, "file: 3");
    assert_int_equal(error_prefix(&error, "while reading %s", "x"), QP_FORMAT);
    assert_string_equal(error.message, "while reading x: file: 3");
    assert_int_equal(error_set(NULL, QP_IO, "nobody listens"), QP_IO);
    assert_int_equal(error_no_memory(&error, "a table", 5), QP_NO_MEMORY);
    assert_string_equal(error.message, "cannot allocate 5 bytes for a table");
    char longest[3 * QP_ERROR_SIZE];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    error_set(&error, QP_IO, "b: %s: the reason", longest);
    assert_in_range(strlen(error.message), QP_ERROR_SIZE - 16, QP_ERROR_SIZE - 1);
    assert_memory_equal(error.message, "b: aaa", 6);
    assert_non_null(strstr(error.message, "a ... a"));
    assert_string_equal(strrchr(error.message, ':'), ": the reason");
    error_prefix(&error, "b");
    assert_in_range(strlen(error.message), QP_ERROR_SIZE - 16, QP_ERROR_SIZE - 1);
    assert_memory_equal(error.message, "b: b: aaa", 9);
    error_prefix(&error, "%s", longest);
    assert_int_equal(strlen(error.message), QP_ERROR_SIZE - 1);
}

static void test_checked(void **state)
{
    (void)state;
    size_t out;
    assert_true(checked_mul(SIZE_MAX, 1, &out) && out == SIZE_MAX);
    assert_false(checked_mul(SIZE_MAX, 2, &out));
    assert_false(checked_mul((size_t)1 << 32, (size_t)1 << 32, &out));
    assert_true(checked_add(SIZE_MAX - 1, 1, &out));
    assert_false(checked_add(SIZE_MAX, 1, &out));
    assert_true(range_inside(0, 10, 10));
    assert_true(range_inside(10, 0, 10));
    assert_false(range_inside(11, 0, 10));
    assert_false(range_inside(5, 6, 10));
    assert_false(range_inside(UINT64_MAX, 2, 10));
    assert_false(range_inside(2, UINT64_MAX, 10));
    assert_int_equal(round_up(0, 16), 0);
    assert_int_equal(round_up(17, 16), 32);
}

static void test_arena(void **state)
{
    (void)state;
    arena a = {0};
    for (size_t i = 1; i < 3000; i++) {
        unsigned char *memory = arena_alloc(&a, i % 97, i % 11);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 16, 0);
        for (size_t j = 0; j < (i % 97) * (i % 11); j++)
            assert_int_equal(memory[j], 0);
        memset(memory, 0xff, (i % 97) * (i % 11));
    }
    assert_non_null(arena_alloc(&a, 1, 10 << 20)); /* larger than a block */
    assert_null(arena_alloc(&a, SIZE_MAX, 2));
    assert_null(arena_alloc(&a, SIZE_MAX, 1));
    assert_non_null(arena_alloc(&a, 0, 8));
    assert_string_equal(arena_strdup(&a, "cord"), "cord");
    assert_string_equal(arena_strndup(&a, "knots", 4), "knot");
    assert_null(arena_strndup(&a, "x", SIZE_MAX));
    arena_free(&a);
    assert_null(a.blocks);
    assert_int_equal(a.total, 0);
}

static void test_buffer(void **state)
{
    (void)state;
    qp_error error;
    buffer b;
    assert_ok(buffer_alloc(&b, 5 << 20, "a tensor", &error));
    assert_int_equal((uintptr_t)b.data % BUFFER_ALIGNMENT, 0);
    assert_int_equal(((char *)b.data)[(5 << 20) - 1], 0);
    ((char *)b.data)[(5 << 20) - 1] = 1;
    buffer_free(&b);
    assert_null(b.data);
    assert_ok(buffer_alloc(&b, 0, "nothing", &error));
    buffer_free(&b);
    assert_int_equal(buffer_alloc(&b, SIZE_MAX, "everything", &error), QP_NO_MEMORY);
    assert_string_equal(error.message, "cannot allocate 18446744073709551615 bytes for everything");
}

static void test_strbuf(void **state)
{
    (void)state;
    strbuf s = {0};
    assert_string_equal(strbuf_text(&s), "");
    for (int i = 0; i < 1000; i++)
        assert_true(strbuf_printf(&s, "%d,", i));
    assert_int_equal(s.length, 3890);
    assert_string_equal(s.data + s.length - 4, "999,");
    strbuf_clear(&s);
    strbuf_append(&s, "a\0b", 3);
    strbuf_putc(&s, 'c');
    strbuf_puts(&s, "");
    assert_int_equal(s.length, 4);
    assert_memory_equal(s.data, "a\0bc", 5);
    assert_false(strbuf_append(&s, "x", SIZE_MAX)); /* cannot be, and leaves the text alone */
    assert_true(s.failed);
    assert_false(strbuf_putc(&s, 'd'));
    assert_int_equal(s.length, 4);
    assert_null(strbuf_take(&s));
    strbuf_puts(&s, "taken");
    char *text = strbuf_take(&s);
    assert_string_equal(text, "taken");
    free(text);
    text = strbuf_take(&s);
    assert_string_equal(text, "");
    free(text);
    strbuf_free(&s);
}

/* CPython 3.11 hashes bytes in the same way; with PYTHONHASHSEED=0 its key is 0. */
static void test_keyed_hash(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t hash;
    } cases[] = {{"a", 0x407448d2b89b1813},
                 {"abcdefg", 0x6db12aae9070f506},
                 {"abcdefgh", 0x3f7b849c0b8e35ea},
                 {"abcdefghi", 0xf89b34a3d11eb6e5},
                 {"the quick brown fox jumps", 0x00c98b97e4f70042}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(keyed_hash((hash_key){0}, cases[i].text, strlen(cases[i].text)) ==
                    cases[i].hash);
        assert_true(keyed_hash((hash_key){{1}}, cases[i].text, strlen(cases[i].text)) !=
                    cases[i].hash);
    }
    hash_key key = hash_key_get(), again = hash_key_get();
    assert_memory_equal(&key, &again, sizeof key);
    assert_true(key.k[0] || key.k[1]);
    assert_true(keyed_hash_number(key, 1) != keyed_hash_number((hash_key){0}, 1));
}

static void messages_hold_no_controls(void **state)
{
    (void)state;
    qp_error error;
    error_set(&error, QP_FORMAT, "the name \"%s\"",
              "\x1b]0;title\x07\x1b[2J\tplain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xc2\x9b"
              "31m \xe2\x80\xae \xff\xc3 \x7f\n");
    assert_string_equal(error.message,
                        "the name \"\\x1b]0;title\\x07\\x1b[2J\tplain \xc3\xa9 \xe2\x82\xac "
                        "\xf0\x9f\x98\x80 \\u009b31m \\u202e \\xff\\xc3 \\x7f\n\"");
    char small[6];
    printable_copy("ab\x01 rest", small, sizeof small);
    assert_string_equal(small, "ab");
    strbuf out = {0};
    strbuf_put_printable(&out, "a\0b", 3);
    assert_string_equal(out.data, "a\\x00b");
    strbuf_free(&out);
}

static void reading_has_a_limit(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0};
    assert_int_equal(files_read("/dev/zero", 1 << 20, &text, &error), QP_FORMAT);
    assert_string_equal(error.message, "/dev/zero: expected at most 1048576 bytes, found more");
    assert_true(text.length <= 1 << 20);
    strbuf_free(&text);
    assert_int_equal(files_read("/nonexistent/x", 10, &text, &error), QP_IO);
    char folder[] = "/tmp/quipu-base-XXXXXX", path[64], deep[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a", folder);
    assert_ok(files_write(path, "12345", 5, &error));
    assert_ok(files_read(path, 5, &text, &error));
    assert_string_equal(text.data, "12345");
    assert_int_equal(files_read(path, 4, &text, &error), QP_FORMAT);
    strbuf_free(&text);
    assert_ok(files_check_writable(path, &error));
    assert_ok(files_read(path, 5, &text, &error)); /* as it was */
    strbuf_free(&text);
    snprintf(deep, sizeof deep, "%s/b/c", folder);
    assert_ok(files_check_writable(deep, &error));
    assert_int_equal(access(deep, F_OK), -1);
    snprintf(deep, sizeof deep, "%s/a/c", folder);
    assert_int_equal(files_check_writable(deep, &error), QP_IO);
    unlink(path);
    snprintf(deep, sizeof deep, "%s/b", folder);
    rmdir(deep);
    assert_int_equal(rmdir(folder), 0);
}

enum { TASKS = 1000 };

typedef struct shares {
    int owner[TASKS]; /* worker that did the unit, -1 before */
    int runs[64];
} shares;

static void take_share(void *context, int worker, int n_workers)
{
    shares *all = context;
    int64_t begin, end;
    thread_share(TASKS, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        all->owner[i] = worker;
    all->runs[worker]++;
}

static void test_threads(void **state)
{
    (void)state;
    qp_error error;
    for (int n = 1; n <= 5; n++) {
        thread_pool *pool;
        assert_ok(thread_pool_create(n, &pool, &error));
        assert_int_equal(thread_pool_size(pool), n);
        shares all = {0};
        for (int run = 1; run <= 50; run++) {
            memset(all.owner, -1, sizeof all.owner);
            thread_pool_run(pool, take_share, &all);
            for (int i = 0; i < TASKS; i++)
                assert_in_range(all.owner[i], i ? all.owner[i - 1] : 0, n - 1);
            for (int worker = 0; worker < n; worker++)
                assert_int_equal(all.runs[worker], run);
        }
        thread_pool_destroy(pool);
    }
    thread_pool *pool;
    assert_int_equal(thread_pool_create(0, &pool, &error), QP_INVALID);
    assert_int_equal(thread_pool_create(1025, &pool, &error), QP_INVALID);
    assert_null(pool);
    shares all = {0};
    thread_pool_run(NULL, take_share, &all);
    assert_int_equal(all.runs[0], 1);
    thread_pool_destroy(NULL);
    assert_true(threads_available() >= 1);
}

static void test_shares(void **state)
{
    (void)state;
    for (int64_t total = 0; total < 50; total++)
        for (int n = 1; n < 9; n++) {
            int64_t next = 0;
            for (int worker = 0; worker < n; worker++) {
                int64_t begin, end;
                thread_share(total, worker, n, &begin, &end);
                assert_int_equal(begin, next);
                assert_in_range(end - begin, total / n, total / n + (total % n != 0));
                next = end;
            }
            assert_int_equal(next, total);
        }
}

static void test_hash(void **state)
{
    (void)state;
    /* SplitMix64 from state 0: the first output of the authors' reference. */
    assert_true(hash_mix(0) == 0xe220a8397b1dcdafu);
    assert_true(hash_random(1, 2, 3) != hash_random(1, 3, 2));
    double sum = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        float u = hash_uniform(hash_random(42, 0, i));
        assert_true(u > 0 && u < 1);
        sum += u;
    }
    /* The mean of 100,000 uniforms has a standard deviation of 0.0009. */
    assert_true(sum / 100000 > 0.495 && sum / 100000 < 0.505);
    assert_true(hash_uniform(0) > 0 && hash_uniform(UINT64_MAX) < 1);
}

static void test_clock(void **state)
{
    (void)state;
    uint64_t before = clock_ns();
    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_ns();
        assert_true(now >= before);
        before = now;
    }
}

static void test_cpu_masks(void **state)
{
    (void)state;
    qp_error error;
    uint32_t set;
    assert_ok(cpu_features_parse("", &set, &error));
    assert_int_equal(set, 0);
    assert_ok(cpu_features_parse("avx512_vnni,avx512_bf16 , fma", &set, &error));
    assert_int_equal(set, CPU_AVX512_VNNI | CPU_AVX512_BF16 | CPU_FMA);
    assert_ok(cpu_features_parse("all", &set, &error));
    assert_int_equal(set, CPU_ALL);
    assert_int_equal(cpu_features_parse("avx2,sse9", &set, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "unknown CPU feature 'sse9'; known are: all avx2 fma"));
    assert_int_equal(cpu_features_parse("avx", &set, &error), QP_INVALID);

    assert_int_equal(cpu_without(CPU_ALL, 0), CPU_ALL);
    assert_int_equal(cpu_without(CPU_ALL, CPU_ALL), 0);
    const uint32_t arm = CPU_LEVEL_I8MM | CPU_BF16;
    assert_int_equal(cpu_without(CPU_ALL, CPU_AVX512F), CPU_LEVEL_AVX2 | CPU_AVX_VNNI | arm);
    assert_int_equal(cpu_without(CPU_ALL, CPU_AVX2), CPU_FMA | CPU_F16C | arm);
    assert_int_equal(cpu_without(CPU_ALL, CPU_VECTORS), CPU_ALL & ~arm);
    assert_int_equal(cpu_without(CPU_ALL, CPU_DOTPROD), CPU_ALL & ~(CPU_DOTPROD | CPU_I8MM));
    assert_int_equal(cpu_without(CPU_ALL, CPU_AVX512BW),
                     CPU_ALL & ~(CPU_AVX512BW | CPU_AVX512VBMI));
    assert_int_equal(cpu_without(CPU_ALL, CPU_AMX_TILE),
                     CPU_ALL & ~(CPU_AMX_TILE | CPU_AMX_INT8 | CPU_AMX_BF16));

    strbuf names = {0};
    cpu_features_print(CPU_LEVEL_AVX2, &names);
    assert_string_equal(strbuf_text(&names), "avx2 fma f16c");
    strbuf_clear(&names);
    cpu_features_print(CPU_ALL, &names);
    assert_ok(cpu_features_parse(strbuf_text(&names), &set, &error));
    assert_int_equal(set, CPU_ALL);
    strbuf_free(&names);
}

/* What CPUID says is what Linux says, other than tiles, which may be refused to us. */
static void test_cpu_here(void **state)
{
    (void)state;
    uint32_t features = cpu_features(0);
    assert_int_equal(cpu_features(CPU_ALL), 0);
    assert_int_equal(cpu_without(features, 0), features);
    assert_non_null(cpu_slow_form(0));
#if defined(__x86_64__)
    assert_non_null(strstr(cpu_slow_form(CPU_VECTORS | CPU_AVX2), "AVX2"));
    assert_null(cpu_slow_form(CPU_VECTORS | CPU_LEVEL_AVX2));
#endif
    cpu_description cpu;
    cpu_describe(&cpu);
    assert_int_equal(cpu.processors, threads_available());
    assert_non_null(memchr(cpu.model, '\0', sizeof cpu.model));

    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[8192] = "";
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file))
        found = strncmp(line, "flags", 5) == 0;
    if (file) fclose(file);
    if (!found) skip_because("/proc/cpuinfo names no features");
    line[strcspn(line, "\n")] = ' ';
    for (uint32_t feature = 1; feature < CPU_AMX_TILE; feature <<= 1) {
        strbuf name = {0};
        strbuf_putc(&name, ' ');
        cpu_features_print(feature, &name);
        strbuf_putc(&name, ' ');
        bool listed = strstr(line, strbuf_text(&name)) != NULL;
        /* Linux also lists what we leave out for want of something else. */
        if (features & feature) assert_true(listed);
        if (listed && cpu_without(features | feature, 0) & feature) assert_true(features & feature);
        strbuf_free(&name);
    }
}

typedef struct heard {
    int reports;
    uint64_t done;
} heard;

static void hear_progress(void *context, const progress *progress)
{
    heard *h = context;
    h->reports++;
    h->done = progress->done;
}

static void test_progress(void **state)
{
    (void)state;
    heard h = {0};
    progress p = {.sink = hear_progress, .context = &h};
    progress_begin(&p, "reading", 1000000);
    for (int i = 0; i < 1000; i++)
        progress_advance(&p, 1000);
    assert_int_equal(h.done, 1000000); /* the end is always reported, progress before it rarely */
    assert_in_range(h.reports, 1, 100);
    int reports = h.reports;
    progress_end(&p);
    assert_int_equal(h.reports, reports);
    progress_begin(&p, "reading", 2000000000);
    progress_advance(&p, 1);
    progress_end(&p);
    assert_int_equal(h.done, 2000000000);
    strbuf line = {0};
    progress_print(&p, &line);
    assert_string_equal(strbuf_text(&line), "reading 100%  2.0 of 2.0 GB");
    strbuf_clear(&line);
    reports = h.reports;
    progress_begin_tokens(&p, "reading the prompt", 6000);
    assert_int_equal(h.reports, reports + 1); /* at once */
    assert_int_equal(h.done, 0);
    p.done = 1500;
    progress_print(&p, &line);
    assert_string_equal(strbuf_text(&line), "reading the prompt  25%  1500 of 6000 tokens");
    strbuf_free(&line);
    progress_begin_tokens(NULL, "silent", 1);
    progress_begin(NULL, "silent", 1);
    progress_advance(NULL, 1);
    progress_end(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status),         cmocka_unit_test(test_checked),
        cmocka_unit_test(test_arena),          cmocka_unit_test(test_buffer),
        cmocka_unit_test(test_strbuf),         cmocka_unit_test(test_threads),
        cmocka_unit_test(test_shares),         cmocka_unit_test(test_hash),
        cmocka_unit_test(test_clock),          cmocka_unit_test(test_cpu_masks),
        cmocka_unit_test(test_cpu_here),       cmocka_unit_test(test_progress),
        cmocka_unit_test(test_keyed_hash),     cmocka_unit_test(messages_hold_no_controls),
        cmocka_unit_test(reading_has_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
