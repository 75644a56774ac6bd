/* The parser of HTTP requests at its limits: each is met and passed by one, each byte is tried
 * where it may and may not stand, and the pieces in which a request arrives make no difference.
 */
#include "test.h"

#include "base/strbuf.h"
#include "server/http_parser.h"

enum { BODY_MOST = 100 };

static const char *problem; /* what the last request was refused for, or NULL */

/* A request in pieces of `step` bytes; http_parser_free() it. */
static http_parser fed(const char *text, size_t length, size_t step)
{
    http_parser p = {.body_most = BODY_MOST};
    for (size_t at = 0; at < length && p.state != HTTP_DONE && p.state != HTTP_REFUSED;) {
        const size_t count = length - at < step ? length - at : step;
        const size_t taken = http_parser_feed(&p, text + at, count);
        assert_true(taken <= count && (taken == count || p.state >= HTTP_DONE));
        at += taken;
    }
    return p;
}

/* 0: complete; -1: not yet; else the status of the refusal. The same for any pieces. */
static int outcome_of(const char *text, size_t length)
{
    int first = 0;
    const size_t steps[] = {length + 1, 1, 2, 7};
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        http_parser p = fed(text, length, steps[s]);
        const int found = p.state == HTTP_DONE ? 0 : p.state == HTTP_REFUSED ? p.status : -1;
        if (found > 0) assert_non_null(p.problem);
        problem = p.problem;
        if (s == 0) first = found;
        if (found != first)
            fail_msg("%.80s: %d in pieces of %d, %d whole", text, found, (int)steps[s], first);
        http_parser_free(&p);
    }
    return first;
}

static int outcome(const char *text)
{
    return outcome_of(text, strlen(text));
}

/* "GET / HTTP/1.1" and one header line. */
static int with_header(const char *line, size_t length)
{
    strbuf text = {0};
    strbuf_puts(&text, "GET / HTTP/1.1\r\n");
    strbuf_append(&text, line, length);
    strbuf_puts(&text, "\r\n\r\n");
    const int found = outcome_of(text.data, text.length);
    strbuf_free(&text);
    return found;
}

static void requests_are_judged(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *text, *problem;
    } cases[] = {
        {0, "GET / HTTP/1.1\r\n\r\n", NULL},
        {0, "\r\n\r\nGET / HTTP/1.0\n\n", NULL},
        {0, "GET * HTTP/1.1\r\n\r\n", NULL},
        {0, "GET http://h/p HTTP/1.1\r\n\r\n", NULL},
        {-1, "GET / HTTP/1.1\r\nA: b\r\n", NULL},
        {-1, "GET / HTTP/1.1\r\nContent-Length: 2\r\n\r\na", NULL},
        {-1, "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", NULL},
        {0, "GET / HTTP/1.1\r\nTransfer-Encoding: CHUNKED\r\n\r\n1;x=y\r\na\r\n0\r\nT: v\r\n\r\n",
         NULL},
        {0, "GET / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab", NULL},
        {400, "GET / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
         "Content-Length was given twice with different numbers"},
        {400, "GET / HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         "a request with chunks must be HTTP/1.1 without Content-Length"},
        {400, "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         "a request with chunks must be HTTP/1.1 without Content-Length"},
        {400, "GET / HTTP/1.1\r\nContent-Length:\r\n\r\n", "Content-Length must be a number"},
        {400, "GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\na", "Content-Length must be one number"},
        {400, "GET / HTTP/1.1\r\nContent-Length: 1,1\r\n\r\na",
         "Content-Length must be one number"},
        {400, "GET / HTTP/1.1\r\nContent-Length: 0x1\r\n\r\na",
         "Content-Length must be one number"},
        {413, "GET / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
         "the body is too large"},
        {501, "GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
         "the only Transfer-Encoding of a request is chunked"},
        {501, "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
         "the only Transfer-Encoding of a request is chunked"},
        {501, "GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
         "the only Transfer-Encoding of a request is chunked"},
        {400, "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
         "a chunk is longer than its size"},
        {400, "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
         "a chunk must begin with its size in hexadecimal digits"},
        {400, "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\ng\r\n",
         "a chunk must begin with its size in hexadecimal digits"},
        {400, "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
         "a chunk must begin with its size in hexadecimal digits"},
        {400, "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1 1\r\n",
         "a chunk must begin with its size in hexadecimal digits"},
        {413, "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0000000000001\r\n",
         "a chunk is too large"},
        {-1, "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n000000000001\r\n", NULL},
        {400, "GET / HTTP/1.1\r\n: v\r\n\r\n", "a header must be NAME: VALUE"},
        {400, "GET / HTTP/1.1\r\nno colon\r\n\r\n", "a header must be NAME: VALUE"},
        {400, "GET / HTTP/1.1\r\n folded: v\r\n\r\n", "the name of a header is not a word"},
        {400, "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "a header must be NAME: VALUE"},
        {400, "GET / HTTP/1.1\r\nA : b\r\n\r\n", "the name of a header is not a word"},
        {400, "GET /\r\n\r\n", "the request line must be METHOD TARGET HTTP/1.1"},
        {400, "GET / HTTP/1.1 x\r\n\r\n", "the request line must be METHOD TARGET HTTP/1.1"},
        {400, "GET relative HTTP/1.1\r\n\r\n", "the target of the request must begin with a slash"},
        {400, "GET http://h HTTP/1.1\r\n\r\n", "the target of the request must begin with a slash"},
        {400, "GET / XTTP/1.1\r\n\r\n", "the version must be HTTP/1.1 or HTTP/1.0"},
        {505, "GET / HTTP/1.2\r\n\r\n", "the version must be HTTP/1.1 or HTTP/1.0"},
        {505, "GET / HTTP/2.0\r\n\r\n", "the version must be HTTP/1.1 or HTTP/1.0"},
        {501, " / HTTP/1.1\r\n\r\n", "the method is not known"},
        {0, "ABCDEFGHIJKLMNO / HTTP/1.1\r\n\r\n", NULL},
        {501, "ABCDEFGHIJKLMNOP / HTTP/1.1\r\n\r\n", "the method is not known"},
        {400, "G(T / HTTP/1.1\r\n\r\n", "the method is not a word"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int found = outcome(cases[i].text);
        if (found != cases[i].status)
            fail_msg("%s: %d, expected %d", cases[i].text, found, cases[i].status);
        if (cases[i].problem) assert_string_equal(problem, cases[i].problem);
    }
}

/* ---- Every byte -------------------------------------------------------------------------------
 */

static bool is_token(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static void bytes_of_headers(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        if (c == '\n') continue;
        char name[] = {'a', (char)c, 'b', ':', 'v'}, value[] = {'a', ':', 'v', (char)c, 'v'};
        const int in_name = is_token(c) || c == ':' ? 0 : 400;
        const int in_value = c < 0x20 && c != '\t' ? 400 : 0;
        if (with_header(name, sizeof name) != in_name) fail_msg("byte %d in a name", c);
        if (with_header(value, sizeof value) != in_value) fail_msg("byte %d in a value", c);
        if (in_value && c && c != '\r')
            assert_string_equal(problem, "the value of a header has a control character");
        else if (in_value)
            assert_string_equal(problem, "a line of the head has a NUL or a carriage return");
    }
}

/* A path has every byte but control characters, as it is or in hexadecimal digits of both cases. */
static void bytes_of_paths(void **state)
{
    (void)state;
    for (int c = 1; c < 256; c++) {
        const char *const forms[] = {"GET /a%%%02xb HTTP/1.1\r\n\r\n",
                                     "GET /a%%%02Xb HTTP/1.1\r\n\r\n"};
        for (int f = 0; f < 2; f++) {
            char text[64];
            const size_t length = (size_t)snprintf(text, sizeof text, forms[f], (unsigned)c);
            http_parser p = fed(text, length, length);
            const bool control = c < 0x20 || c == 0x7f;
            assert_int_equal(p.state, control ? HTTP_REFUSED : HTTP_DONE);
            const char expected[] = {'/', 'a', (char)c, 'b', '\0'};
            if (!control) assert_string_equal(p.target, expected);
            http_parser_free(&p);
        }
    }
    static const char *const bad[] = {"%", "%4", "%4g", "%g4", "%00", "%%41"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[64];
        snprintf(text, sizeof text, "GET /%s HTTP/1.1\r\n\r\n", bad[i]);
        assert_int_equal(outcome(text), 400);
        assert_string_equal(problem, "the target has bytes that no path has");
    }
    http_parser p = fed("GET /a%20b?c%20d?e HTTP/1.1\r\n\r\n", 31, 31);
    assert_string_equal(p.target, "/a b");
    assert_string_equal(p.query, "c%20d?e");
    http_parser_free(&p);
    p = fed("GET HTTP://host/a HTTP/1.1\r\n\r\n", 30, 30);
    assert_string_equal(p.target, "/a");
    assert_string_equal(p.query, "");
    http_parser_free(&p);
}

/* ---- Limits -----------------------------------------------------------------------------------
 */

static void put_many(strbuf *text, char c, size_t count)
{
    while (count-- > 0)
        strbuf_putc(text, c);
}

/* A request whose head has so many bytes, in its target or in a header. */
static int head_of(size_t bytes, bool in_target)
{
    strbuf text = {0};
    const char *before = in_target ? "GET /" : "GET / HTTP/1.1\r\nA: ";
    const char *after = in_target ? " HTTP/1.1\r\n\r\n" : "\r\n\r\n";
    strbuf_puts(&text, before);
    put_many(&text, 'x', bytes - strlen(before) - strlen(after));
    strbuf_puts(&text, after);
    assert_int_equal(text.length, bytes);
    const int found = outcome_of(text.data, text.length);
    strbuf_free(&text);
    return found;
}

static int headers_of(int count)
{
    strbuf text = {0};
    strbuf_puts(&text, "GET / HTTP/1.1\r\n");
    for (int i = 0; i < count; i++)
        strbuf_printf(&text, "H%d: v\r\n", i);
    strbuf_puts(&text, "\r\n");
    const int found = outcome_of(text.data, text.length);
    strbuf_free(&text);
    return found;
}

/* A body in chunks of these sizes. */
static int chunks_of(size_t first, size_t second)
{
    strbuf text = {0};
    strbuf_puts(&text, "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 2; i++) {
        const size_t size = i ? second : first;
        if (size == 0) continue;
        strbuf_printf(&text, "%zx\r\n", size);
        put_many(&text, 'x', size);
        strbuf_puts(&text, "\r\n");
    }
    strbuf_puts(&text, "0\r\n\r\n");
    const int found = outcome_of(text.data, text.length);
    strbuf_free(&text);
    return found;
}

static int body_of(size_t size)
{
    strbuf text = {0};
    strbuf_printf(&text, "POST / HTTP/1.1\r\nContent-Length: %zu\r\n\r\n", size);
    put_many(&text, 'x', size);
    const int found = outcome_of(text.data, text.length);
    strbuf_free(&text);
    return found;
}

static void limits_are_met_and_passed(void **state)
{
    (void)state;
    assert_int_equal(head_of(HTTP_HEAD_MOST, false), 0);
    assert_int_equal(head_of(HTTP_HEAD_MOST + 1, false), 431);
    assert_string_equal(problem, "the headers are too long");
    assert_int_equal(head_of(HTTP_HEAD_MOST, true), 0);
    assert_int_equal(head_of(2 * HTTP_HEAD_MOST, true), 414);
    assert_string_equal(problem, "the target is too long");
    assert_int_equal(headers_of(HTTP_HEADERS_MOST), 0);
    assert_int_equal(headers_of(HTTP_HEADERS_MOST + 1), 431);
    assert_string_equal(problem, "there are too many headers");
    assert_int_equal(body_of(BODY_MOST), 0);
    assert_int_equal(body_of(BODY_MOST + 1), 413);
    assert_string_equal(problem, "the body is too large");
    assert_int_equal(chunks_of(BODY_MOST, 0), 0);
    assert_int_equal(chunks_of(BODY_MOST + 1, 0), 413);
    assert_int_equal(chunks_of(60, BODY_MOST - 60), 0);
    assert_int_equal(chunks_of(60, BODY_MOST - 59), 413);
    assert_string_equal(problem, "the body is too large");
}

/* Each chunk has a head of its own, and so have trailers; together they have no limit but the
 * body's. */
static void trailers_are_limited(void **state)
{
    (void)state;
    for (int passed = 0; passed < 2; passed++) {
        strbuf text = {0};
        strbuf_puts(&text, "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: ");
        put_many(&text, 'x', HTTP_HEAD_MOST - strlen("T: \r\n\r\n") + (size_t)passed);
        strbuf_puts(&text, "\r\n\r\n");
        assert_int_equal(outcome_of(text.data, text.length), passed ? 431 : 0);
        strbuf_free(&text);
    }
}

/* ---- What is read -----------------------------------------------------------------------------
 */

static void connections_are_kept_or_not(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool keep, expects;
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", true, false},
        {"GET / HTTP/1.0\r\n\r\n", false, false},
        {"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", false, false},
        {"GET / HTTP/1.1\r\nConnection: x ,\tClose , y\r\n\r\n", false, false},
        {"GET / HTTP/1.1\r\nConnection: closed, enclose\r\n\r\n", true, false},
        {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true, false},
        {"GET / HTTP/1.0\r\nConnection: keep-alives\r\n\r\n", false, false},
        {"GET / HTTP/1.1\r\nExpect: 100-Continue\r\n\r\n", true, true},
        {"GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n", false, false},
        {"GET / HTTP/1.1\r\nExpect: 200\r\n\r\n", true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        http_parser p = fed(cases[i].text, strlen(cases[i].text), 3);
        assert_int_equal(p.state, HTTP_DONE);
        if (p.keep_alive != cases[i].keep || p.expects_continue != cases[i].expects)
            fail_msg("%s", cases[i].text);
        http_parser_free(&p);
    }
}

static void headers_are_found(void **state)
{
    (void)state;
    const char text[] = "PUT /p HTTP/1.1\r\nAb-C: \t one two \t\r\nEmpty:\r\nab-c: "
                        "second\r\nContent-Length: 3\r\n\r\nxyzGET";
    http_parser p = {.body_most = BODY_MOST};
    assert_int_equal(http_parser_feed(&p, text, sizeof text - 1), sizeof text - 1 - 3);
    assert_string_equal(p.method, "PUT");
    assert_int_equal(p.minor, 1);
    assert_string_equal(http_parser_header(&p, "ab-c"), "one two");
    assert_string_equal(http_parser_header(&p, "empty"), "");
    assert_null(http_parser_header(&p, "ab"));
    assert_null(http_parser_header(&p, "one two"));
    assert_int_equal(p.body.length, 3);
    assert_memory_equal(p.body.data, "xyz", 3);
    assert_int_equal(http_parser_feed(&p, "GET", 3), 0);
    http_parser_free(&p);
    assert_int_equal(p.body_most, BODY_MOST);
    assert_int_equal(p.state, HTTP_REQUEST_LINE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_judged),  cmocka_unit_test(bytes_of_headers),
        cmocka_unit_test(bytes_of_paths),       cmocka_unit_test(limits_are_met_and_passed),
        cmocka_unit_test(trailers_are_limited), cmocka_unit_test(connections_are_kept_or_not),
        cmocka_unit_test(headers_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
