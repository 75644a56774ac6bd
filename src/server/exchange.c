/* Replies, from any thread: see http.h. */
#include "server/exchange.h"

#include "base/clock.h"
#include "base/platform.h"
#include "server/random_id.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A client with more than FULL unread bytes gets no more until at most ROOM are unread. */
enum { FULL = 256 << 10, ROOM = 64 << 10 };

/* ---- The outbox ---------------------------------------------------------------------------- */

outbox *outbox_open(void)
{
    outbox *box = calloc(1, sizeof *box);
    if (!box) return NULL;
    box->last = &box->first;
    box->references = 1;
    box->event = platform_event_open(false);
    if (box->event < 0 || pthread_mutex_init(&box->lock, NULL) != 0) {
        if (box->event >= 0) close(box->event);
        free(box);
        return NULL;
    }
    return box;
}

void outbox_release(outbox *box)
{
    if (atomic_fetch_sub(&box->references, 1) != 1) return;
    pthread_mutex_destroy(&box->lock);
    close(box->event);
    free(box);
}

static void outbox_put(outbox *box, exchange *x)
{
    exchange_hold(x);
    pthread_mutex_lock(&box->lock);
    bool first = !box->first;
    x->next = NULL;
    *box->last = x;
    box->last = &x->next;
    pthread_mutex_unlock(&box->lock);
    if (first) platform_event_signal(box->event);
}

exchange *outbox_take(outbox *box)
{
    pthread_mutex_lock(&box->lock);
    exchange *x = box->first;
    if (x) box->first = x->next;
    if (!box->first) box->last = &box->first;
    pthread_mutex_unlock(&box->lock);
    return x;
}

/* ---- Lifetime ------------------------------------------------------------------------------ */

/* Takes the client's id if it is a word that can stand in headers and logs. */
static void choose_id(exchange *x)
{
    const char *given = http_parser_header(&x->request, "x-request-id");
    const size_t length = given ? strlen(given) : 0;
    const char words[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.";
    if (length && length < sizeof x->id && strspn(given, words) == length)
        memcpy(x->id, given, length + 1);
    else
        random_id(x->id, 25);
}

/* W3C's trace context: 00-TRACE-SPAN-FLAGS, in hexadecimal. */
static void read_trace(exchange *x)
{
    static const char form[] = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
    const char *given = http_parser_header(&x->request, "traceparent");
    if (!given || strlen(given) != sizeof form - 1) return;
    for (size_t i = 0; form[i]; i++)
        if (form[i] == '-' ? given[i] != '-' : !strchr("0123456789abcdef", given[i])) return;
    memcpy(x->trace, given, sizeof form);
}

exchange *exchange_new(outbox *box, http_parser *request, const char *client)
{
    exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    pthread_mutex_init(&x->lock, NULL);
    x->references = 1;
    x->request = *request;
    *request = (http_parser){.body_most = request->body_most};
    x->head_only = strcmp(x->request.method, "HEAD") == 0;
    x->keep_alive = x->request.keep_alive;
    x->begun = clock_ns();
    snprintf(x->client, sizeof x->client, "%s", client);
    choose_id(x);
    read_trace(x);
    x->box = box;
    atomic_fetch_add(&box->references, 1);
    return x;
}

void exchange_hold(exchange *x)
{
    atomic_fetch_add(&x->references, 1);
}

void exchange_release(exchange *x)
{
    if (!x || atomic_fetch_sub(&x->references, 1) != 1) return;
    if (x->handler.free_context) x->handler.free_context(x->handler.context);
    http_parser_free(&x->request);
    strbuf_free(&x->headers);
    strbuf_free(&x->out);
    pthread_mutex_destroy(&x->lock);
    outbox_release(x->box);
    free(x);
}

const char *exchange_id(const exchange *x)
{
    return x->id;
}

int exchange_status(const exchange *x)
{
    return x->status;
}

bool exchange_strip(exchange *x, const char *prefix)
{
    const size_t length = strlen(prefix);
    char *target = x->request.target;
    if (strncmp(target, prefix, length) != 0 || (target[length] && target[length] != '/'))
        return false;
    memmove(target, target + length, strlen(target + length) + 1);
    if (!*target && length) memcpy(target, "/", 2);
    return true;
}

void exchange_set_facts(exchange *x, const exchange_facts *facts)
{
    pthread_mutex_lock(&x->lock);
    x->facts = *facts;
    pthread_mutex_unlock(&x->lock);
}

const http_parser *exchange_request(const exchange *x)
{
    return &x->request;
}

void exchange_set_handler(exchange *x, const exchange_handler *handler)
{
    pthread_mutex_lock(&x->lock);
    x->handler = *handler;
    bool gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    if (gone && handler->on_gone) handler->on_gone(handler->context);
}

void exchange_leave(exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool first = !x->gone;
    x->gone = true;
    x->unsent = 0;
    exchange_handler handler = x->handler;
    pthread_mutex_unlock(&x->lock);
    if (first && handler.on_gone) handler.on_gone(handler.context);
}

/* ---- Writing ------------------------------------------------------------------------------- */

const char *http_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {204, "No Content"},
                   {304, "Not Modified"},
                   {308, "Permanent Redirect"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {413, "Content Too Large"},
                   {414, "URI Too Long"},
                   {415, "Unsupported Media Type"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {502, "Bad Gateway"},
                   {503, "Service Unavailable"},
                   {504, "Gateway Timeout"},
                   {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (reasons[i].status == status) return reasons[i].reason;
    }
    return "Unknown";
}

void exchange_add_header(exchange *x, const char *header)
{
    pthread_mutex_lock(&x->lock);
    strbuf_puts(&x->headers, header);
    strbuf_puts(&x->headers, "\r\n");
    pthread_mutex_unlock(&x->lock);
}

/* Appends the head of the reply; `length` < 0: not known before the end. */
static void put_head(exchange *x, int status, const char *type, long long length)
{
    strbuf_printf(&x->out, "HTTP/1.1 %d %s\r\nServer: quipu\r\n", status, http_reason(status));
    x->status = status;
    strbuf_printf(&x->out, "X-Request-Id: %s\r\n", x->id);
    if (*x->trace) strbuf_printf(&x->out, "traceparent: %s\r\n", x->trace);
    if (type) strbuf_printf(&x->out, "Content-Type: %s\r\n", type);
    x->chunked = length < 0 && x->request.minor == 1 && !x->head_only;
    if (length >= 0)
        strbuf_printf(&x->out, "Content-Length: %lld\r\n", length);
    else if (x->chunked)
        strbuf_puts(&x->out, "Transfer-Encoding: chunked\r\nCache-Control: no-cache\r\n");
    else
        x->keep_alive = false;
    strbuf_append(&x->out, strbuf_text(&x->headers), x->headers.length);
    strbuf_puts(&x->out, x->keep_alive ? "\r\n" : "Connection: close\r\n\r\n");
}

static void put_body(exchange *x, const void *bytes, size_t length)
{
    if (x->head_only || !length) return;
    x->bytes += length;
    if (x->chunked) strbuf_printf(&x->out, "%zx\r\n", length);
    strbuf_append(&x->out, bytes, length);
    if (x->chunked) strbuf_puts(&x->out, "\r\n");
}

/* Ends a section that wrote into x->out: queues it for the I/O thread. If memory ran out while it
 * was written, the I/O thread ends the connection. */
static void unlock_and_queue(exchange *x)
{
    bool put = !x->queued && !x->gone;
    if (put) x->queued = true;
    if (x->gone) strbuf_clear(&x->out);
    pthread_mutex_unlock(&x->lock);
    if (put) outbox_put(x->box, x);
}

void exchange_reply(exchange *x, int status, const char *type, const void *body, size_t length)
{
    pthread_mutex_lock(&x->lock);
    put_head(x, status, type, (long long)length);
    put_body(x, body, length);
    x->ended = true;
    unlock_and_queue(x);
}

void exchange_begin(exchange *x, int status, const char *type)
{
    pthread_mutex_lock(&x->lock);
    put_head(x, status, type, -1);
    x->takes_pings = strcmp(type, "text/event-stream") == 0;
    x->said = true; /* a ping comes after a whole period of silence */
    unlock_and_queue(x);
}

void exchange_send(exchange *x, const void *bytes, size_t length)
{
    pthread_mutex_lock(&x->lock);
    x->said = true;
    put_body(x, bytes, length);
    unlock_and_queue(x);
}

void exchange_ping(exchange *x)
{
    static const char comment[] = ": ping\n\n"; /* clients of events pass over it */
    pthread_mutex_lock(&x->lock);
    const bool silent = x->takes_pings && !x->ended && !x->said && x->unsent + x->out.length == 0;
    x->said = false;
    if (silent) put_body(x, comment, sizeof comment - 1);
    if (silent)
        unlock_and_queue(x);
    else
        pthread_mutex_unlock(&x->lock);
}

void exchange_end(exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (x->chunked) strbuf_puts(&x->out, "0\r\n\r\n");
    x->ended = true;
    unlock_and_queue(x);
}

bool exchange_is_gone(exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    return gone;
}

bool exchange_is_full(exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->paused = !x->gone && x->out.length + x->unsent > FULL;
    bool full = x->paused;
    pthread_mutex_unlock(&x->lock);
    return full;
}

void exchange_set_unsent(exchange *x, size_t unsent)
{
    pthread_mutex_lock(&x->lock);
    x->unsent = unsent;
    bool resume = x->paused && x->out.length + unsent <= ROOM;
    if (resume) x->paused = false;
    exchange_handler handler = x->handler;
    pthread_mutex_unlock(&x->lock);
    if (resume && handler.on_room) handler.on_room(handler.context);
}
