/* qp_text_stream: texts, thoughts and calls of tools from what a model writes, in pieces of any
 * size. text_stream_test.h has the notation. */
#include "engine_test.h"
#include "text_stream_test.h"

/* The transcript is the same for all pieces. */
static void check_length(const char *text, size_t length, const char *expected, bool thinking)
{
    for (size_t step = 1; step <= length; step++) {
        strbuf out = {0};
        qp_text_stream *s = open_text_stream(thinking);
        stream_text(s, text, length, step, &out);
        assert_string_equal(strbuf_text(&out), expected);
        qp_text_stream_close(s);
        strbuf_free(&out);
    }
}

static void check(const char *text, const char *expected)
{
    check_length(text, strlen(text), expected, true);
}

static void forms_of_families(void **state)
{
    (void)state;
    const char *one = "<weather({\"in\": \"Oslo\"})>";
    check("{\"name\": \"weather\", \"parameters\": {\"in\": \"Oslo\"}}", one);
    check("<|python_tag|>{\"name\":\"weather\",\"parameters\":{\"in\": \"Oslo\"}}", one);
    check("<function=weather>{\"in\": \"Oslo\"}</function>", one);
    check("I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"in\": \"Oslo\"}}\n"
          "</tool_call>\n<tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>",
          "I look.\n<weather({\"in\": \"Oslo\"})><b({})>");
    check("[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"in\": \"Oslo\"}}]", one);
    check("[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"arguments\": {\"a\": [1, {}]}, "
          "\"name\": \"g\"}] ",
          "<f({})><g({\"a\": [1, {}]})>");
    check("[TOOL_CALLS]weather[ARGS]{\"in\": \"Oslo\"}", one);
    check("[TOOL_CALLS]f{}[TOOL_CALLS]f{\"a\":1}", "<f({})><f({\"a\":1})>");
    check("<tool_call>{\"name\":\"w\",\"arguments\":\"{\\\"in\\\":\\\"Oslo\\\"}\"}</tool_call>",
          "<w({\"in\":\"Oslo\"})>");
    check("<tool_call>{\"name\":\"w\"}</tool_call>", "<w({})>");
    check("{\"name\":\"f\",\"parameters\":{\"s\":\"}\\\"{\"}}; {\"name\":\"f\",\"parameters\":{}}",
          "<f({\"s\":\"}\\\"{\"})><f({})>");
}

static void what_follows_a_call_is_kept(void **state)
{
    (void)state;
    check("<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nDone. {\"a\": 1}",
          "<f({})>Done. {\"a\": 1}");
    check("<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call><tool_call>{\"name\":\"g\",",
          "<f({})><g(!<tool_call>{\"name\":\"g\",>");
    check("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": ",
          "<f({\"a\":!<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": >");
    check("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\" 1}} more",
          "<f({\"a\" 1}!<tool_call>{\"name\":\"f\",\"arguments\":{\"a\" 1}}> more");
}

static void no_calls(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"name\": \"other\", \"parameters\": {}} and more",
                                        "{\"name\": \"weather\"}",
                                        " {\"answer\": {\"name\": \"weather\"}}",
                                        "{ no JSON",
                                        "A {\"name\": \"weather\", \"parameters\": {}}",
                                        "<tool_call>nothing</tool_call>",
                                        "[TOOL_CALLS]",
                                        "<|python_tag|>print(1)",
                                        "<function=>{}</function>",
                                        "a < b [TO] <tool <"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check(texts[i], texts[i]);
}

static void thoughts_stand_apart(void **state)
{
    (void)state;
    check("<think>\nSo:\n\n{}</think>\n\nYes.", "{So:\n\n{}}Yes.");
    check("Well <think>hm</think> no", "Well {hm}no");
    check("<think>\n\n</think>\n\nYes.", "Yes.");
    check("<think>cut o", "{cut o}");
    check("<think>a<tool_call></think>{\"name\":\"f\",\"parameters\":{}}", "{a<tool_call>}<f({})>");
    check_length("<think>a</think>b", 17, "<think>a</think>b", false);
}

static void check_channels(const char *text, const char *expected, bool thinking)
{
    for (size_t step = 1; step <= strlen(text); step++) {
        strbuf out = {0};
        qp_text_stream *s = open_channel_stream(thinking);
        stream_text(s, text, strlen(text), step, &out);
        assert_string_equal(strbuf_text(&out), expected);
        qp_text_stream_close(s);
        strbuf_free(&out);
    }
}

#define ANALYSIS "<|channel|>analysis<|message|>"
#define FINAL    "<|channel|>final<|message|>"
#define NEXT     "<|end|><|start|>assistant"
#define TO_F     "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"

static void channels_are_thoughts_calls_and_content(void **state)
{
    (void)state;
    check_channels(ANALYSIS "Hm <a>." NEXT FINAL "Yes: {}.", "{Hm <a>.}Yes: {}.", true);
    check_channels(FINAL "Yes.<|return|>", "Yes.", true);
    check_channels(ANALYSIS "So" NEXT TO_F "{\"a\": 1}<|call|>", "{So}<f({\"a\": 1})>", true);
    check_channels(" to=functions.weather<|channel|>commentary json<|message|>{}<|call|>",
                   "<weather({})>", true);
    check_channels(ANALYSIS "a" NEXT "<|channel|>commentary<|message|>I look." NEXT TO_F
                            "{}" NEXT FINAL "b",
                   "{a}I look.<f({})>b", true);
    check_channels(TO_F "{\"a\": ", "<f({\"a\":!{\"a\": >", true);
    check_channels(TO_F "print(1)" NEXT FINAL "b", "<f(!>print(1)b", true);
    check_channels(ANALYSIS "cut o", "{cut o}", true);
    check_channels("<|channel|>anal", "", true);
    check_channels("No channels <|at all", "No channels <|at all", true);
    check_channels(ANALYSIS "a" NEXT FINAL "b", ANALYSIS "a" NEXT FINAL "b", false);
}

static void stop_texts_end_all(void **state)
{
    (void)state;
    check("Yes.STOP no", "Yes.");
    check("<think>a STOP", "{a }");
    check("STO", "STO");
}

/* A model may end a call in the middle of a character; NULs are in no JSON. */
static void arguments_as_json(void **state)
{
    (void)state;
    static const char numbers[] =
        "{\"id\": 1234567890123456789, \"ms\": 1000000000000000, \"x\": 1.0}";
    static const struct {
        const char *text;
        size_t length;
        const char *printed;
    } cases[] = {
        {numbers, sizeof numbers - 1,
         "{\"id\":1234567890123456789,\"ms\":1000000000000000,\"x\":1.0}"},
        {"{\"in\": \"\xc3\xa5\xe4\xb8 \xff\"}", 16,
         "{\"in\":\"\xc3\xa5\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\"}"},
        {"{\"in\": \"a\\u0000b\", \"to\": \"\\\\u0000\"}", 35,
         "{\"in\":\"a\xef\xbf\xbd"
         "b\",\"to\":\"\\\\u0000\"}"},
        {"{\"in\": \"a\0b\"}", 13,
         "{\"in\":\"a\xef\xbf\xbd"
         "b\"}"},
        {"[1]", 3, NULL},
        {"{", 1, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *printed = tool_call_print_arguments(cases[i].text, cases[i].length);
        if (cases[i].printed) assert_non_null(printed);
        if (cases[i].printed)
            assert_string_equal(printed, cases[i].printed);
        else
            assert_null(printed);
        free(printed);
    }
}

/* ---- tokens -------------------------------------------------------------------------------- */

static qp_error error;

static void tokens_become_text(void **state)
{
    (void)state;
    qp_vocabulary *v;
    qp_tokens ids = {0};
    qp_text_stream *s;
    qp_text_piece piece = {.size = sizeof piece};
    qp_finish finish;
    const char *stop, *stops[] = {"cat sat"};
    strbuf text = {0};
    assert_ok(qp_vocabulary_open("golden/models/llama-text.gguf", &v, &error));
    assert_ok(qp_tokenize(v, "the cat sat \xe2\x82\xac", 15, QP_BOS_NEVER, &ids, &error));
    const qp_sampling sampling = {.size = sizeof sampling, .stops = stops, .n_stops = 1};
    qp_text_stream_options options = {.size = sizeof options};
    for (int stopped = 0; stopped < 2; stopped++) {
        options.sampling = stopped ? &sampling : NULL;
        assert_ok(qp_text_stream_open(v, &options, &s, &error));
        strbuf_clear(&text);
        for (size_t i = 0; i < ids.count; i++) {
            assert_ok(qp_text_stream_add(s, ids.data[i], &error));
            while (qp_text_stream_next(s, &piece))
                strbuf_append(&text, piece.text, piece.length);
        }
        assert_int_equal(qp_text_stream_ended(s, &finish, &stop), stopped);
        assert_ok(qp_text_stream_end(s, &error));
        while (qp_text_stream_next(s, &piece))
            strbuf_append(&text, piece.text, piece.length);
        const char *expected = stopped ? "the " : "the cat sat \xe2\x82\xac";
        assert_non_null(strstr(strbuf_text(&text), expected));
        if (stopped) assert_string_equal(stop, "cat sat");
        if (stopped) assert_int_equal(finish, QP_FINISH_STOP_TEXT);
        qp_text_stream_close(s);
    }
    strbuf_free(&text);
    qp_tokens_free(&ids);
    qp_vocabulary_close(v);
}

static void refusals(void **state)
{
    (void)state;
    const char *empty = "";
    const qp_sampling sampling = {.size = sizeof sampling, .stops = &empty, .n_stops = 1};
    const qp_text_stream_options options = {.size = sizeof options, .sampling = &sampling};
    qp_text_stream *s;
    assert_int_equal(qp_text_stream_open(NULL, &options, &s, &error), QP_INVALID);
    assert_null(s);
    assert_int_equal(qp_text_stream_open(NULL, NULL, &s, &error), QP_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_of_families),
        cmocka_unit_test(what_follows_a_call_is_kept),
        cmocka_unit_test(no_calls),
        cmocka_unit_test(thoughts_stand_apart),
        cmocka_unit_test(channels_are_thoughts_calls_and_content),
        cmocka_unit_test(stop_texts_end_all),
        cmocka_unit_test(arguments_as_json),
        cmocka_unit_test(tokens_become_text),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
