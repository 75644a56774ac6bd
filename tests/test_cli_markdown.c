/* Markdown on a terminal: what is shown, however the text arrives. */
#include "test.h"

#include "cli/markdown.h"

#include <locale.h>

/* What the terminal gets for a text that arrives in pieces of about `step` bytes. */
static char *draw(const char *text, size_t step, int columns)
{
    markdown m = {0};
    strbuf out = {0};
    const size_t length = strlen(text);
    for (size_t at = 0, size; at < length; at += size) {
        size = at + step < length ? step : length - at;
        while (at + size < length && (text[at + size] & 0xc0) == 0x80)
            size++;
        markdown_put(&m, text + at, size, columns, &out);
    }
    markdown_end(&m, columns, &out);
    markdown_free(&m);
    strbuf_puts(&out, "");
    return strbuf_take(&out);
}

/* The same without styles, for a terminal that shows words moved to the next line. */
static char *shown(const char *text, size_t step, int columns)
{
    char *drawn = draw(text, step, columns), *to = drawn;
    for (const char *at = drawn; *at;) {
        int back, taken = 0;
        if (*at != '\x1b') {
            *to++ = *at++;
        } else if (sscanf(at, "\x1b[%dD\x1b[K%n", &back, &taken) == 1 && taken > 0) {
            for (at += taken; back > 0; back--) /* columns of one character each */
                while ((*--to & 0xc0) == 0x80) {
                }
            while (to > drawn && to[-1] == ' ')
                to--;
        } else {
            at += strcspn(at, "m") + 1;
        }
    }
    *to = '\0';
    return drawn;
}

static void styles_and_blocks(void **state)
{
    (void)state;
    static const struct {
        const char *text, *drawn;
    } cases[] = {
        {"plain", "plain"},
        {"a **b** c", "a \x1b[0;1mb\x1b[0m c"},
        {"*a* _b_ ***c***", "\x1b[0;3ma\x1b[0m \x1b[0;3mb\x1b[0m \x1b[0;1;3mc\x1b[0m"},
        {"`x ** y` ~~no~~", "\x1b[0;36mx ** y\x1b[0m \x1b[0;9mno\x1b[0m"},
        {"**a `b` c**", "\x1b[0;1ma \x1b[0;1;36mb\x1b[0;1m c\x1b[0m"},
        {"# Head *ing*\nx", "\x1b[0;1mHead \x1b[0;1;3ming\x1b[0m\nx"},
        {"> said", "\x1b[0;2m│ said\x1b[0m"},
        {"- a\n* b\n  + c\n1. d\n12) e", "• a\n• b\n  • c\n1. d\n12) e"},
        {"```c\nint *p; **\n```\n*x*",
         "\x1b[0;2m```c\x1b[0m\n\x1b[0;36mint *p; **\x1b[0m\n\x1b[0;2m```\x1b[0m\n"
         "\x1b[0;3mx\x1b[0m"},
        /* What is no mark stays. */
        {"2 * 3 * 4, a*b, snake_case_name, #no, 3.14",
         "2 * 3 * 4, a*b, snake_case_name, #no, 3.14"},
        {"**open\n`open\n\\*no\\*", "**open\n`open\n*no*"},
        {"| no table\nx", "| no table\nx"},
        {"-5 degrees\n+1", "-5 degrees\n+1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *drawn = draw(cases[i].text, 1000, 60);
        assert_string_equal(drawn, cases[i].drawn);
        free(drawn);
    }
}

static void tables_have_the_windows_width(void **state)
{
    (void)state;
    static const char table[] = "| Name | Use |\n|---|---|\n| C | systems, and what lies below |\n"
                                "| longer than the first | `x` \\| y |\nafter";
    static const char wide[] = "Name       │ Use\n"
                               "───────────┼───────────────────────────────────────────────\n"
                               "C          │ systems, and what lies below\n"
                               "longer     │ x | y\n"
                               "than the   │ \n"
                               "first      │ \n"
                               "after";
    static const char narrow[] = "Name   │ Use\n"
                                 "───────┼─────────────\n"
                                 "C      │ systems, and\n"
                                 "       │ what lies\n"
                                 "       │ below\n"
                                 "longer │ x | y\n"
                                 "than   │ \n"
                                 "the    │ \n"
                                 "first  │ \n"
                                 "after";
    char *found = shown(table, 1000, 60);
    assert_string_equal(found, wide);
    free(found);
    found = shown(table, 1000, 22);
    assert_string_equal(found, narrow);
    free(found);
    static const char sided[] =
        "| Left | Right | Middle |\n|---|--:|:-:|\n| reads a file from the disk, and checks "
        "each of its lines | 12 | x |\n| y | 345,678 | z |\nafter";
    static const char sides[] = "Left                   │    Right │  Middle\n"
                                "───────────────────────┼──────────┼──────────\n"
                                "reads a file from the  │       12 │     x\n"
                                "disk, and checks each  │          │ \n"
                                "of its lines           │          │ \n"
                                "y                      │  345,678 │     z\n"
                                "after";
    found = shown(sided, 1000, 46);
    assert_string_equal(found, sides);
    free(found);
    found = shown(table, 1000, 8); /* no room for a table: it is text */
    assert_true(strncmp(found, "| Name", 6) == 0);
    free(found);
}

/* Whatever the pieces are, the terminal shows the same in the end. */
/* The rows that follow fit into a window that became narrower, with all their words. */
static void tables_follow_a_narrower_window(void **state)
{
    (void)state;
    markdown m = {0};
    strbuf out = {0};
    const char *table = "| a | b |\n|---|---|\n| one | some words that have room at first |\n";
    const char *row = "| two | other words that have less |\n";
    markdown_put(&m, table, strlen(table), 100, &out);
    strbuf_clear(&out);
    markdown_put(&m, row, strlen(row), 24, &out);
    markdown_end(&m, 24, &out);
    for (const char *line = strbuf_text(&out); *line; line += strcspn(line, "\n") + 1) {
        int width = 0;
        for (const char *at = line; *at != '\n'; at++) {
            if (*at == '\x1b')
                at += strcspn(at, "m");
            else
                width += (*at & 0xc0) != 0x80;
        }
        assert_true(width < 24);
    }
    for (const char *word = "other words that have less"; *word; word += strcspn(word, " ")) {
        word += strspn(word, " ");
        char one[8] = {0};
        memcpy(one, word, strcspn(word, " "));
        assert_non_null(strstr(strbuf_text(&out), one));
    }
    strbuf_free(&out);
    markdown_free(&m);
}

static void pieces_do_not_matter(void **state)
{
    (void)state;
    static const char *const marks[] = {
        "*",  "**", "`",    "```", "_",  "~~",
        "\\", "#",  "- ",   "|",   "\n", "\n| a | b |\n|---|---|\n| c **d** | `e` |\n",
        "> ", " ",  "word", "1.",  "é",  "---",
        "a"};
    uint32_t random = 1;
    for (int round = 0; round < 300; round++) {
        strbuf text = {0};
        for (int i = 0; i < 60; i++) {
            random = random * 1664525 + 1013904223;
            strbuf_puts(&text, marks[(random >> 16) % (sizeof marks / sizeof *marks)]);
        }
        const int columns = 4 + round % 60;
        char *whole = shown(strbuf_text(&text), 10000, columns);
        for (size_t step = 1; step < 12; step += 5) {
            char *pieces = shown(strbuf_text(&text), step, columns);
            assert_string_equal(pieces, whole);
            free(pieces);
        }
        free(whole);
        strbuf_free(&text);
    }
}

/* A mark is held back until it is certain, and other text is not. */
static void text_is_shown_at_once(void **state)
{
    (void)state;
    static const struct {
        const char *text, *shown;
    } cases[] = {{"hello wor", "hello wor"},
                 {"see **bo", "see "},
                 {"see **bold**,", "see \x1b[0;1mbold\x1b[0m,"},
                 {"- ite", "• ite"},
                 {"12", ""},
                 {"12 is", "12 is"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        markdown m = {0};
        strbuf out = {0};
        markdown_put(&m, cases[i].text, strlen(cases[i].text), 60, &out);
        assert_string_equal(strbuf_text(&out), cases[i].shown);
        strbuf_free(&out);
        markdown_free(&m);
    }
}

int main(void)
{
    setlocale(LC_CTYPE, "C.UTF-8");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(styles_and_blocks),
        cmocka_unit_test(tables_have_the_windows_width),
        cmocka_unit_test(tables_follow_a_narrower_window),
        cmocka_unit_test(pieces_do_not_matter),
        cmocka_unit_test(text_is_shown_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
