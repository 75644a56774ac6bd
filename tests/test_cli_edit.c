/* The line editor without a terminal: text and cursor, keys, drawing, wrapping, history. */
#include "test.h"

#include "cli/edit_keys.h"
#include "cli/edit_screen.h"
#include "cli/edit_text.h"
#include "cli/line_history.h"
#include "cli/word_wrap.h"

#include <locale.h>
#include <unistd.h>

/* ---- Text ---------------------------------------------------------------------------------- */

static edit_text text_of(const char *text)
{
    edit_text t = {0};
    edit_set(&t, text, strlen(text));
    return t;
}

/* What a person sees as one character is one step, whatever it is made of. */
static void clusters_are_characters(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int width;
    } cases[] = {
        {"a", 1},
        {"\xc3\xa9", 1},                                     /* e with acute */
        {"e\xcc\x81", 1},                                    /* e and a combining acute */
        {"\xe6\x97\xa5", 2},                                 /* a Chinese character */
        {"\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd", 2},             /* thumb, skin tone */
        {"\xf0\x9f\x87\xab\xf0\x9f\x87\xb7", 2},             /* the flag of France */
        {"\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb", 2}, /* woman, joiner, laptop */
        {"\t", 4},
        {"\xff", 1}, /* no UTF-8 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        int width;
        snprintf(text, sizeof text, "%sx", cases[i].text);
        if (edit_cluster(text, strlen(text), &width) != strlen(cases[i].text) ||
            width != cases[i].width)
            fail_msg("case %zu: width %d", i, width);
        edit_text t = text_of(text);
        assert_int_equal(edit_previous(&t, edit_previous(&t, t.cursor)), 0);
        strbuf_free(&t.text);
    }
}

static void text_is_edited(void **state)
{
    (void)state;
    edit_text t = text_of("one two\nthr\xc3\xa9");
    assert_int_equal(edit_word_left(&t, t.cursor), 8);
    assert_int_equal(edit_word_left(&t, 8), 4);
    assert_int_equal(edit_word_right(&t, 0), 3);
    assert_int_equal(edit_line_start(&t, t.cursor), 8);
    assert_int_equal(edit_line_end(&t, 2), 7);
    assert_true(edit_up(&t));
    assert_int_equal(t.cursor, 4);
    assert_false(edit_up(&t));
    edit_insert(&t, "X", 1);
    assert_true(edit_down(&t));
    assert_int_equal(t.cursor, t.text.length); /* no fifth column there */
    assert_false(edit_down(&t));
    edit_transpose(&t);
    assert_string_equal(t.text.data, "one Xtwo\nth\xc3\xa9r");
    edit_remove(&t, 3, 9);
    assert_string_equal(t.text.data, "oneth\xc3\xa9r");
    assert_int_equal(t.cursor, 3);
    strbuf_free(&t.text);
}

static void pasted_text_is_cleaned(void **state)
{
    (void)state;
    strbuf out = {0};
    static const char pasted[] = "a\r\nb\rc\td\x1b[31m\x07\xff\xe6\x97\xa5\x7f";
    edit_clean(pasted, sizeof pasted - 1, &out);
    assert_string_equal(out.data, "a\nb\nc\td[31m\xef\xbf\xbd\xe6\x97\xa5");
    strbuf_free(&out);
}

/* ---- Keys ---------------------------------------------------------------------------------- */

/* Gives bytes; -3 among them is time that passes. */
typedef struct typed {
    const char *bytes;
    size_t length, next;
} typed;

static int next_byte(void *context, int timeout_ms)
{
    typed *t = context;
    if (t->next == t->length) return timeout_ms < 0 ? BYTE_END : BYTE_TIMEOUT;
    return (unsigned char)t->bytes[t->next++];
}

static void bytes_are_keys(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        int key;
        const char *carried;
    } cases[] = {
        {"a", KEY_TEXT, "a"},
        {"\xe6\x97\xa5", KEY_TEXT, "\xe6\x97\xa5"},
        {"\r", KEY_ENTER, ""},
        {"\x03", KEY_CTRL_C, ""},
        {"\x7f", KEY_BACKSPACE, ""},
        {"\x1b", KEY_ESCAPE, ""},
        {"\x1b\r", KEY_NEWLINE, ""},
        {"\x1b[13;2u", KEY_NEWLINE, ""},
        {"\x1b[A", KEY_UP, ""},
        {"\x1bOH", KEY_HOME, ""},
        {"\x1b[1~", KEY_HOME, ""},
        {"\x1b[3~", KEY_DELETE, ""},
        {"\x1b[1;5D", KEY_WORD_LEFT, ""},
        {"\x1b\x7f", KEY_ALT + KEY_BACKSPACE, ""},
        {"\x1b[200~a\rb\x1b[201~", KEY_PASTE, "a\nb"},
        {"\x1b[200~cut off", KEY_PASTE, "cut off"},
        {"\x1b[200~\x1b[201~", KEY_PASTE, ""},
        {"\x1b[99z", KEY_UNKNOWN, ""},
        {"\x1b[;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;", KEY_UNKNOWN, ""},
        {"\xe6\x97", KEY_UNKNOWN, NULL},
        {"\xff", KEY_UNKNOWN, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        typed t = {.bytes = cases[i].bytes, .length = strlen(cases[i].bytes)};
        strbuf carried = {0};
        int key = key_read(next_byte, &t, &carried);
        if (key != cases[i].key) fail_msg("case %zu: key %d", i, key);
        if (cases[i].carried) assert_string_equal(strbuf_text(&carried), cases[i].carried);
        assert_int_equal(t.next, t.length);
        assert_int_equal(key_read(next_byte, &t, &carried), KEY_INPUT_ENDED);
        strbuf_free(&carried);
    }
}

/* ---- Screen -------------------------------------------------------------------------------- */

static void assert_drawn(edit_screen *s, const edit_text *t, int columns, int lines,
                         const char *expected)
{
    strbuf out = {0};
    screen_draw(s, t, "> ", columns, lines, &out);
    assert_string_equal(out.data, expected);
    strbuf_free(&out);
}

static void a_message_is_drawn(void **state)
{
    (void)state;
    edit_screen s = {0};
    edit_text t = text_of("");
    assert_drawn(&s, &t, 10, 5, "\r\x1b[J> \r\x1b[2C");
    edit_insert(&t, "abcdefghij", 10); /* eight fit beside the prompt */
    assert_drawn(&s, &t, 10, 5, "\r\x1b[J> abcdefgh\r\n  ij\r\x1b[4C");
    edit_insert(&t, "\nk", 2);
    assert_drawn(&s, &t, 10, 5, "\x1b[1A\r\x1b[J> abcdefgh\r\n  ij\r\n. k\r\x1b[3C");
    t.cursor = 1;
    assert_drawn(&s, &t, 10, 5, "\x1b[2A\r\x1b[J> abcdefgh\r\n  ij\r\n. k\x1b[2A\r\x1b[3C");
    /* Wider, it is fewer rows. */
    assert_drawn(&s, &t, 20, 5, "\r\x1b[J> abcdefghij\r\n. k\x1b[1A\r\x1b[3C");
    t.cursor = t.text.length;
    assert_drawn(&s, &t, 20, 5, "\r\x1b[J> abcdefghij\r\n. k\r\x1b[3C");
    /* Narrower, the terminal has broken the first row in three. */
    assert_drawn(&s, &t, 5, 9, "\x1b[3A\r\x1b[J> abc\r\n  def\r\n  ghi\r\n  j\r\n. k\r\x1b[3C");
    /* Lower, the rows around the cursor are shown. */
    assert_drawn(&s, &t, 5, 2, "\x1b[4A\r\x1b[J  j\r\n. k\r\x1b[3C");
    t.cursor = 0;
    assert_drawn(&s, &t, 5, 2, "\x1b[1A\r\x1b[J> abc\r\n  def\x1b[1A\r\x1b[2C");
    strbuf out = {0};
    screen_leave(&s, &out);
    assert_string_equal(out.data, "\x1b[1B\r\n");
    strbuf_free(&out);
    screen_free(&s);
    strbuf_free(&t.text);
}

/* A cursor after a full row is in the next row, also before a line break. */
static void full_rows(void **state)
{
    (void)state;
    edit_screen s = {0};
    edit_text t = text_of("abc");
    assert_drawn(&s, &t, 5, 9, "\r\x1b[J> abc\r\n  \r\x1b[2C");
    edit_insert(&t, "\nd", 2);
    t.cursor = 3;
    assert_drawn(&s, &t, 5, 9, "\x1b[1A\r\x1b[J> abc\r\n  \r\n. d\x1b[1A\r\x1b[2C");
    t.cursor = 5;
    assert_drawn(&s, &t, 5, 9, "\x1b[1A\r\x1b[J> abc\r\n. d\r\x1b[3C");
    screen_free(&s);
    strbuf_free(&t.text);
}

/* ---- Wrapping ------------------------------------------------------------------------------ */

/* What goes on below is indented. */
static void wrapped_lines_are_indented(void **state)
{
    (void)state;
    word_wrap w = {.indent = 4};
    strbuf out = {0};
    const char text[] = "  a one two three\nabcdefghijkl";
    word_wrap_put(&w, text, strlen(text), 10, &out);
    assert_string_equal(
        strbuf_text(&out),
        "  a one t\x1b[1D\x1b[K\n    two t\x1b[1D\x1b[K\n    three\nabcdefghi\n    jkl");
    strbuf_free(&out);
    word_wrap_free(&w);
}

/* The text as it comes, `piece` bytes at a time, on 10 columns, the last of which stays free. */
static void assert_wrapped(const char *text, size_t piece, const char *expected)
{
    word_wrap w = {0};
    strbuf out = {0};
    for (size_t i = 0, n = strlen(text); i < n; i += piece)
        word_wrap_put(&w, text + i, n - i < piece ? n - i : piece, 10, &out);
    assert_string_equal(strbuf_text(&out), expected);
    strbuf_free(&out);
    word_wrap_free(&w);
}

static void words_wrap(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 20; piece += 6) {
        assert_wrapped("one two six", piece, "one two s\x1b[1D\x1b[K\nsix");
        assert_wrapped("one three six", piece, "one three\nsix");
        assert_wrapped("abcdefghijk l", piece, "abcdefghi\njk l");
        assert_wrapped("a\nb\n\nc", piece, "a\nb\n\nc");
        assert_wrapped("```\none two three four\n```\none two six", piece,
                       "```\none two three four\n```\none two s\x1b[1D\x1b[K\nsix");
        assert_wrapped("a ``` one six", piece, "a ``` one\nsix"); /* within a line: no fence */
    }
    assert_wrapped("\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5", 3,
                   "\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\n\xe6\x97\xa5");
    assert_wrapped("a\x1b[2Jb\x07", 9, "a\xef\xbf\xbd[2Jb\xef\xbf\xbd"); /* steers nothing */
}

/* ---- History ------------------------------------------------------------------------------- */

static void history_is_kept(void **state)
{
    (void)state;
    char folder[] = "/tmp/quipu-history-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a/b/history", folder);
    line_history h = {0};
    history_open(&h, path);
    history_add(&h, "one\ntwo \\n three\\");
    history_add(&h, "next");
    history_add(&h, "next");
    assert_int_equal(h.count, 2);
    history_free(&h);
    history_open(&h, path);
    assert_int_equal(h.count, 2);
    assert_string_equal(h.items[0], "one\ntwo \\n three\\");
    assert_int_equal(history_find(&h, 1, "two"), 0);
    assert_int_equal(history_find(&h, 1, "zwei"), -1);
    for (int i = 0; i < 2 * HISTORY_MOST; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        history_add(&h, text);
    }
    assert_int_equal(h.count, HISTORY_MOST);
    history_free(&h);
    history_open(&h, path); /* and is cut to what is kept */
    assert_string_equal(h.items[0], "1000");
    assert_string_equal(h.items[h.count - 1], "1999");
    history_free(&h);
    FILE *file = fopen(path, "r");
    int lines = 0;
    for (int c; (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    fclose(file);
    assert_int_equal(lines, HISTORY_MOST);
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clusters_are_characters),
        cmocka_unit_test(text_is_edited),
        cmocka_unit_test(pasted_text_is_cleaned),
        cmocka_unit_test(bytes_are_keys),
        cmocka_unit_test(a_message_is_drawn),
        cmocka_unit_test(full_rows),
        cmocka_unit_test(words_wrap),
        cmocka_unit_test(wrapped_lines_are_indented),
        cmocka_unit_test(history_is_kept),
    };
    setlocale(LC_CTYPE, "C.UTF-8"); /* widths of characters */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
