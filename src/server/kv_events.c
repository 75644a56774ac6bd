/* Changes of the prefix cache over ZMQ: see kv_events.h. The batches are those of vLLM's
 * KVEventBatch: [time, [event...], 0] with ["BlockStored", [hash...], parent, [token...], block
 * size, null, medium] and
 * ["BlockRemoved", [hash...], medium]. */
#include "server/kv_events.h"

#include "base/platform.h"
#include "base/strbuf.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- libzmq -------------------------------------------------------------------------------- */

enum { ZMQ_PUB = 1, ZMQ_ROUTER = 6, ZMQ_RCVMORE = 13, ZMQ_LINGER = 17, ZMQ_SNDHWM = 23 };
enum { ZMQ_POLLIN = 1, ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2 };

typedef struct zmq_item {
    void *socket;
    int descriptor;
    short events, revents;
} zmq_item;

typedef struct zmq_library {
    void *handle;
    void *(*ctx_new)(void);
    int (*ctx_term)(void *context);
    void *(*socket)(void *context, int type);
    int (*close)(void *socket);
    int (*setsockopt)(void *socket, int option, const void *value, size_t size);
    int (*getsockopt)(void *socket, int option, void *value, size_t *size);
    int (*bind)(void *socket, const char *address);
    int (*send)(void *socket, const void *bytes, size_t size, int flags);
    int (*recv)(void *socket, void *bytes, size_t size, int flags);
    int (*poll)(zmq_item *items, int n, long milliseconds);
    int (*error)(void);
    const char *(*message)(int number);
} zmq_library;

static qp_status open_library(zmq_library *z, qp_error *error)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {{"zmq_ctx_new", &z->ctx_new},
                     {"zmq_ctx_term", &z->ctx_term},
                     {"zmq_socket", &z->socket},
                     {"zmq_close", &z->close},
                     {"zmq_setsockopt", &z->setsockopt},
                     {"zmq_getsockopt", &z->getsockopt},
                     {"zmq_bind", &z->bind},
                     {"zmq_send", &z->send},
                     {"zmq_recv", &z->recv},
                     {"zmq_poll", &z->poll},
                     {"zmq_errno", &z->error},
                     {"zmq_strerror", &z->message}};
    z->handle = dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
    if (!z->handle)
        return error_set(error, QP_UNSUPPORTED,
                         "--kv-events needs libzmq.so.5 (Debian's libzmq5): %.200s", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(z->handle, functions[i].name);
        if (!found)
            return error_set(error, QP_UNSUPPORTED, "libzmq.so.5 has no %s", functions[i].name);
        memcpy(functions[i].to, &found, sizeof found);
    }
    return QP_OK;
}

/* ---- Changes ------------------------------------------------------------------------------- */

enum { MOST_BATCHES = 10000, MOST_WAITING = 1 << 16 };

typedef struct change {
    bool added, below_root;
    uint64_t hash, parent;
    int32_t *tokens; /* [page size]; NULL: removed */
} change;

typedef struct change_list {
    change *items;
    size_t count, capacity;
} change_list;

typedef struct batch {
    char *bytes;
    size_t length;
} batch;

struct kv_events {
    zmq_library zmq;
    void *context, *publisher, *replay;
    prefix_tree *tree;
    const char *topic, *medium;
    size_t page_size;
    int event; /* the list has something, or the end has come */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* protects both below */
    change_list waiting;
    bool ending;
    batch batches[MOST_BATCHES]; /* the publisher's thread's, as all below: a ring by number */
    uint64_t number;             /* of the next batch */
};

/* On the engine thread. A change for which there is no memory is left out, as one is that a slow
 * subscriber loses. */
static void note_change(void *context, int32_t page, bool added)
{
    kv_events *k = context;
    const prefix_tree *t = k->tree;
    const int32_t parent = t->parents[page];
    change c = {.added = added, .below_root = parent < 0, .hash = t->hashes[page]};
    if (parent >= 0) c.parent = t->hashes[parent];
    if (added) {
        c.tokens = malloc(k->page_size * sizeof *c.tokens);
        if (!c.tokens) return;
        memcpy(c.tokens, t->tokens + (size_t)page * k->page_size, k->page_size * sizeof *c.tokens);
    }
    pthread_mutex_lock(&k->lock);
    change_list *list = &k->waiting;
    if (list->count == list->capacity && list->capacity < MOST_WAITING) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 256;
        change *grown = realloc(list->items, capacity * sizeof *grown);
        if (grown) list->items = grown, list->capacity = capacity;
    }
    const bool first = list->count == 0, room = list->count < list->capacity;
    if (room) list->items[list->count++] = c;
    pthread_mutex_unlock(&k->lock);
    if (!room) free(c.tokens);
    if (first) platform_event_signal(k->event);
}

/* ---- msgpack ------------------------------------------------------------------------------- */

static void put_big_endian(strbuf *out, char kind, uint64_t value, int bytes)
{
    if (kind) strbuf_putc(out, kind);
    for (int i = bytes; i-- > 0;)
        strbuf_putc(out, (char)(value >> 8 * i));
}

static void put_number(strbuf *out, uint64_t value)
{
    if (value < 128)
        strbuf_putc(out, (char)value);
    else if (value <= UINT32_MAX)
        put_big_endian(out, (char)0xCE, value, 4);
    else
        put_big_endian(out, (char)0xCF, value, 8);
}

static void put_array(strbuf *out, size_t count)
{
    if (count < 16)
        strbuf_putc(out, (char)(0x90 | count));
    else
        put_big_endian(out, (char)0xDD, count, 4);
}

static void put_text(strbuf *out, const char *text)
{
    strbuf_putc(out, (char)(0xA0 | strlen(text))); /* up to 31 bytes */
    strbuf_puts(out, text);
}

static void put_nil(strbuf *out)
{
    strbuf_putc(out, (char)0xC0);
}

static void put_time(strbuf *out)
{
    struct timespec now;
    uint64_t bits;
    clock_gettime(CLOCK_REALTIME, &now);
    const double seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    memcpy(&bits, &seconds, sizeof bits);
    put_big_endian(out, (char)0xCB, bits, 8);
}

/* ---- Batches ------------------------------------------------------------------------------- */

/* How many changes from one on are one event: pages that follow each other, or are removed. */
static size_t count_together(const change *c, size_t n)
{
    size_t count = 1;
    while (count < n && c[count].added == c[0].added &&
           (!c[0].added || (!c[count].below_root && c[count].parent == c[count - 1].hash)))
        count++;
    return count;
}

static void put_event(const kv_events *k, const change *c, size_t n, strbuf *out)
{
    put_array(out, c->added ? 7 : 3);
    put_text(out, c->added ? "BlockStored" : "BlockRemoved");
    put_array(out, n);
    for (size_t i = 0; i < n; i++)
        put_number(out, c[i].hash);
    if (c->added) {
        c->below_root ? put_nil(out) : put_number(out, c->parent);
        put_array(out, n * k->page_size);
        for (size_t i = 0; i < n * k->page_size; i++)
            put_number(out, (uint64_t)c[i / k->page_size].tokens[i % k->page_size]);
        put_number(out, k->page_size);
        put_nil(out);
    }
    put_text(out, k->medium);
}

static void put_batch(const kv_events *k, const change_list *list, strbuf *out)
{
    size_t n_events = 0;
    for (size_t i = 0; i < list->count; n_events++)
        i += count_together(&list->items[i], list->count - i);
    put_array(out, 3);
    put_time(out);
    put_array(out, n_events);
    for (size_t i = 0, n; i < list->count; i += n) {
        n = count_together(&list->items[i], list->count - i);
        put_event(k, &list->items[i], n, out);
    }
    put_number(out, 0); /* the rank */
}

static void send_batch(kv_events *k, change_list *list)
{
    strbuf bytes = {0}, number = {0};
    const zmq_library *z = &k->zmq;
    put_batch(k, list, &bytes);
    put_big_endian(&number, 0, k->number, 8);
    batch *kept = &k->batches[k->number % MOST_BATCHES];
    free(kept->bytes);
    kept->length = bytes.length;
    kept->bytes = strbuf_take(&bytes);
    if (kept->bytes && number.length == 8) {
        z->send(k->publisher, k->topic, strlen(k->topic), ZMQ_SNDMORE);
        z->send(k->publisher, number.data, 8, ZMQ_SNDMORE);
        z->send(k->publisher, kept->bytes, kept->length, 0);
    }
    k->number++;
    strbuf_free(&number);
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i].tokens);
    list->count = 0;
}

static void send_again(const kv_events *k, const void *client, size_t size, uint64_t number,
                       batch b)
{
    const zmq_library *z = &k->zmq;
    strbuf bytes = {0};
    put_big_endian(&bytes, 0, number, 8);
    z->send(k->replay, client, size, ZMQ_SNDMORE);
    z->send(k->replay, "", 0, ZMQ_SNDMORE);
    z->send(k->replay, strbuf_text(&bytes), 8, ZMQ_SNDMORE);
    z->send(k->replay, b.bytes ? b.bytes : "", b.length, 0);
    strbuf_free(&bytes);
}

/* (client, "", number) asks for the batches from a number on, which end with number -1. */
static void answer_replay(kv_events *k)
{
    const zmq_library *z = &k->zmq;
    unsigned char parts[3][256];
    int sizes[3] = {0}, n = 0, more = 1;
    for (size_t size = sizeof more; more; n++) {
        unsigned char ignored[256];
        const int got = z->recv(k->replay, n < 3 ? parts[n] : ignored, 256, ZMQ_DONTWAIT);
        if (got < 0) return;
        if (n < 3) sizes[n] = got;
        if (z->getsockopt(k->replay, ZMQ_RCVMORE, &more, &size) != 0) return;
    }
    if (n != 3 || sizes[0] > 255 || sizes[1] != 0 || sizes[2] != 8) return;
    uint64_t from = 0;
    for (int i = 0; i < 8; i++)
        from = from << 8 | parts[2][i];
    const uint64_t oldest = k->number > MOST_BATCHES ? k->number - MOST_BATCHES : 0;
    for (uint64_t i = from > oldest ? from : oldest; i < k->number; i++)
        send_again(k, parts[0], (size_t)sizes[0], i, k->batches[i % MOST_BATCHES]);
    send_again(k, parts[0], (size_t)sizes[0], UINT64_MAX, (batch){0});
}

static void *publish(void *context)
{
    kv_events *k = context;
    change_list list = {0};
    bool ending = false;
    while (!ending) {
        zmq_item items[] = {{.descriptor = k->event, .events = ZMQ_POLLIN},
                            {.socket = k->replay, .events = ZMQ_POLLIN}};
        if (k->zmq.poll(items, k->replay ? 2 : 1, -1) < 0 && k->zmq.error() != EINTR) break;
        if (items[0].revents & ZMQ_POLLIN) platform_event_wait(k->event);
        pthread_mutex_lock(&k->lock);
        const change_list taken = k->waiting;
        k->waiting = list;
        ending = k->ending;
        pthread_mutex_unlock(&k->lock);
        list = taken;
        if (list.count) send_batch(k, &list);
        if (k->replay && items[1].revents & ZMQ_POLLIN) answer_replay(k);
    }
    free(list.items);
    return NULL;
}

/* ---- Opening and closing ------------------------------------------------------------------- */

static qp_status open_socket(kv_events *k, int type, const char *address, void **out,
                             qp_error *error)
{
    const int linger = 200, most = 100000; /* milliseconds; messages */
    const zmq_library *z = &k->zmq;
    *out = z->socket(k->context, type);
    if (!*out) return error_no_memory(error, "a socket of ZMQ", 0);
    z->setsockopt(*out, ZMQ_LINGER, &linger, sizeof linger);
    z->setsockopt(*out, ZMQ_SNDHWM, &most, sizeof most);
    if (z->bind(*out, address) == 0) return QP_OK;
    return error_set(error, QP_IO, "KV events cannot be published at %.200s: %s", address,
                     z->message(z->error()));
}

static qp_status start(kv_events *k, const kv_events_options *options, qp_error *error)
{
    TRY(open_library(&k->zmq, error));
    k->event = platform_event_open(false);
    k->context = k->zmq.ctx_new();
    if (!k->context || k->event < 0) return error_no_memory(error, "the publisher", 0);
    TRY(open_socket(k, ZMQ_PUB, options->endpoint, &k->publisher, error));
    if (options->replay) TRY(open_socket(k, ZMQ_ROUTER, options->replay, &k->replay, error));
    if (pthread_create(&k->thread, NULL, publish, k) != 0)
        return error_set(error, QP_IO, "the system refused to start a thread for KV events");
    k->running = true;
    k->tree->change_context = k;
    k->tree->on_change = note_change;
    return QP_OK;
}

qp_status kv_events_open(const kv_events_options *options, prefix_tree *tree, kv_events **out,
                         qp_error *error)
{
    if (!tree->pool)
        return error_set(error, QP_UNSUPPORTED,
                         "there is no prefix cache whose events could be "
                         "published");
    kv_events *k = calloc(1, sizeof *k);
    if (!k) return error_no_memory(error, "the publisher", sizeof *k);
    k->tree = tree;
    k->topic = options->topic ? options->topic : "";
    k->medium = options->medium;
    k->page_size = (size_t)tree->pool->page_size;
    k->event = -1;
    pthread_mutex_init(&k->lock, NULL);
    const qp_status status = start(k, options, error);
    if (status != QP_OK) kv_events_close(k);
    *out = status == QP_OK ? k : NULL;
    return status;
}

void kv_events_close(kv_events *k)
{
    if (!k) return;
    if (k->running) {
        k->tree->on_change = NULL;
        pthread_mutex_lock(&k->lock);
        k->ending = true;
        pthread_mutex_unlock(&k->lock);
        platform_event_signal(k->event);
        pthread_join(k->thread, NULL);
    }
    if (k->publisher) k->zmq.close(k->publisher);
    if (k->replay) k->zmq.close(k->replay);
    if (k->context) k->zmq.ctx_term(k->context);
    if (k->event >= 0) close(k->event);
    for (size_t i = 0; i < MOST_BATCHES; i++)
        free(k->batches[i].bytes);
    for (size_t i = 0; i < k->waiting.count; i++)
        free(k->waiting.items[i].tokens);
    free(k->waiting.items);
    pthread_mutex_destroy(&k->lock);
    if (k->zmq.handle) dlclose(k->zmq.handle);
    free(k);
}
