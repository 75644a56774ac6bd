/* Parts of the server without sockets: requests from bytes, keys. */
#include "base/json.h"
#include "server/json_memory.h"
#include "server/http_parser.h"
#include "server/keys.h"
#include "text/json_string.h"

#include "test.h"

#include <math.h>
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

static void formats_become_json(void **state)
{
    (void)state;
    strbuf out = {0};
    cJSON *tree;
    static const char written[] = "{\"n\":18446744073709551615,\"t\":[1.0]}";
    assert_int_equal(json_parse_exact(written, strlen(written), "here", &tree, NULL), QP_OK);
    json_put(&out, "{'q':%q,'Q':%Q,'none':%q,'%s':%b,'d':%d,", "it's \"%\" \n", "a\0b", (size_t)3,
             (const char *)NULL, "s", true, -7);
    json_put(&out, "'z':%z,'i':%i,'g':[%g,%g,%g],'j':%j,'no':%j}", (size_t)7, INT64_MIN, 0.1,
             1.0 / 3, (double)INFINITY, tree, (const cJSON *)NULL);
    assert_string_equal(
        strbuf_text(&out),
        "{\"q\":\"it's \\\"%\\\" \\n\",\"Q\":\"a\\u0000b\",\"none\":null,\"s\":true,"
        "\"d\":-7,\"z\":7,\"i\":-9223372036854775808,\"g\":[0.1,"
        "0.33333333333333331,null],\"j\":{\"n\":18446744073709551615,\"t\":[1.0]},"
        "\"no\":null}");
    cJSON *made = json_make("{'a':[%j,%q]}", tree, "\xff");
    char *text = json_print(made);
    assert_string_equal(text,
                        "{\"a\":[{\"n\":18446744073709551615,\"t\":[1.0]},\"\xef\xbf\xbd\"]}");
    cJSON_free(text);
    cJSON_Delete(made);
    cJSON_Delete(tree);
    strbuf part = {0};
    strbuf_clear(&out);
    strbuf_append(&part, "[1]", 3);
    json_put(&out, "%t", &part);
    assert_string_equal(strbuf_text(&out), "[1]");
    assert_false(out.failed);
    part.failed = true;
    json_put(&out, "%t", &part);
    assert_true(out.failed);
    strbuf_free(&part);
    strbuf_free(&out);
    assert_null(json_make("{'nul':%Q}", "\0", (size_t)1)); /* a tree cannot hold it */
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_in_any_pieces), cmocka_unit_test(refused_requests),
        cmocka_unit_test(keys_are_whole), cmocka_unit_test(formats_become_json),
        cmocka_unit_test(failed_allocations_are_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
