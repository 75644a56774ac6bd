/* Reads an HTTP/1.1 reply from bytes that arrive in pieces: status, and body without framing.
 *
 * The body has a length, is chunked, or ends with the connection. Pieces may be cut anywhere. RFC
 * 9112.
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_LINE_SIZE = 8192, HTTP_MOST_LINES = 256 };

typedef enum http_state {
    HTTP_STATUS_LINE,
    HTTP_HEADER,
    HTTP_BODY_LENGTH,
    HTTP_BODY_TO_END,
    HTTP_CHUNK_SIZE,
    HTTP_CHUNK_DATA,
    HTTP_CHUNK_END,
    HTTP_TRAILER,
    HTTP_DONE,
} http_state;

/* Zero-initialise for each reply, and set `header` if it is wanted. */
typedef struct http_reply {
    http_state state;
    int status;      /* 200, ... */
    bool chunked;    /* Transfer-Encoding */
    bool has_length; /* Content-Length */
    bool close;      /* the connection ends after this reply */
    uint64_t left;   /* bytes of the body or the chunk not yet received */
    int lines;       /* header lines read */
    /* Receives each header line; NULL: nobody does. */
    void (*header)(void *context, const char *line);
    void *header_context;
    size_t in_line; /* bytes in `line` */
    char line[HTTP_LINE_SIZE];
} http_reply;

/* Receives pieces of the body. A status other than QP_OK ends the reading. */
typedef qp_status http_body(void *context, const char *bytes, size_t length, qp_error *error);

/* Reads up to `length` bytes. *used: how many belong to this reply; fewer than `length` only if the
 * reply ends before (state HTTP_DONE). QP_FORMAT: it is not HTTP/1.x. */
qp_status http_reply_read(http_reply *reply, const char *bytes, size_t length, size_t *used,
                          http_body *body, void *context, qp_error *error);

/* For the end of the connection: QP_OK if the reply is complete with it. */
qp_status http_reply_close(http_reply *reply, qp_error *error);
