/* HTTP for the hub: see transfer.h.
 *
 * A large file is cut into pieces, and each connection fetches one piece after the other. Finished
 * pieces are marked in a file beside the data, so that an interrupted download continues where it
 * stopped. The caller checks the hash of the whole file.
 */
#include "hub/transfer.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_ANSWER = 64 << 20,
    PIECE = 16 << 20,
    CONNECTIONS = 4,
    MAX_FRUITLESS = 5,    /* failed attempts of a piece in a row that bring no byte */
    STALLED_SECONDS = 30, /* seconds without a byte after which the connection counts as broken */
    MAX_WAIT_SECONDS = 60 /* longest wait, in seconds, that an answer 429 or 503 may ask for */
};

/* ---- common to all requests ---------------------------------------------------------------- */

static bool is_cancelled(const hub *hub)
{
    return hub->cancel && *hub->cancel;
}

/* libcurl calls it about once a second, and with each piece of data; not 0 ends the request. */
static int look_at_cancel(void *hub, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return is_cancelled(hub);
}

/* Certificates of authorities where a libcurl knows none: that of a program for any Linux. Older
 * ones than 7.85 are a system's own. */
static const char *find_certificates(CURL *curl)
{
#if LIBCURL_VERSION_NUM >= 0x075500
    static const char *const places[] = {
        "/etc/ssl/certs/ca-certificates.crt", /* Debian, Arch, Alpine */
        "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, RHEL */
        "/etc/ssl/ca-bundle.pem",             /* openSUSE */
    };
    const char *known = NULL, *folder = NULL;
    curl_easy_getinfo(curl, CURLINFO_CAINFO, &known);
    curl_easy_getinfo(curl, CURLINFO_CAPATH, &folder);
    for (size_t i = 0; !known && !folder && i < sizeof places / sizeof *places; i++)
        if (access(places[i], R_OK) == 0) return places[i];
#else
    (void)curl;
#endif
    return NULL;
}

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static CURL *begin_request(const hub *hub, const char *url)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_curl);
    CURL *curl = curl_easy_init();
    if (!curl) return NULL;
    curl_easy_setopt(curl, CURLOPT_URL, url);
    const char *certificates = find_certificates(curl);
    if (certificates) curl_easy_setopt(curl, CURLOPT_CAINFO, certificates);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "quipu");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)STALLED_SECONDS);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)STALLED_SECONDS);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, look_at_cancel);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, hub);
    if (hub->token) { /* libcurl does not send the token to another host after a redirect */
        curl_easy_setopt(curl, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, hub->token);
    }
    return curl;
}

static qp_status unreachable(const hub *hub, CURLcode why, qp_error *error)
{
    if (is_cancelled(hub)) return error_set(error, QP_CANCELLED, "interrupted");
    return error_set(error, QP_IO, "%s cannot be reached: %s", hub->endpoint,
                     curl_easy_strerror(why));
}

qp_status transfer_refused(const hub *hub, const char *what, long code, qp_error *error)
{
    if (code == 401 || code == 403)
        return error_set(
            error, QP_IO,
            "%s: %s (HTTP %ld): the model is gated, private or does not exist. Accept its "
            "licence on %s, then set HF_TOKEN to a token that may read it",
            what, hub->token ? "the token was refused" : "no token was given", code, hub->endpoint);
    if (code == 404)
        return error_set(error, QP_IO, "%s does not exist on %s (HTTP 404); check the spelling",
                         what, hub->endpoint);
    if (code == 429)
        return error_set(error, QP_IO,
                         "%s: %s refuses more requests for now (HTTP 429); try again later", what,
                         hub->endpoint);
    return error_set(error, QP_IO, "%s: %s answered HTTP %ld, expected 200", what, hub->endpoint,
                     code);
}

/* Seconds to wait before a request is repeated; 0: do not repeat it. */
static long seconds_to_wait(CURL *curl, long code)
{
    curl_off_t wait = 0;
    if (code != 429 && code != 503) return 0;
    curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &wait);
    if (wait < 1) wait = 1;
    return wait <= MAX_WAIT_SECONDS ? (long)wait : 0;
}

static void wait_seconds(const hub *hub, long seconds)
{
    for (long tenth = 0; tenth < 10 * seconds && !is_cancelled(hub); tenth++)
        usleep(100000);
}

/* ---- small answers ------------------------------------------------------------------------- */

static size_t append_answer(char *bytes, size_t size, size_t count, void *context)
{
    strbuf *out = context;
    if (out->length + size * count > MAX_ANSWER) return 0;
    return strbuf_append(out, bytes, size * count) ? size * count : 0;
}

qp_status transfer_get(const hub *hub, const char *url, strbuf *out, long *code, qp_error *error)
{
    CURL *curl = begin_request(hub, url);
    if (!curl) return error_no_memory(error, "a request", 0);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, append_answer);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, out);
    CURLcode result;
    for (int tries = 0;; tries++) {
        strbuf_clear(out);
        result = curl_easy_perform(curl);
        *code = 0;
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, code);
        long wait = result == CURLE_OK && tries < 2 ? seconds_to_wait(curl, *code) : 0;
        if (wait == 0 || is_cancelled(hub)) break;
        wait_seconds(hub, wait);
    }
    curl_easy_cleanup(curl);
    return result == CURLE_OK ? QP_OK : unreachable(hub, result, error);
}

/* ---- large files --------------------------------------------------------------------------- */

struct piece {
    uint64_t begin, end, done; /* done: bytes of it in the file */
    int fruitless;
    bool busy;
};

typedef struct download {
    const hub *hub;
    const char *url, *path;
    uint64_t bytes;
    int file, marks; /* the data, and a byte for each piece: '1' when it is whole */
    struct piece *pieces;
    size_t n_pieces;
    int why; /* errno of a write that failed; 0: none */
} download;

typedef struct connection {
    download *of;
    CURL *curl; /* NULL: idle */
    struct piece *piece;
    char range[64]; /* the requested range; empty: the whole file */
    bool unranged;  /* the server sends the whole file instead of the range */
    bool excess;    /* the server sent more than it announced */
} connection;

static size_t write_bytes(char *bytes, size_t size, size_t count, void *context)
{
    connection *c = context;
    struct piece *p = c->piece;
    size_t length = size * count;
    long code = 0;
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &code);
    c->unranged = code == 200 && *c->range;
    if (c->unranged) return 0;
    if (code != 200 && code != 206) return length; /* the body of an error is ignored */
    c->excess = length > p->end - p->begin - p->done;
    if (c->excess) return 0;
    for (size_t written = 0; written < length;) {
        ssize_t n = pwrite(c->of->file, bytes + written, length - written,
                           (off_t)(p->begin + p->done + written));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            c->of->why = n < 0 ? errno : ENOSPC;
            return 0;
        }
        written += (size_t)n;
    }
    p->done += length;
    p->fruitless = 0;
    if (c->of->hub->progress) progress_advance(c->of->hub->progress, length);
    return length;
}

static qp_status begin_piece(connection *c, struct piece *piece, CURLM *multi, qp_error *error)
{
    download *d = c->of;
    c->piece = piece;
    c->unranged = c->excess = false;
    c->range[0] = '\0';
    c->curl = begin_request(d->hub, d->url);
    if (!c->curl) return error_no_memory(error, "a connection", 0);
    if (d->n_pieces > 1 || piece->done > 0) {
        snprintf(c->range, sizeof c->range, "%llu-%llu",
                 (unsigned long long)(piece->begin + piece->done),
                 (unsigned long long)(piece->end - 1));
        curl_easy_setopt(c->curl, CURLOPT_RANGE, c->range);
    }
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, write_bytes);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->curl, CURLOPT_PRIVATE, c);
    piece->busy = true;
    if (curl_multi_add_handle(multi, c->curl) == CURLM_OK) return QP_OK;
    return error_no_memory(error, "a connection", 0);
}

static void mark(const download *d, const struct piece *p)
{
    /* If a mark is lost, the piece is fetched again. */
    ssize_t ignored = pwrite(d->marks, "1", 1, p - d->pieces);
    (void)ignored;
}

static struct piece *next_piece(const download *d)
{
    for (size_t i = 0; i < d->n_pieces; i++) {
        struct piece *p = &d->pieces[i];
        if (!p->busy && p->done < p->end - p->begin) return p;
    }
    return NULL;
}

/* A server that ignores ranges sends the whole file; then there is one piece, from the
 * beginning. */
static void become_one_piece(download *d)
{
    progress *progress = d->hub->progress;
    for (size_t i = 0; i < d->n_pieces && progress; i++)
        progress->done -= d->pieces[i].done;
    d->n_pieces = 1;
    d->pieces[0] = (struct piece){.end = d->bytes};
    int ignored = ftruncate(d->marks, 0);
    (void)ignored;
}

/* Evaluates the end of a request. The piece is tried again unless this fails. */
static qp_status end_piece(connection *c, CURLcode result, bool *whole_file, qp_error *error)
{
    download *d = c->of;
    struct piece *p = c->piece;
    long code = 0;
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &code);
    p->busy = false;
    if (d->why)
        return error_set(error, QP_IO, "%s cannot be written: %s", d->path, strerror(d->why));
    if (c->unranged && d->n_pieces > 1) return *whole_file = true, QP_OK;
    if (c->unranged) p->done = 0;
    if (c->excess)
        return error_set(error, QP_IO,
                         "%s: the hub sent more than the %llu bytes that it announced", d->path,
                         (unsigned long long)d->bytes);
    if (p->done == p->end - p->begin) return mark(d, p), QP_OK;
    long wait = seconds_to_wait(c->curl, code);
    bool refused = result == CURLE_OK && code != 200 && code != 206;
    if (++p->fruitless > MAX_FRUITLESS || (refused && wait == 0)) {
        if (result != CURLE_OK) return unreachable(d->hub, result, error);
        if (refused) return transfer_refused(d->hub, d->url, code, error);
        return error_set(error, QP_IO,
                         "%s: the hub sent fewer than the %llu bytes that it announced", d->path,
                         (unsigned long long)d->bytes);
    }
    wait_seconds(d->hub, wait ? wait : p->fruitless > 1 ? p->fruitless : 0);
    return QP_OK;
}

/* Handles requests that have ended. */
static qp_status collect(CURLM *multi, bool *whole_file, qp_error *error)
{
    qp_status status = QP_OK;
    CURLMsg *message;
    int left;
    while ((message = curl_multi_info_read(multi, &left))) {
        if (message->msg != CURLMSG_DONE) continue;
        CURLcode result = message->data.result;
        connection *c;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&c);
        if (status == QP_OK) status = end_piece(c, result, whole_file, error);
        curl_multi_remove_handle(multi, c->curl);
        curl_easy_cleanup(c->curl);
        c->curl = NULL;
    }
    return status;
}

static qp_status run_connections(download *d, CURLM *multi, connection *connections,
                                 bool *whole_file, qp_error *error)
{
    for (;;) {
        int active = 0, running;
        for (int i = 0; i < CONNECTIONS; i++) {
            connection *c = &connections[i];
            struct piece *p = c->curl ? NULL : next_piece(d);
            if (p) TRY(begin_piece(c, p, multi, error));
            active += c->curl != NULL;
        }
        if (active == 0) return QP_OK;
        if (is_cancelled(d->hub)) return error_set(error, QP_CANCELLED, "interrupted");
        if (curl_multi_perform(multi, &running) != CURLM_OK ||
            curl_multi_poll(multi, NULL, 0, 200, NULL) != CURLM_OK)
            return error_no_memory(error, "the connections", 0);
        TRY(collect(multi, whole_file, error));
        if (*whole_file) return QP_OK;
    }
}

static qp_status fetch_pieces(download *d, bool *whole_file, qp_error *error)
{
    connection connections[CONNECTIONS] = {0};
    CURLM *multi = curl_multi_init();
    if (!multi) return error_no_memory(error, "the connections", 0);
    for (int i = 0; i < CONNECTIONS; i++)
        connections[i].of = d;
    *whole_file = false;
    qp_status status = run_connections(d, multi, connections, whole_file, error);
    for (int i = 0; i < CONNECTIONS; i++) {
        if (!connections[i].curl) continue;
        curl_multi_remove_handle(multi, connections[i].curl);
        curl_easy_cleanup(connections[i].curl);
    }
    curl_multi_cleanup(multi);
    return status;
}

/* Opens data and marks, and finds the pieces that are already there. */
static qp_status open_download(download *d, qp_error *error)
{
    char marks[HUB_PATH_SIZE + 16], mark;
    snprintf(marks, sizeof marks, "%s.parts", d->path);
    d->file = open(d->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    d->marks = open(marks, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (d->file < 0 || d->marks < 0)
        return error_set(error, QP_IO, "%s cannot be written: %s", d->path, strerror(errno));
    int full = posix_fallocate(d->file, 0, (off_t)d->bytes);
    if (full && full != EOPNOTSUPP && full != EINVAL)
        return error_set(error, QP_IO, "%s: no room for %.1f GB: %s", d->path,
                         (double)d->bytes * 1e-9, strerror(full));
    d->n_pieces = (size_t)((d->bytes + PIECE - 1) / PIECE);
    d->pieces = calloc(d->n_pieces, sizeof *d->pieces);
    if (!d->pieces) return error_no_memory(error, "a download", d->n_pieces);
    for (size_t i = 0; i < d->n_pieces; i++) {
        struct piece *p = &d->pieces[i];
        p->begin = i * (uint64_t)PIECE;
        p->end = p->begin + PIECE < d->bytes ? p->begin + PIECE : d->bytes;
        if (pread(d->marks, &mark, 1, (off_t)i) != 1 || mark != '1') continue;
        p->done = p->end - p->begin;
        if (d->hub->progress) progress_advance(d->hub->progress, p->done);
    }
    return QP_OK;
}

qp_status transfer_file(const hub *hub, const char *url, const char *path, uint64_t bytes,
                        qp_error *error)
{
    download d = {.hub = hub, .url = url, .path = path, .bytes = bytes, .file = -1, .marks = -1};
    bool whole_file;
    qp_status status = open_download(&d, error);
    if (status == QP_OK && bytes > 0) status = fetch_pieces(&d, &whole_file, error);
    if (status == QP_OK && bytes > 0 && whole_file) {
        become_one_piece(&d);
        status = fetch_pieces(&d, &whole_file, error);
    }
    if (d.file >= 0 && close(d.file) != 0 && status == QP_OK)
        status = error_set(error, QP_IO, "%s cannot be written: %s", path, strerror(errno));
    if (d.marks >= 0) close(d.marks);
    free(d.pieces);
    return status;
}
