/* quipu load without a network: replies and events cut at every byte, answers, prompts, traces,
 * addresses. */
#include "test.h"

#include "load/answer.h"
#include "load/event_stream.h"
#include "load/http_reply.h"
#include "load/load.h"
#include "load/prompt.h"
#include "load/trace_file.h"
#include "load/url.h"

static qp_status collect(void *context, const char *bytes, size_t length, qp_error *error)
{
    (void)error;
    strbuf_append(context, bytes, length);
    return QP_OK;
}

/* Reads `text` in two pieces, cut at `cut`; the body goes to `body`. */
static qp_status read_reply(const char *text, size_t cut, http_reply *reply, strbuf *body,
                            size_t *used, qp_error *error)
{
    size_t length = strlen(text), first, second = 0;
    *reply = (http_reply){0};
    qp_status status = http_reply_read(reply, text, cut, &first, collect, body, error);
    if (status == QP_OK && first == cut)
        status = http_reply_read(reply, text + cut, length - cut, &second, collect, body, error);
    *used = first + second;
    return status;
}

static void test_replies(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t after; /* bytes that belong to the next reply */
        int status;
        bool done, close;
        const char *body;
    } rows[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP", 4, 200, true, false, "hello"},
        {"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n"
         "0\r\nTrailer: x\r\n\r\n",
         0, 200, true, false, "abc0123456789"},
        {"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 0, 503, true, true,
         ""},
        {"HTTP/1.0 200 OK\r\n\r\nto the end", 0, 200, false, true, "to the end"},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 None\r\n\r\n", 0, 204, true, false, ""},
        {"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 0, 200, true, false, "ok"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t cut = 0; cut <= strlen(rows[i].text) - rows[i].after; cut++) {
            http_reply reply;
            strbuf body = {0};
            qp_error error = {0};
            size_t used;
            assert_int_equal(read_reply(rows[i].text, cut, &reply, &body, &used, &error), QP_OK);
            assert_int_equal(used, strlen(rows[i].text) - rows[i].after);
            assert_int_equal(reply.status, rows[i].status);
            assert_int_equal(reply.state == HTTP_DONE, rows[i].done);
            assert_int_equal(reply.close, rows[i].close);
            assert_string_equal(strbuf_text(&body), rows[i].body);
            assert_int_equal(http_reply_close(&reply, &error), QP_OK);
            strbuf_free(&body);
        }
    }
}

static void test_bad_replies(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "HTTP/2 200 OK\r\n",
        "hello\r\n",
        "HTTP/1.1 20 OK\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        http_reply reply;
        strbuf body = {0};
        qp_error error = {0};
        size_t used;
        assert_int_not_equal(read_reply(rows[i], 0, &reply, &body, &used, &error), QP_OK);
        assert_true(*error.message);
        strbuf_free(&body);
    }
    http_reply cut = {0};
    qp_error error;
    assert_int_equal(http_reply_close(&cut, &error), QP_IO);
}

static qp_status bracket(void *context, const char *data, size_t length, qp_error *error)
{
    (void)error;
    strbuf_printf(context, "[%.*s]", (int)length, data);
    return QP_OK;
}

static void test_events(void **state)
{
    (void)state;
    static const char text[] = ": comment\r\ndata: one\r\n\r\nevent: x\rdata:two\rdata: more\r\r"
                               "data: three\nid: 4\n\ndata:\n\n\ndata: unfinished\n";
    for (size_t cut = 0; cut < sizeof text; cut++) {
        event_stream stream = {0};
        strbuf out = {0};
        size_t rest = sizeof text - 1 - (cut < sizeof text - 1 ? cut : sizeof text - 1);
        size_t first = sizeof text - 1 - rest;
        assert_int_equal(event_stream_read(&stream, text, first, bracket, &out, NULL), QP_OK);
        assert_int_equal(event_stream_read(&stream, text + first, rest, bracket, &out, NULL),
                         QP_OK);
        assert_string_equal(strbuf_text(&out), "[one][two\nmore][three][]");
        event_stream_free(&stream);
        strbuf_free(&out);
    }
}

static void test_answers(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        bool text, finished;
    } rows[] = {
        {"{\"choices\":[{\"text\":\" a\",\"finish_reason\":null}]}", true, false},
        {"{\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}", true, false},
        {"{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}", false, true},
        {"{\"choices\":[{\"text\":\"b\",\"finish_reason\":\"stop\"}]}", true, true},
        {"{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}", false, false},
        {"{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"x\"}}]}", true, false},
        {"{\"choices\":[{\"delta\":{\"content\":\"\"}}]}", true, false},
        {"{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}", false, true},
        {"{\"choices\":[{\"delta\":{\"tool_calls\":[{}]}}]}", true, false},
        {"{\"choices\":[]}", false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        answer answer = {0};
        assert_int_equal(answer_read(&answer, rows[i].data, strlen(rows[i].data), NULL), QP_OK);
        assert_int_equal(answer.text, rows[i].text);
        assert_int_equal(answer.finished, rows[i].finished);
    }
}

static void test_usage_and_errors(void **state)
{
    (void)state;
    static const char usage[] = "{\"choices\":[],\"usage\":{\"prompt_tokens\":7,"
                                "\"completion_tokens\":9,\"prompt_tokens_details\":"
                                "{\"cached_tokens\":3}}}";
    answer answer = {0};
    qp_error error;
    assert_int_equal(answer_read(&answer, usage, sizeof usage - 1, &error), QP_OK);
    assert_true(answer.has_usage);
    assert_int_equal(answer.input_tokens, 7);
    assert_int_equal(answer.output_tokens, 9);
    assert_int_equal(answer.cached_tokens, 3);
    assert_int_equal(answer_read(&answer, "[DONE]", 6, &error), QP_OK);
    assert_true(answer.done);
    static const char failure[] = "{\"error\":{\"message\":\"no pages\"}}";
    assert_int_equal(answer_read(&answer, failure, sizeof failure - 1, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "no pages"));
    assert_int_equal(answer_read(&answer, "{\"x\":1", 6, &error), QP_FORMAT);
    assert_int_equal(answer_read(&answer, "[1]", 3, &error), QP_FORMAT);
    assert_int_equal(answer_read(&answer, "{}", 2, &error), QP_FORMAT);
    answer_refused(429, failure, sizeof failure - 1, &error);
    assert_string_equal(error.message, "HTTP 429: no pages");
    answer_refused(500, "oops", 4, &error);
    assert_string_equal(error.message, "HTTP 500: \"oops\"");
}

/* Equal keys give equal tokens wherever the part stands; other keys, other tokens. */
static void test_prompts(void **state)
{
    (void)state;
    prompt_source ids = {.seed = 1, .vocab_size = 320};
    strbuf a = {0}, b = {0};
    prompt_ids(&ids, (prompt_part[]){{7, 50}, {8, 50}}, 2, &a);
    prompt_ids(&ids, (prompt_part[]){{7, 50}, {9, 50}}, 2, &b);
    size_t same = 0, numbers = 1;
    while (a.data[same] == b.data[same])
        same++;
    for (size_t i = 0; i < same; i++)
        numbers += a.data[i] == ',';
    assert_in_range(numbers, 51, 55);
    for (char *at = a.data; *at && *++at; at = strpbrk(at, ",]"))
        assert_in_range(strtol(at, NULL, 10), 20, 299);
    strbuf_clear(&a);
    strbuf_clear(&b);
    static const char text[] = "a \"quote\",\na l\xc3\xa4nge";
    prompt_source pieces = {.seed = 1, .text = text, .text_length = sizeof text - 1};
    for (uint64_t key = 0; key < 40; key++) {
        strbuf_clear(&a);
        prompt_text(&pieces, (prompt_part[]){{key, 9}}, 1, &a);
        assert_int_equal(a.data[0], '"');
        assert_int_not_equal(a.data[1] & 0xc0, 0x80);
        assert_int_equal(a.data[a.length - 1], '"');
        assert_int_not_equal((unsigned char)a.data[a.length - 2], 0xc3);
    }
    prompt_source none = {.seed = 1};
    prompt_text(&none, (prompt_part[]){{1, 3}}, 1, &b);
    assert_int_equal(b.data[1], ' ');
    strbuf_free(&a);
    strbuf_free(&b);
}

static void test_traces(void **state)
{
    (void)state;
    trace_file trace;
    qp_error error;
    static const char csv[] = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                              "2023-11-16 23:59:59.5000000,374,44\r\n2023-11-17 00:00:01.25,5,1";
    assert_int_equal(trace_file_read(csv, sizeof csv - 1, &trace, &error), QP_OK);
    assert_int_equal(trace.n_requests, 2);
    assert_true(trace.requests[0].seconds == 0);
    assert_true(trace.requests[1].seconds > 1.7499 && trace.requests[1].seconds < 1.7501);
    assert_int_equal(trace.requests[0].input_tokens, 374);
    assert_int_equal(trace.requests[1].output_tokens, 1);
    trace_file_free(&trace);
    static const char lines[] =
        "{\"timestamp\": 1000, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n"
        "\n{\"timestamp\": 3500, \"input_length\": 700, \"output_length\": 6, \"hash_ids\": [1]}\n";
    assert_int_equal(trace_file_read(lines, sizeof lines - 1, &trace, &error), QP_OK);
    assert_int_equal(trace.n_requests, 2);
    assert_true(trace.requests[1].seconds == 2.5);
    assert_int_equal(trace.requests[1].first_block, 2);
    assert_int_equal(trace.requests[1].n_blocks, 1);
    trace_file_free(&trace);
}

static void test_bad_traces(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "TIMESTAMP\nyesterday,1,2\n",
        "1.5,2\n",
        "1.5,2,-3\n",
        "1.5,2,99999999999\n",
        "nan,2,3\n",
        "1,2,3\ninf,2,3\n",
        "{\"timestamp\": 1e999, \"input_length\": 1, \"output_length\": 1}\n",
        "{\"timestamp\": 1}\n",
        "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [\"x\"]}\n",
        "{\"timestamp\": \"1\"}\n",
        "{\n"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        trace_file trace;
        qp_error error = {0};
        assert_int_equal(trace_file_read(rows[i], strlen(rows[i]), &trace, &error), QP_FORMAT);
        assert_true(*error.message);
        trace_file_free(&trace);
    }
}

static void test_addresses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host, *port, *prefix;
    } rows[] = {
        {"http://127.0.0.1:8080", "127.0.0.1", "8080", ""},
        {"http://example.org", "example.org", "80", ""},
        {"http://[::1]:81/", "::1", "81", ""},
        {"http://[::1]", "::1", "80", ""},
        {"http://a:1/v1/", "a", "1", ""},
        {"http://a:1/proxy/v1", "a", "1", "/proxy"},
        {"http://a/proxy", "a", "80", "/proxy"},
    };
    load_url url;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(url_parse(rows[i].text, &url, NULL), QP_OK);
        assert_string_equal(url.host, rows[i].host);
        assert_string_equal(url.port, rows[i].port);
        assert_string_equal(url.prefix, rows[i].prefix);
    }
    static const char *const bad[] = {"",
                                      "a:1",
                                      "ftp://a",
                                      "http://",
                                      "http://:1",
                                      "http://a:",
                                      "http://a:x",
                                      "http://a:123456789",
                                      "http://[::1",
                                      "http://[]",
                                      "http://a b",
                                      "http://u@a",
                                      "http://a/x?y",
                                      "http://a/x y",
                                      "http://a\r\nX: y"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(url_parse(bad[i], &url, NULL), QP_INVALID);
    assert_int_equal(url_parse("https://a", &url, NULL), QP_UNSUPPORTED);
}

static void test_limits(void **state)
{
    (void)state;
    load_limits limits;
    qp_error error;
    assert_int_equal(load_parse_limits("ttft:200,tpot:20.5,e2el:1e4", &limits, &error), QP_OK);
    assert_true(limits.ttft == 200 && limits.tpot == 20.5 && limits.e2e == 1e4);
    static const char *const bad[] = {"ttft",  "ttft:",         "ttft:x",  "ttft:0",
                                      "itl:3", "ttft:1;tpot:2", "ttft:-1", "ttft:nan"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(load_parse_limits(bad[i], &limits, &error), QP_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replies),          cmocka_unit_test(test_bad_replies),
        cmocka_unit_test(test_events),           cmocka_unit_test(test_answers),
        cmocka_unit_test(test_usage_and_errors), cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_traces),           cmocka_unit_test(test_bad_traces),
        cmocka_unit_test(test_addresses),        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
