/* HTTP requests from bytes: see http_parser.h. */
#include "server/http_parser.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* False, so that a function that finds something wrong ends in it. */
static bool refuse(http_parser *p, int status, const char *problem)
{
    p->state = HTTP_REFUSED;
    p->status = status;
    p->problem = problem;
    return false;
}

static bool is_token_char(unsigned char c)
{
    if (c >= 'a' && c <= 'z') return true;
    if (c >= 'A' && c <= 'Z') return true;
    if (c >= '0' && c <= '9') return true;
    return c && strchr("!#$%&'*+-.^_`|~", c);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Replaces %XX in place; false for anything that is no visible character or UTF-8 byte. */
static bool decode_path(char *path)
{
    char *out = path;
    for (const char *in = path; *in; in++) {
        int c = (unsigned char)*in;
        if (c == '%') {
            int high = hex_digit(in[1]), low = high < 0 ? -1 : hex_digit(in[2]);
            if (low < 0) return false;
            c = high << 4 | low;
            in += 2;
        }
        if (c < 0x20 || c == 0x7f) return false;
        *out++ = (char)c;
    }
    *out = '\0';
    return true;
}

/* "http://host/path" becomes "/path": proxies may send the whole address. */
static char *path_of(char *target)
{
    if (strncasecmp(target, "http://", 7) != 0) return target;
    char *path = strchr(target + 7, '/');
    return path ? path : target;
}

static bool read_request_line(http_parser *p, char *line)
{
    char *blank = strchr(line, ' ');
    char *version = blank ? strchr(blank + 1, ' ') : NULL;
    if (!version || strchr(version + 1, ' '))
        return refuse(p, 400, "the request line must be METHOD TARGET HTTP/1.1");
    *blank = *version++ = '\0';
    if (!*line || strlen(line) >= sizeof p->method)
        return refuse(p, 501, "the method is not known");
    for (const char *c = line; *c; c++) {
        if (!is_token_char((unsigned char)*c)) return refuse(p, 400, "the method is not a word");
    }
    memcpy(p->method, line, strlen(line) + 1);
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) {
        bool other = strncmp(version, "HTTP/", 5) == 0;
        return refuse(p, other ? 505 : 400, "the version must be HTTP/1.1 or HTTP/1.0");
    }
    p->minor = version[7] - '0';
    p->keep_alive = p->minor == 1;
    char *target = path_of(blank + 1);
    if (*target != '/' && strcmp(target, "*") != 0)
        return refuse(p, 400, "the target of the request must begin with a slash");
    p->target = strdup(target);
    if (!p->target) return refuse(p, 503, "out of memory");
    p->query = strchr(p->target, '?');
    if (p->query)
        *p->query++ = '\0';
    else
        p->query = p->target + strlen(p->target);
    if (!decode_path(p->target)) return refuse(p, 400, "the target has bytes that no path has");
    p->state = HTTP_HEADERS;
    return true;
}

/* Whether a comma-separated header has the word, in any case. */
static bool has_word(const char *value, const char *word)
{
    size_t length = strlen(word);
    while (*value) {
        value += strspn(value, " \t,");
        size_t n = strcspn(value, ",");
        size_t end = n;
        while (end && (value[end - 1] == ' ' || value[end - 1] == '\t'))
            end--;
        if (end == length && strncasecmp(value, word, length) == 0) return true;
        value += n;
    }
    return false;
}

static bool read_length(http_parser *p, const char *value)
{
    size_t length = 0;
    if (!*value) return refuse(p, 400, "Content-Length must be a number");
    for (const char *c = value; *c; c++) {
        if (*c < '0' || *c > '9') return refuse(p, 400, "Content-Length must be one number");
        if (length > (size_t)1 << 50) return refuse(p, 413, "the body is too large");
        length = length * 10 + (size_t)(*c - '0');
    }
    if (p->has_length && length != p->left)
        return refuse(p, 400, "Content-Length was given twice with different numbers");
    p->has_length = true;
    p->left = length;
    return true;
}

static bool read_known_header(http_parser *p, const char *name, const char *value)
{
    if (strcmp(name, "content-length") == 0) {
        return read_length(p, value);
    } else if (strcmp(name, "transfer-encoding") == 0) {
        if (p->chunked || strcasecmp(value, "chunked") != 0)
            return refuse(p, 501, "the only Transfer-Encoding of a request is chunked");
        p->chunked = true;
    } else if (strcmp(name, "connection") == 0) {
        if (has_word(value, "close")) p->keep_alive = false;
        if (p->minor == 0 && has_word(value, "keep-alive")) p->keep_alive = true;
    } else if (strcmp(name, "expect") == 0) {
        p->expects_continue = p->minor == 1 && strcasecmp(value, "100-continue") == 0;
    }
    return true;
}

static bool read_header(http_parser *p, char *line)
{
    char *colon = strchr(line, ':');
    if (!colon || colon == line) return refuse(p, 400, "a header must be NAME: VALUE");
    for (char *c = line; c < colon; c++) {
        if (!is_token_char((unsigned char)*c))
            return refuse(p, 400, "the name of a header is not a word");
        if (*c >= 'A' && *c <= 'Z') *c = (char)(*c - 'A' + 'a');
    }
    if (++p->n_headers > HTTP_HEADERS_MOST) return refuse(p, 431, "there are too many headers");
    *colon = '\0';
    char *value = colon + 1 + strspn(colon + 1, " \t");
    size_t length = strlen(value);
    while (length && (value[length - 1] == ' ' || value[length - 1] == '\t'))
        value[--length] = '\0';
    for (const char *c = value; *c; c++) {
        if ((unsigned char)*c < 0x20 && *c != '\t')
            return refuse(p, 400, "the value of a header has a control character");
    }
    if (p->state == HTTP_TRAILERS) return true;
    strbuf_append(&p->headers, line, strlen(line) + 1);
    strbuf_append(&p->headers, value, length + 1);
    if (p->headers.failed) return refuse(p, 503, "out of memory");
    return read_known_header(p, line, value);
}

static bool end_head(http_parser *p)
{
    if (p->chunked && (p->has_length || p->minor == 0))
        return refuse(p, 400, "a request with chunks must be HTTP/1.1 without Content-Length");
    if (p->left > p->body_most) return refuse(p, 413, "the body is too large");
    p->head_bytes = 0;
    p->state = p->chunked ? HTTP_CHUNK_SIZE : p->left ? HTTP_BODY : HTTP_DONE;
    return true;
}

static bool read_chunk_size(http_parser *p, const char *line)
{
    size_t size = 0;
    int digits = 0;
    for (; hex_digit(*line) >= 0; line++, digits++) {
        size = size << 4 | (size_t)hex_digit(*line);
        if (digits >= 12) return refuse(p, 413, "a chunk is too large");
    }
    line += strspn(line, " \t");
    if (!digits || (*line && *line != ';'))
        return refuse(p, 400, "a chunk must begin with its size in hexadecimal digits");
    if (size > p->body_most - p->body.length) return refuse(p, 413, "the body is too large");
    p->head_bytes = 0;
    p->left = size;
    p->state = size ? HTTP_CHUNK_DATA : HTTP_TRAILERS;
    return true;
}

static bool read_line(http_parser *p, char *line)
{
    switch (p->state) {
    case HTTP_REQUEST_LINE:
        /* Empty lines before a request are left over from the one before. */
        return !*line || read_request_line(p, line);
    case HTTP_HEADERS:
        return *line ? read_header(p, line) : end_head(p);
    case HTTP_CHUNK_SIZE:
        return read_chunk_size(p, line);
    case HTTP_CHUNK_END:
        if (*line) return refuse(p, 400, "a chunk is longer than its size");
        p->state = HTTP_CHUNK_SIZE;
        break;
    case HTTP_TRAILERS:
        if (*line) return read_header(p, line);
        p->state = HTTP_DONE;
        break;
    default:
        break;
    }
    return true;
}

/* Takes bytes of a line, and reads the line where they complete it. */
static size_t feed_line(http_parser *p, const char *bytes, size_t count)
{
    const char *end = memchr(bytes, '\n', count);
    size_t taken = end ? (size_t)(end - bytes) + 1 : count;
    p->head_bytes += taken;
    if (p->head_bytes > HTTP_HEAD_MOST) {
        bool line = p->state == HTTP_REQUEST_LINE;
        refuse(p, line ? 414 : 431, line ? "the target is too long" : "the headers are too long");
        return taken;
    }
    strbuf_append(&p->line, bytes, end ? taken - 1 : taken);
    if (p->line.failed) {
        refuse(p, 503, "out of memory");
    } else if (end) {
        if (p->line.length && p->line.data[p->line.length - 1] == '\r')
            p->line.data[--p->line.length] = '\0';
        if (memchr(strbuf_text(&p->line), '\0', p->line.length) ||
            strchr(strbuf_text(&p->line), '\r'))
            refuse(p, 400, "a line of the head has a NUL or a carriage return");
        else
            read_line(p, p->line.data ? p->line.data : (char[]){""});
        strbuf_clear(&p->line);
    }
    return taken;
}

static size_t feed_body(http_parser *p, const char *bytes, size_t count)
{
    if (count > p->left) count = p->left;
    if (!strbuf_append(&p->body, bytes, count)) {
        refuse(p, 503, "out of memory");
        return count;
    }
    p->left -= count;
    if (!p->left) p->state = p->state == HTTP_BODY ? HTTP_DONE : HTTP_CHUNK_END;
    return count;
}

size_t http_parser_feed(http_parser *p, const char *bytes, size_t count)
{
    size_t taken = 0;
    while (taken < count && p->state != HTTP_DONE && p->state != HTTP_REFUSED) {
        bool body = p->state == HTTP_BODY || p->state == HTTP_CHUNK_DATA;
        taken += body ? feed_body(p, bytes + taken, count - taken)
                      : feed_line(p, bytes + taken, count - taken);
    }
    return taken;
}

const char *http_parser_header(const http_parser *p, const char *name)
{
    const char *at = strbuf_text(&p->headers), *end = at + p->headers.length;
    while (at < end) {
        const char *value = at + strlen(at) + 1;
        if (strcmp(at, name) == 0) return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

void http_parser_free(http_parser *p)
{
    free(p->target);
    strbuf_free(&p->body);
    strbuf_free(&p->line);
    strbuf_free(&p->headers);
    *p = (http_parser){.body_most = p->body_most};
}
