/* Parts of the server without sockets: requests from bytes, calls of tools from text, keys. */
#include "server/json_memory.h"
#include "server/http_parser.h"
#include "server/keys.h"
#include "server/tool_calls.h"

#include "test.h"

#include <string.h>

/* ---- Requests ------------------------------------------------------------------------------ */

/* Feeds the text in pieces of `step` bytes; how many were taken. */
static size_t feed(http_parser *p, const char *text, size_t step)
{
    size_t length = strlen(text), at = 0;
    while (at < length) {
        size_t n = step < length - at ? step : length - at;
        size_t taken = http_parser_feed(p, text + at, n);
        at += taken;
        if (taken < n) break;
    }
    return at;
}

static void requests_in_any_pieces(void **state)
{
    (void)state;
    static const char text[] = "POST /a%20b?c=%41 HTTP/1.1\r\nHost: x\r\nX-Thing:  two words \r\n"
                               "Content-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n\r\n";
    static const char chunked[] = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                                  "3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: z\r\n\r\n";
    for (size_t step = 1; step < sizeof text; step++) {
        http_parser p = {.body_most = 100};
        size_t taken = feed(&p, text, step);
        assert_int_equal(p.state, HTTP_DONE);
        assert_int_equal(taken, strstr(text, "GET") - text);
        assert_string_equal(p.method, "POST");
        assert_string_equal(p.target, "/a b");
        assert_string_equal(p.query, "c=%41");
        assert_string_equal(http_parser_header(&p, "x-thing"), "two words");
        assert_null(http_parser_header(&p, "trailer"));
        assert_string_equal(strbuf_text(&p.body), "hello");
        assert_true(p.keep_alive);
        http_parser_free(&p);
        feed(&p, chunked, step);
        assert_int_equal(p.state, HTTP_DONE);
        assert_string_equal(strbuf_text(&p.body), "hello");
        http_parser_free(&p);
    }
}

static void refused_requests(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
    } cases[] = {{"GET /\r\n\r\n", 400},
                 {"GET / HTTP/1.1 x\r\n\r\n", 400},
                 {"GET / HTTP/3.0\r\n\r\n", 505},
                 {"GET x HTTP/1.1\r\n\r\n", 400},
                 {"GET /%0 HTTP/1.1\r\n\r\n", 400},
                 {"GET /%0a HTTP/1.1\r\n\r\n", 400},
                 {"G(T / HTTP/1.1\r\n\r\n", 400},
                 {"GET / HTTP/1.1\r\nA : b\r\n\r\n", 400},
                 {"GET / HTTP/1.1\r\n: b\r\n\r\n", 400},
                 {"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", 400},
                 {"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n", 413},
                 {"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
                 {"POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", 400},
                 {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
                 {"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
                 {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400},
                 {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n", 413},
                 {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", 400}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        http_parser p = {.body_most = 100};
        feed(&p, cases[i].text, 7);
        assert_int_equal(p.state, HTTP_REFUSED);
        assert_int_equal(p.status, cases[i].status);
        assert_non_null(p.problem);
        http_parser_free(&p);
    }
}

/* ---- Calls of tools ------------------------------------------------------------------------ */

static const tool_names weather = {(const char *[]){"weather"}, 1};

static void check_call(const char *text, const char *name, const char *arguments, int count)
{
    bool call;
    size_t certain = tool_calls_scan(text, strlen(text), true, true, &call);
    assert_true(call);
    cJSON *calls = tool_calls_parse(text + certain, strlen(text) - certain, &weather);
    assert_non_null(calls);
    assert_int_equal(cJSON_GetArraySize(calls), count);
    const cJSON *first = cJSON_GetArrayItem(calls, 0);
    assert_string_equal(json_get(first, "name")->valuestring, name);
    assert_string_equal(json_get(first, "arguments")->valuestring, arguments);
    assert_int_equal(strlen(json_get(first, "id")->valuestring), 9);
    cJSON_Delete(calls);
}

static void forms_of_families(void **state)
{
    (void)state;
    const char *oslo = "{\"in\":\"Oslo\"}";
    check_call("{\"name\": \"weather\", \"parameters\": {\"in\": \"Oslo\"}}", "weather", oslo, 1);
    check_call("<|python_tag|>{\"name\":\"weather\",\"parameters\":{\"in\":\"Oslo\"}}", "weather",
               oslo, 1);
    check_call("<function=weather>{\"in\": \"Oslo\"}</function>", "weather", oslo, 1);
    check_call("I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"in\": \"Oslo\"}}\n"
               "</tool_call>\n<tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>",
               "weather", oslo, 2);
    check_call("[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"in\": \"Oslo\"}}]",
               "weather", oslo, 1);
    check_call("[TOOL_CALLS]weather[ARGS]{\"in\": \"Oslo\"}", "weather", oslo, 1);
    check_call(
        "<tool_call>{\"name\":\"w\",\"arguments\":\"{\\\"in\\\":\\\"Oslo\\\"}\"}</tool_call>", "w",
        oslo, 1);
}

static void arguments_keep_their_numbers(void **state)
{
    (void)state;
    const char *numbers = "{\"id\":1234567890123456789,\"ms\":1000000000000000,\"x\":1.0}";
    check_call("<tool_call>{\"name\": \"w\", \"arguments\": {\"id\": 1234567890123456789, "
               "\"ms\": 1000000000000000, \"x\": 1.0}}</tool_call>",
               "w", numbers, 1);
    check_call("{\"name\": \"weather\", \"parameters\": \"{\\\"id\\\": 1234567890123456789, "
               "\\\"ms\\\": 1000000000000000, \\\"x\\\": 1.0}\"}",
               "weather", numbers, 1);
}

/* A model may end a call in the middle of a character. */
static void arguments_are_utf8(void **state)
{
    (void)state;
    check_call("<tool_call>{\"name\": \"w\", \"arguments\": {\"in\": \"\xc3\xa5\xe4\xb8 "
               "\xff\"}}</tool_call>",
               "w", "{\"in\":\"\xc3\xa5\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\"}", 1);
}

/* A NUL would end the text in cJSON's trees; the escape of a backslash before "u0000" is none. */
static void arguments_are_not_cut_at_a_nul(void **state)
{
    (void)state;
    const char *whole = "{\"in\":\"a\xef\xbf\xbd"
                        "b\",\"to\":\"\\\\u0000\"}";
    check_call("<tool_call>{\"name\": \"w\", \"arguments\": {\"in\": \"a\\u0000b\", "
               "\"to\": \"\\\\u0000\"}}</tool_call>",
               "w", whole, 1);
    check_call("{\"name\": \"weather\", \"parameters\": \"{\\\"in\\\": \\\"a\\\\u0000b\\\", "
               "\\\"to\\\": \\\"\\\\\\\\u0000\\\"}\"}",
               "weather", whole, 1);
    static const char raw[] = "{\"name\": \"weather\", \"parameters\": {\"in\": \"a\0b\"}}";
    cJSON *calls = tool_calls_parse(raw, sizeof raw - 1, &weather);
    assert_string_equal(json_get(calls->child, "arguments")->valuestring, "{\"in\":\"a\xef\xbf\xbd"
                                                                          "b\"}");
    cJSON_Delete(calls);
}

/* An object after other text is content, however the text comes in pieces. */
static void objects_in_content(void **state)
{
    (void)state;
    static const char *const rests[] = {"{\"name\": ", " {\"name\": ", "\n\n{"};
    for (size_t i = 0; i < sizeof rests / sizeof *rests; i++) {
        bool call;
        const size_t length = strlen(rests[i]);
        assert_int_equal(tool_calls_scan(rests[i], length, false, false, &call), length);
        assert_false(call);
        assert_int_equal(tool_calls_scan(rests[i], length, true, false, &call), 0);
        assert_true(call);
    }
}

static void no_calls(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"name\": \"other\", \"parameters\": {}}",
                                        "{\"name\": \"weather\"}",
                                        "{ no JSON",
                                        "<tool_call>nothing</tool_call>",
                                        "[TOOL_CALLS]",
                                        "<function=>{}</function>"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bool call;
        size_t certain = tool_calls_scan(texts[i], strlen(texts[i]), true, true, &call);
        assert_true(call);
        assert_null(tool_calls_parse(texts[i] + certain, strlen(texts[i]) - certain, &weather));
    }
}

/* Text as it comes is never handed out further than the call that it turns out to hold. */
static void beginnings_are_held_back(void **state)
{
    (void)state;
    static const char text[] = "a < b [TO] <tool <tool_call>";
    size_t begin = (size_t)(strstr(text, "<tool_call>") - text);
    for (size_t length = 0; length < sizeof text; length++) {
        bool call;
        size_t certain = tool_calls_scan(text, length, true, false, &call);
        assert_true(certain <= length && certain <= begin);
        assert_int_equal(call, length == sizeof text - 1);
    }
    bool call;
    assert_int_equal(tool_calls_scan("a <tool", 7, true, false, &call), 2);
    assert_int_equal(tool_calls_scan("a <tool", 7, true, true, &call), 7);
}

/* ---- Keys ---------------------------------------------------------------------------------- */

static void keys_are_whole(void **state)
{
    (void)state;
    api_keys keys = {0};
    uint64_t owner, first = 0;
    http_parser p = {.body_most = 1};
    assert_int_equal(keys_read(&keys, NULL, "secret", NULL), QP_OK);
    static const struct {
        const char *header;
        bool good;
    } cases[] = {{"Authorization: Bearer secret", true},
                 {"authorization: bearer  secret", true},
                 {"X-Api-Key: secret", true},
                 {"Authorization: Bearer secre", false},
                 {"Authorization: Bearer secrets", false},
                 {"Authorization: secret", false},
                 {"Authorization: Bearer", false},
                 {"A: b", false},
                 {"Authorization: Bearer secretsecret", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        feed(&p, "GET / HTTP/1.1\r\n", 100);
        feed(&p, cases[i].header, 100);
        feed(&p, "\r\n\r\n", 100);
        assert_int_equal(p.state, HTTP_DONE);
        assert_int_equal(keys_accept(&keys, &p, &owner), cases[i].good);
        assert_int_equal(owner != 0, cases[i].good);
        if (cases[i].good && !first) first = owner;
        if (cases[i].good) assert_true(owner == first);
        http_parser_free(&p);
    }
    keys_free(&keys);
}

static void failed_allocations_are_seen(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip_because("the sanitizers end the process where an allocation fails");
#endif
    json_memory_watch();
    json_memory_clear();
    cJSON_free(cJSON_malloc(8));
    assert_false(json_memory_failed());
    assert_null(cJSON_malloc(SIZE_MAX / 4));
    assert_true(json_memory_failed());
    json_memory_clear();
    assert_false(json_memory_failed());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests_in_any_pieces),
                                       cmocka_unit_test(refused_requests),
                                       cmocka_unit_test(forms_of_families),
                                       cmocka_unit_test(arguments_keep_their_numbers),
                                       cmocka_unit_test(arguments_are_utf8),
                                       cmocka_unit_test(arguments_are_not_cut_at_a_nul),
                                       cmocka_unit_test(objects_in_content),
                                       cmocka_unit_test(no_calls),
                                       cmocka_unit_test(beginnings_are_held_back),
                                       cmocka_unit_test(keys_are_whole),
                                       cmocka_unit_test(failed_allocations_are_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
