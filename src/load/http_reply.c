#include "load/http_reply.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static qp_status read_status_line(http_reply *reply, qp_error *error)
{
    const char *line = reply->line;
    if (strncmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') || line[8] != ' ')
        return error_set(error, QP_FORMAT, "the server's answer is not HTTP/1.x: \"%.60s\"", line);
    char *end;
    long status = strtol(line + 9, &end, 10);
    if (end != line + 12 || status < 100 || (*end && *end != ' '))
        return error_set(error, QP_FORMAT, "the server's status line is \"%.60s\"", line);
    reply->status = (int)status;
    reply->close = line[7] == '0';
    reply->state = HTTP_HEADER;
    return QP_OK;
}

/* The value of a header line with this name (upper or lower case); else NULL. */
static const char *value_of(const char *line, const char *name)
{
    size_t length = strlen(name);
    if (strncasecmp(line, name, length) != 0 || line[length] != ':') return NULL;
    line += length + 1;
    return line + strspn(line, " \t");
}

/* Reads a number without sign; false if the next character is not one of `after`. */
static bool read_number(const char *text, int base, const char *after, uint64_t *out)
{
    char *end;
    if (!strchr("0123456789abcdefABCDEF", *text) || !*text) return false;
    unsigned long long value = strtoull(text, &end, base);
    if (end == text || end - text > 16 || (*end && !strchr(after, *end))) return false;
    *out = value;
    return true;
}

static qp_status read_header(http_reply *reply, qp_error *error)
{
    const char *value;
    if (reply->header) reply->header(reply->header_context, reply->line);
    if (++reply->lines > HTTP_MOST_LINES)
        return error_set(error, QP_FORMAT, "the server's answer has more than %d header lines",
                         HTTP_MOST_LINES);
    if ((value = value_of(reply->line, "Content-Length"))) {
        if (!read_number(value, 10, " \t", &reply->left))
            return error_set(error, QP_FORMAT, "the server's Content-Length is \"%.40s\"", value);
        reply->has_length = true;
    } else if ((value = value_of(reply->line, "Transfer-Encoding"))) {
        if (strncasecmp(value, "chunked", 7) != 0)
            return error_set(error, QP_UNSUPPORTED,
                             "the server's Transfer-Encoding is \"%.40s\", not \"chunked\"", value);
        reply->chunked = true;
    } else if ((value = value_of(reply->line, "Connection"))) {
        if (strncasecmp(value, "close", 5) == 0) reply->close = true;
        if (strncasecmp(value, "keep-alive", 10) == 0) reply->close = false;
    }
    return QP_OK;
}

/* Decides the next state at the empty line after the header. */
static void begin_body(http_reply *reply)
{
    if (reply->status < 200) {
        *reply = (http_reply){
            .header = reply->header,
            .header_context = reply->header_context}; /* 100 Continue: the final reply follows */
    } else if (reply->status == 204 || reply->status == 304) {
        reply->state = HTTP_DONE;
    } else if (reply->chunked) {
        reply->state = HTTP_CHUNK_SIZE;
    } else if (reply->has_length) {
        reply->state = reply->left ? HTTP_BODY_LENGTH : HTTP_DONE;
    } else {
        reply->state = HTTP_BODY_TO_END;
        reply->close = true;
    }
}

static qp_status read_chunk_size(http_reply *reply, qp_error *error)
{
    if (!read_number(reply->line, 16, "; \t", &reply->left))
        return error_set(error, QP_FORMAT,
                         "the size of a chunk in the server's answer is \"%.40s\"", reply->line);
    reply->state = reply->left ? HTTP_CHUNK_DATA : HTTP_TRAILER;
    return QP_OK;
}

/* Handles the complete line in reply->line. */
static qp_status read_line(http_reply *reply, qp_error *error)
{
    bool empty = reply->in_line == 0;
    reply->in_line = 0;
    switch (reply->state) {
    case HTTP_STATUS_LINE:
        return empty ? QP_OK : read_status_line(reply, error);
    case HTTP_HEADER:
        if (!empty) return read_header(reply, error);
        begin_body(reply);
        return QP_OK;
    case HTTP_CHUNK_SIZE:
        return read_chunk_size(reply, error);
    case HTTP_CHUNK_END:
        if (!empty)
            return error_set(error, QP_FORMAT, "a chunk of the server's answer is too long");
        reply->state = HTTP_CHUNK_SIZE;
        return QP_OK;
    default: /* HTTP_TRAILER */
        if (empty) reply->state = HTTP_DONE;
        return QP_OK;
    }
}

/* Appends bytes to the line up to its end; returns how many it consumed. */
static size_t take_line(http_reply *reply, const char *bytes, size_t length, bool *whole)
{
    const char *end = memchr(bytes, '\n', length);
    size_t n = end ? (size_t)(end - bytes) : length;
    size_t room = sizeof reply->line - 1 - reply->in_line;
    size_t kept = n < room ? n : room; /* a very long header line is truncated */
    memcpy(reply->line + reply->in_line, bytes, kept);
    reply->in_line += kept;
    *whole = end != NULL;
    if (end) {
        if (reply->in_line && reply->line[reply->in_line - 1] == '\r') reply->in_line--;
        reply->line[reply->in_line] = '\0';
        n++;
    }
    return n;
}

/* Passes on the bytes that belong to the body; returns how many. */
static size_t body_bytes(http_reply *reply, size_t length)
{
    if (reply->state == HTTP_BODY_TO_END) return length;
    size_t n = length < reply->left ? length : (size_t)reply->left;
    reply->left -= n;
    if (!reply->left) reply->state = reply->state == HTTP_CHUNK_DATA ? HTTP_CHUNK_END : HTTP_DONE;
    return n;
}

qp_status http_reply_read(http_reply *reply, const char *bytes, size_t length, size_t *used,
                          http_body *body, void *context, qp_error *error)
{
    *used = 0;
    while (*used < length && reply->state != HTTP_DONE) {
        const char *at = bytes + *used;
        size_t rest = length - *used;
        bool in_body = reply->state == HTTP_BODY_LENGTH || reply->state == HTTP_BODY_TO_END ||
                       reply->state == HTTP_CHUNK_DATA;
        if (in_body) {
            size_t n = body_bytes(reply, rest);
            *used += n;
            TRY(body(context, at, n, error));
        } else {
            bool whole;
            *used += take_line(reply, at, rest, &whole);
            if (whole) TRY(read_line(reply, error));
        }
    }
    return QP_OK;
}

qp_status http_reply_close(http_reply *reply, qp_error *error)
{
    if (reply->state == HTTP_DONE) return QP_OK;
    if (reply->state == HTTP_BODY_TO_END) {
        reply->state = HTTP_DONE;
        return QP_OK;
    }
    return error_set(error, QP_IO,
                     reply->state == HTTP_STATUS_LINE && !reply->in_line
                         ? "the server closed the connection without an answer"
                         : "the server closed the connection within its answer");
}
