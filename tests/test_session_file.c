/* A session in a file: another engine goes on with the same bits, and a file that is damaged, cut,
 * or another's is refused by name and leaves the session empty. */
#include "engine_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTEXT = 64, PAGE = 8, LENGTH = 21, MORE = 3 };

static qp_error error;
static char path[64];

static qp_engine *open_with(const char *model, int64_t page_size, int64_t context)
{
    return open_engine((qp_engine_options){.model = model,
                                           .context = context,
                                           .page_size = page_size,
                                           .max_sessions = 2,
                                           .max_outputs = LENGTH});
}

static void text_of(int32_t *tokens)
{
    for (int i = 0; i < LENGTH + MORE; i++)
        tokens[i] = (i * 37 + 5) % 70;
}

/* Writes a session of LENGTH tokens; the logits of the MORE tokens after them. */
static float *save(const char *model)
{
    int32_t tokens[LENGTH + MORE];
    qp_engine *e = open_with(model, PAGE, CONTEXT);
    qp_session *s = open_session(e);
    text_of(tokens);
    free(eval_rows(e, s, tokens, LENGTH));
    assert_ok(qp_session_save(s, path, &error));
    float *rows = eval_rows(e, s, tokens + LENGTH, MORE);
    qp_session_close(s);
    qp_engine_close(e);
    return rows;
}

static void another_engine_goes_on(void **state)
{
    (void)state;
    static const char *const models[] = {"synthetic:tiny", "golden/models/llama-dynamic"};
    for (int m = 0; m < 2; m++) {
        int32_t tokens[LENGTH + MORE];
        size_t count;
        float *expected = save(models[m]);
        qp_engine *e = open_with(models[m], PAGE, CONTEXT);
        qp_session *s = open_session(e);
        const size_t row = (size_t)qp_engine_get_info(e)->vocab_size;
        text_of(tokens);
        assert_ok(qp_session_load(s, path, &error));
        assert_memory_equal(qp_session_tokens(s, &count), tokens, LENGTH * sizeof *tokens);
        assert_int_equal(count, LENGTH);
        float *rows = eval_rows(e, s, tokens + LENGTH, MORE);
        assert_memory_equal(rows, expected, MORE * row * sizeof *rows);
        assert_int_equal(qp_session_load(s, path, &error), QP_INVALID);
        assert_non_null(strstr(error.message, "holds 24 tokens"));
        free(rows);
        free(expected);
        qp_session_close(s);
        qp_engine_close(e);
    }
}

static void an_empty_session(void **state)
{
    (void)state;
    size_t count;
    qp_engine *e = open_with("synthetic:tiny", PAGE, CONTEXT);
    qp_session *s = open_session(e), *other = open_session(e);
    assert_ok(qp_session_save(s, path, &error));
    assert_ok(qp_session_load(other, path, &error));
    qp_session_tokens(other, &count);
    assert_int_equal(count, 0);
    assert_int_equal(qp_session_save(s, "/nonexistent/session", &error), QP_IO);
    qp_session_close(s);
    qp_session_close(other);
    qp_engine_close(e);
}

static void refuse(qp_engine *e, qp_status status, const char *message)
{
    size_t count;
    qp_session *s = open_session(e);
    assert_int_equal(qp_session_load(s, path, &error), status);
    if (!strstr(error.message, message)) fail_msg("%s: expected %s", error.message, message);
    assert_non_null(strstr(error.message, path));
    qp_session_tokens(s, &count);
    assert_int_equal(count, 0);
    int32_t tokens[LENGTH + MORE];
    text_of(tokens);
    free(eval_rows(e, s, tokens, LENGTH)); /* it can be used, and all its pages are there */
    qp_session_close(s);
}

static void write_file(const char *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
}

/* A byte is changed, or the file cut, at every place of the heads and at some of the pages. */
static void damaged_files(void **state)
{
    (void)state;
    size_t size = 0;
    free(save("synthetic:tiny"));
    char *good = read_whole(path, &size);
    qp_engine *e = open_with("synthetic:tiny", PAGE, CONTEXT);
    for (size_t at = 0; at < size; at += at < 120 ? 1 : 977) {
        good[at] ^= 1;
        write_file(good, size);
        refuse(e, QP_FORMAT, "");
        good[at] ^= 1;
        write_file(good, at);
        refuse(e, QP_FORMAT, "");
    }
    write_file(good, size - 1);
    refuse(e, QP_FORMAT, "page 3 of 3 is missing");
    good[size - 20] ^= 1;
    write_file(good, size);
    refuse(e, QP_FORMAT, "page 3 of 3 has a wrong checksum");
    free(good);
    unlink(path);
    refuse(e, QP_IO, "no such file");
    qp_engine_close(e);
}

static void foreign_files(void **state)
{
    (void)state;
    free(save("synthetic:tiny"));
    qp_engine *e = open_with("synthetic:tiny", 16, CONTEXT);
    refuse(e, QP_FORMAT, "other settings");
    qp_engine_close(e);
    e = open_with("synthetic:tiny:Q8_0", PAGE, CONTEXT);
    refuse(e, QP_FORMAT, "another model");
    qp_engine_close(e);
    e = open_with("synthetic:tiny", PAGE, CONTEXT);
    write_file("quipu prefixes 1", 16);
    refuse(e, QP_FORMAT, "not a session of quipu");
    qp_engine_close(e);
}

static void too_long_for_the_context(void **state)
{
    (void)state;
    free(save("synthetic:tiny"));
    qp_engine *e = open_with("synthetic:tiny", PAGE, 16);
    qp_session *s = open_session(e);
    assert_int_equal(qp_session_load(s, path, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "session of 21 tokens, and the context has room for 16"));
    qp_session_close(s);
    qp_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_engine_goes_on),
        cmocka_unit_test(an_empty_session),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(foreign_files),
        cmocka_unit_test(too_long_for_the_context),
    };
    snprintf(path, sizeof path, "/tmp/quipu-session-%d", (int)getpid());
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
