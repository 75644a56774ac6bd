/* One HTTP/1.x request from bytes that arrive in pieces (RFC 9112).
 *
 * Requests are untrusted. Every length has a limit. What two parsers could read differently (two
 * lengths, a length with chunks, folded headers, a bare CR) is refused, so that a proxy in front
 * and this parser always see the same request.
 */
#pragma once

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    HTTP_HEAD_MOST = 64 << 10, /* bytes of request line and headers, and of trailers */
    HTTP_HEADERS_MOST = 128,
};

typedef enum http_state {
    HTTP_REQUEST_LINE,
    HTTP_HEADERS,
    HTTP_BODY,
    HTTP_CHUNK_SIZE,
    HTTP_CHUNK_DATA,
    HTTP_CHUNK_END,
    HTTP_TRAILERS,
    HTTP_DONE,
    HTTP_REFUSED, /* see `status` and `problem` */
} http_state;

/* Zero-initialise and set body_most; http_parser_free() at the end. */
typedef struct http_parser {
    size_t body_most; /* bytes of a body at most */

    char method[16];
    char *target; /* the path, decoded and NUL-terminated, without its query; NULL before that */
    char *query;  /* after the '?', as it came; never NULL where `target` is not */
    int minor;    /* of the version: 1.`minor`, 0 or 1 */
    bool keep_alive, expects_continue;
    strbuf body;

    http_state state;
    int status;          /* of the refusal: 400, 413, 414, 431, 501, 505 */
    const char *problem; /* a sentence for the refusal */

    strbuf line;    /* the unfinished line */
    strbuf headers; /* "name\0value\0" each, names in lower case */
    size_t n_headers, head_bytes;
    size_t left; /* bytes of the body, or of the chunk, that are still to come */
    bool has_length, chunked;
} http_parser;

/* Takes bytes until the request is complete, and returns how many it took: the rest belongs to the
 * next request. Nothing is taken in the states HTTP_DONE and HTTP_REFUSED. */
size_t http_parser_feed(http_parser *parser, const char *bytes, size_t count);

/* The value of a header by its name in lower case; NULL where it was not sent. Where it was sent
 * several times, the first. */
const char *http_parser_header(const http_parser *parser, const char *name);

void http_parser_free(http_parser *parser);
