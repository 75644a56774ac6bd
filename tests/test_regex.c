/* Expressions of pre-tokenizers come from files: their length and their work are bounded. */
#include "test.h"

#include "base/strbuf.h"
#include "text/regex.h"

static qp_error error;

static regex *compile(const char *pattern)
{
    regex *r;
    assert_ok(regex_compile(pattern, strlen(pattern), false, "test", &r, &error));
    return r;
}

static strbuf times(size_t n, char c, const char *after)
{
    strbuf text = {0};
    for (size_t i = 0; i < n; i++)
        strbuf_putc(&text, c);
    strbuf_puts(&text, after);
    return text;
}

static void patterns_have_a_length(void **state)
{
    (void)state;
    strbuf text = times(16384, 'a', "a");
    regex *r;
    assert_ok(regex_compile(text.data, text.length - 1, false, "test", &r, &error));
    regex_free(r);
    assert_int_equal(regex_compile(text.data, text.length, false, "test", &r, &error),
                     QP_UNSUPPORTED);
    assert_string_equal(error.message, "test: an expression of 16385 bytes, at most 16384");
    assert_null(r);
    assert_int_equal(regex_compile("(a", 2, false, "test", &r, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "is not valid at byte 2"));
    strbuf_free(&text);
}

/* 2 to the power of 60 ways to read the text, of which none fits. */
static void backtracking_ends(void **state)
{
    (void)state;
    strbuf text = times(60, 'a', "b");
    regex *r = compile("(a|a)+$");
    regex_scratch *scratch = regex_scratch_create();
    size_t begin, end;
    bool found;
    assert_int_equal(
        regex_find(r, scratch, text.data, text.length, 0, &found, &begin, &end, &error),
        QP_UNSUPPORTED);
    assert_non_null(strstr(error.message,
                           "matching the pre-tokenizer's expression on 61 bytes of text failed"));
    regex_scratch_free(scratch);
    regex_free(r);
    strbuf_free(&text);
}

/* What real expressions do with a long run is far below the limit. */
static void long_runs_are_read(void **state)
{
    (void)state;
    strbuf text = times(200000, ' ', "x");
    regex *r = compile("\\s+(?!\\S)|\\s+");
    regex_scratch *scratch = regex_scratch_create();
    size_t begin = 9, end = 9;
    bool found = false;
    assert_ok(regex_find(r, scratch, text.data, text.length, 0, &found, &begin, &end, &error));
    assert_true(found);
    assert_int_equal(begin, 0);
    assert_int_equal(end, 199999);
    regex_scratch_free(scratch);
    regex_free(r);
    strbuf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_have_a_length),
        cmocka_unit_test(backtracking_ends),
        cmocka_unit_test(long_runs_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
