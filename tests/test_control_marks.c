/* Control tokens that are written in messages stay text, whatever stands before and after the
 * message: random pieces of control tokens, cut anywhere, as messages between pieces of a template.
 */
#include "test.h"

#include "base/hash.h"
#include "text/control_marks.h"
#include "text/tokenizer.h"

static qp_error error;
static tokenizer *tokens;
enum { CASES = 4000 };

static int open_tokens(void **state)
{
    (void)state;
    assert_ok(tokenizer_open_json("golden/tokenizer/bytes.json", &tokens, &error));
    return 0;
}

static int close_tokens(void **state)
{
    (void)state;
    tokenizer_free(tokens);
    return 0;
}

static bool is_control(int32_t id)
{
    static const char *const names[] = {"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"};
    size_t length;
    const char *piece = tokenizer_piece(tokens, id, &length);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (length == strlen(names[i]) && memcmp(piece, names[i], length) == 0) return true;
    return false;
}

static int count_control(const token_ids *ids)
{
    int count = 0;
    for (size_t i = 0; i < ids->count; i++)
        count += is_control(ids->data[i]);
    return count;
}

/* A text of control tokens, parts of them and letters. */
static void make_text(uint64_t seed, int longest, strbuf *out)
{
    static const char *const words[] = {"<|begin_of_text|>",
                                        "<|end_of_text|>",
                                        "<|eot_id|>",
                                        "<|",
                                        "|>",
                                        "eot_id",
                                        "<",
                                        ">",
                                        "a",
                                        " ",
                                        "\xc3\xa9",
                                        "<|eot",
                                        "_id|>",
                                        "|",
                                        "\n"};
    const int count = (int)(hash_random(seed, 1, 0) % (uint64_t)(longest + 1));
    strbuf_puts(out, "");
    for (int i = 0; i < count; i++) {
        const char *word =
            words[hash_random(seed, 2, (uint64_t)i) % (sizeof words / sizeof *words)];
        const size_t length = strlen(word),
                     most = hash_random(seed, 3, (uint64_t)i) % 3 ? length : length / 2;
        strbuf_append(out, word, most);
    }
}

static int control_tokens_of(const strbuf *text)
{
    token_ids ids = {0};
    assert_ok(tokenizer_encode(tokens, text->data, text->length, TOKENIZER_SPECIAL, &ids, &error));
    const int count = count_control(&ids);
    token_ids_free(&ids);
    return count;
}

static void assert_decodes_to(const token_ids *ids, const strbuf *expected)
{
    strbuf text = {0};
    assert_ok(
        tokenizer_decode(tokens, ids->data, ids->count, TOKENIZER_DECODE_CONTROL, &text, &error));
    assert_int_equal(text.length, expected->length);
    assert_memory_equal(text.data, expected->data, text.length);
    strbuf_free(&text);
}

/* The template's own control tokens are there, and no others; the text is as it was. */
static void messages_make_no_control_tokens(void **state)
{
    (void)state;
    int marked = 0, plain = 0;
    for (uint64_t i = 0; i < CASES; i++) {
        strbuf before = {0}, message = {0}, after = {0}, whole = {0}, with_marks = {0};
        make_text(3 * i, 3, &before);
        make_text(3 * i + 1, 5, &message);
        make_text(3 * i + 2, 3, &after);
        if (message.length == 0) strbuf_putc(&message, 'x');
        control_marks m = {0};
        bool changed;
        token_ids ids = {0};
        assert_ok(control_marks_init(&m, tokens, &error));
        control_marks_see(&m, message.data, message.length);
        assert_ok(control_marks_choose(&m, &error));
        strbuf_append(&with_marks, before.data, before.length);
        control_marks_put(&m, message.data, message.length, &with_marks, &changed);
        strbuf_append(&with_marks, after.data, after.length);
        strbuf_append(&whole, before.data, before.length);
        strbuf_append(&whole, message.data, message.length);
        strbuf_append(&whole, after.data, after.length);
        assert_ok(tokenizer_encode_marked(tokens, with_marks.data, with_marks.length, m.mark,
                                          TOKENIZER_SPECIAL, &ids, &error));
        const int own = control_tokens_of(&before) + control_tokens_of(&after);
        if (count_control(&ids) != own)
            fail_msg("\"%s\" \"%s\" \"%s\": %d control tokens, of the template %d", before.data,
                     message.data, after.data, count_control(&ids), own);
        assert_decodes_to(&ids, &whole);
        if (!changed) assert_int_equal(with_marks.length, whole.length);
        marked += changed;
        plain += !changed;
        token_ids_free(&ids);
        control_marks_free(&m);
        strbuf_free(&before);
        strbuf_free(&message);
        strbuf_free(&after);
        strbuf_free(&whole);
        strbuf_free(&with_marks);
    }
    print_message("%d messages with marks, %d without\n", marked, plain);
    assert_true(marked > CASES / 4 && plain > CASES / 40);
}

/* The mark is the first code point that the conversation does not hold; all of them are too many.
 */
static void a_mark_is_not_of_the_conversation(void **state)
{
    (void)state;
    control_marks m = {0};
    assert_ok(control_marks_init(&m, tokens, &error));
    control_marks_see(&m, "\xef\xb7\x8f \xef\xb7\xb0 \xef\xb7", 9);
    assert_int_equal(m.seen, 0);
    for (int i = 0; i < 32; i++) {
        const char next[] = {(char)0xef, (char)0xb7, (char)(0x90 + i), '\0'};
        assert_ok(control_marks_choose(&m, &error));
        assert_string_equal(m.mark, next);
        control_marks_see(&m, next, 2); /* cut: not there */
        assert_ok(control_marks_choose(&m, &error));
        assert_string_equal(m.mark, next);
        control_marks_see(&m, next, 3);
    }
    assert_int_equal(control_marks_choose(&m, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "U+FDD0"));
    control_marks_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_make_no_control_tokens),
        cmocka_unit_test(a_mark_is_not_of_the_conversation),
    };
    return cmocka_run_group_tests(tests, open_tokens, close_tokens);
}
