/* The prefix tree in a file: another engine finds the texts, with the same bits; a file of another
 * model, cut off or damaged anywhere does no harm. */
#include "engine_test.h"

#include "engine/engine.h"
#include "engine/prefix_file.h"

#include <unistd.h>

enum { CONTEXT = 64, PAGE = 8, LENGTH = 44, PROMPTS = 3, SHARED = 16 };

static qp_error error;

static qp_engine *open_small(const char *model, int64_t page_size)
{
    qp_engine *e = open_engine((qp_engine_options){.model = model,
                                                   .context = CONTEXT,
                                                   .page_size = page_size,
                                                   .max_sessions = 3,
                                                   .max_outputs = LENGTH});
    assert_ok(engine_open_prefixes(e, &error));
    return e;
}

/* Texts that share their first tokens. */
static void text_of(int number, int32_t *tokens)
{
    for (int i = 0; i < LENGTH; i++)
        tokens[i] = i < SHARED ? i + 3 : (i * 7 + number * 31) % 200;
}

static void fill(qp_engine *e)
{
    for (int i = 0; i < PROMPTS; i++) {
        int32_t tokens[LENGTH];
        qp_session *s = open_session(e);
        text_of(i, tokens);
        free(eval_rows(e, s, tokens, LENGTH));
        session_keep_prefix(s, 7, LENGTH);
        qp_session_close(s);
    }
}

/* How many tokens of a text the engine has. With them, the other tokens give the same logits as
 * without. */
static size_t found(qp_engine *e, int number, uint64_t key)
{
    int32_t tokens[LENGTH];
    const size_t row = (size_t)qp_engine_get_info(e)->vocab_size;
    text_of(number, tokens);
    qp_session *s = open_session(e);
    const size_t held = session_take_prefix(s, key, tokens, LENGTH);
    float *rows = eval_rows(e, s, tokens + held, LENGTH - held);
    float *fresh = eval_fresh(e, tokens, LENGTH);
    assert_memory_equal(rows, fresh + held * row, (LENGTH - held) * row * sizeof *rows);
    free(rows);
    free(fresh);
    qp_session_close(s);
    return held;
}

typedef struct folder {
    char path[64], file[96], temporary[104];
} folder;

static int start(void **state)
{
    static folder f;
    strcpy(f.path, "/tmp/quipu-prefixes-XXXXXX");
    assert_non_null(mkdtemp(f.path));
    snprintf(f.file, sizeof f.file, "%s/pages", f.path);
    snprintf(f.temporary, sizeof f.temporary, "%s.new", f.file);
    *state = &f;
    return 0;
}

static int stop(void **state)
{
    folder *f = *state;
    unlink(f->file);
    unlink(f->temporary);
    rmdir(f->path);
    return 0;
}

static prefix_file_result save(const char *model, const char *path, uint64_t most)
{
    prefix_file_result result;
    qp_engine *e = open_small(model, PAGE);
    fill(e);
    assert_ok(prefix_file_save(e, path, most, &result, &error));
    qp_engine_close(e);
    return result;
}

static void another_engine_finds_the_texts(void **state)
{
    folder *f = *state;
    prefix_file_result result = save("synthetic:tiny", f->file, UINT64_MAX);
    const uint64_t pages = SHARED / PAGE + PROMPTS * (LENGTH / PAGE - SHARED / PAGE);
    assert_int_equal(result.pages, pages);
    qp_engine *e = open_small("synthetic:tiny", PAGE);
    assert_int_equal(found(e, 0, 7), 0);
    assert_ok(prefix_file_restore(e, f->file, &result, &error));
    assert_true(result.found);
    assert_int_equal(result.pages, pages);
    assert_int_equal(result.damaged, 0);
    for (int i = 0; i < PROMPTS; i++)
        assert_int_equal(found(e, i, 7), LENGTH / PAGE * PAGE);
    assert_int_equal(found(e, 0, 8), 0);
    /* What the tree has already is not added twice. */
    assert_ok(prefix_file_restore(e, f->file, &result, &error));
    assert_int_equal(result.pages, 0);
    qp_engine_close(e);
}

/* Those used last, which are the last text's. */
static void a_limit_keeps_the_latest(void **state)
{
    folder *f = *state;
    const size_t page = 2 * sizeof(uint64_t) + PAGE * sizeof(int32_t) + sizeof(uint64_t);
    qp_engine *e = open_small("synthetic:tiny", PAGE);
    const uint64_t bytes = page + machine_page_bytes(&e->program);
    prefix_file_result result = save("synthetic:tiny", f->file, 64 + bytes * 5);
    assert_int_equal(result.pages, 5);
    assert_int_equal(result.bytes, 64 + bytes * 5);
    assert_true(result.skipped > 0);
    assert_ok(prefix_file_restore(e, f->file, &result, &error));
    assert_int_equal(found(e, PROMPTS - 1, 7), LENGTH / PAGE * PAGE);
    assert_int_equal(found(e, 0, 7), SHARED);
    qp_engine_close(e);
}

static void other_models_do_not_use_it(void **state)
{
    folder *f = *state;
    prefix_file_result result;
    const char *others[] = {"synthetic:tiny:F32:5", "synthetic:tiny:Q8_0", "synthetic:tiny"};
    save("synthetic:tiny", f->file, UINT64_MAX);
    for (int i = 0; i < 3; i++) {
        qp_engine *e = open_small(others[i], i == 2 ? 2 * PAGE : PAGE);
        assert_int_equal(prefix_file_restore(e, f->file, &result, &error), QP_FORMAT);
        assert_non_null(strstr(error.message, f->file));
        assert_int_equal(e->prefixes.n_nodes, 0);
        qp_engine_close(e);
    }
}

static void write_file(const char *path, const char *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

/* Restores a changed file: nothing but sound pages is used. */
static prefix_file_result restore_changed(const folder *f, const char *bytes, size_t n)
{
    prefix_file_result result;
    write_file(f->file, bytes, n);
    qp_engine *e = open_small("synthetic:tiny", PAGE);
    const qp_status status = prefix_file_restore(e, f->file, &result, &error);
    assert_true(status == QP_OK || status == QP_FORMAT);
    assert_true(status == QP_OK || e->prefixes.n_nodes == 0);
    assert_int_equal(e->prefixes.n_nodes, status == QP_OK ? result.pages : 0);
    for (int i = 0; i < PROMPTS; i++)
        found(e, i, 7);
    qp_engine_close(e);
    if (status != QP_OK) result.damaged = UINT64_MAX;
    return result;
}

static void damage_is_found(void **state)
{
    folder *f = *state;
    const prefix_file_result whole = save("synthetic:tiny", f->file, UINT64_MAX);
    size_t n = 0;
    char *bytes = read_whole(f->file, &n);
    assert_int_equal(n, whole.bytes);
    const size_t record = (n - 64) / whole.pages;
    for (size_t i = 0; i < 20; i++) {
        const size_t at = i < 8 ? i * 8 : 64 + (i * 7919) % (n - 64);
        bytes[at] ^= (char)(1 << i % 8);
        const prefix_file_result result = restore_changed(f, bytes, n);
        bytes[at] ^= (char)(1 << i % 8);
        assert_true(at < 64 ? result.damaged == UINT64_MAX : result.damaged == 1);
        assert_true(at < 64 || result.pages < whole.pages);
    }
    for (size_t cut = 0; cut < n; cut += n / 7) {
        const prefix_file_result result = restore_changed(f, bytes, cut);
        if (cut < 64) continue;
        assert_int_equal(result.pages, (cut - 64) / record);
        assert_int_equal(result.pages + result.damaged, whole.pages);
    }
    free(bytes);
}

/* A process that was killed while it wrote leaves a part of a file under the other name. */
static void a_part_of_a_file_is_written_over(void **state)
{
    folder *f = *state;
    prefix_file_result result;
    write_file(f->temporary, "quipu", 5);
    qp_engine *e = open_small("synthetic:tiny", PAGE);
    assert_ok(prefix_file_restore(e, f->file, &result, &error));
    assert_false(result.found);
    fill(e);
    assert_ok(prefix_file_save(e, f->file, UINT64_MAX, &result, &error));
    assert_int_equal(access(f->temporary, F_OK), -1);
    qp_engine_close(e);
    e = open_small("synthetic:tiny", PAGE);
    assert_ok(prefix_file_restore(e, f->file, &result, &error));
    assert_int_equal(result.damaged, 0);
    qp_engine_close(e);
}

static void failures_name_the_file(void **state)
{
    folder *f = *state;
    prefix_file_result result;
    char path[128];
    snprintf(path, sizeof path, "%s/nowhere/pages", f->path);
    qp_engine *e = open_small("synthetic:tiny", PAGE);
    fill(e);
    assert_int_equal(prefix_file_save(e, path, UINT64_MAX, &result, &error), QP_IO);
    assert_non_null(strstr(error.message, path));
    qp_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(another_engine_finds_the_texts, start, stop),
        cmocka_unit_test_setup_teardown(a_limit_keeps_the_latest, start, stop),
        cmocka_unit_test_setup_teardown(other_models_do_not_use_it, start, stop),
        cmocka_unit_test_setup_teardown(damage_is_found, start, stop),
        cmocka_unit_test_setup_teardown(a_part_of_a_file_is_written_over, start, stop),
        cmocka_unit_test_setup_teardown(failures_name_the_file, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
