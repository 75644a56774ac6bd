/* Requests of HTTP: any bytes, in any pieces, are one request or one refusal, and the same one. */
#include "server/http_parser.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BODY_MOST = 1000 };

static size_t feed(http_parser *p, const char *text, size_t length, size_t step)
{
    size_t at = 0;
    while (at < length) {
        size_t n = step < length - at ? step : length - at;
        size_t taken = http_parser_feed(p, text + at, n);
        at += taken;
        if (taken < n) break;
    }
    return at;
}

static int same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    http_parser whole = {.body_most = BODY_MOST}, pieces = {.body_most = BODY_MOST};
    const char *text = (const char *)data;
    size_t taken = feed(&whole, text, size, size), again = feed(&pieces, text, size, 3);
    if (whole.state != pieces.state || whole.status != pieces.status) abort();
    if (whole.state == HTTP_DONE && taken != again) abort();
    if (whole.state == HTTP_REFUSED && (!whole.problem || whole.status < 400)) abort();
    if (whole.body.length > BODY_MOST) abort();
    if (whole.state == HTTP_DONE) {
        if (!whole.target || !same_text(whole.target, pieces.target)) abort();
        if (whole.body.length != pieces.body.length) abort();
        if (!same_text(http_parser_header(&whole, "host"), http_parser_header(&pieces, "host")))
            abort();
    }
    http_parser_free(&whole);
    http_parser_free(&pieces);
    return 0;
}
