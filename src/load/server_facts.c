#include "load/server_facts.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "load/answer.h"
#include "load/http_reply.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 8 << 20, LOOK_MS = 200 };

static qp_status keep_body(void *context, const char *bytes, size_t length, qp_error *error)
{
    strbuf *body = context;
    if (body->length + length > MOST_BYTES)
        return error_set(error, QP_FORMAT, "the server's list of models has more than %d MiB",
                         MOST_BYTES >> 20);
    strbuf_append(body, bytes, length);
    return body->failed ? error_no_memory(error, "the list of models", length) : QP_OK;
}

static qp_status send_request(int fd, const load_url *url, const char *api_key, qp_error *error)
{
    strbuf request = {0};
    qp_status status = QP_OK;
    strbuf_printf(&request, "GET %s/v1/models HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n",
                  url->prefix, url->authority);
    if (api_key) strbuf_printf(&request, "Authorization: Bearer %s\r\n", api_key);
    strbuf_puts(&request, "\r\n");
    if (request.failed)
        status = error_no_memory(error, "a request", 0);
    else if (send(fd, request.data, request.length, MSG_NOSIGNAL) != (ssize_t)request.length)
        status = error_set(error, QP_IO, "%s: %s", url->authority, strerror(errno));
    strbuf_free(&request);
    return status;
}

/* Waits for bytes until `deadline` (of clock_ns()). */
static qp_status await(int fd, const load_url *url, uint64_t deadline, const volatile int *cancel,
                       qp_error *error)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    for (;;) {
        if (cancel && *cancel) return error_set(error, QP_CANCELLED, "interrupted");
        if (clock_ns() >= deadline)
            return error_set(error, QP_IO, "%s does not answer GET /v1/models in time",
                             url->authority);
        if (poll(&wait, 1, LOOK_MS) > 0) return QP_OK;
    }
}

static qp_status read_reply(int fd, uint64_t deadline, const volatile int *cancel,
                            const load_url *url, http_reply *reply, strbuf *body, qp_error *error)
{
    char bytes[4096];
    while (reply->state != HTTP_DONE) {
        size_t used;
        TRY(await(fd, url, deadline, cancel, error));
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return error_set(error, QP_IO, "%s does not answer GET /v1/models: %s", url->authority,
                             strerror(errno));
        if (n == 0)
            TRY(http_reply_close(reply, error));
        else
            TRY(http_reply_read(reply, bytes, (size_t)n, &used, keep_body, body, error));
    }
    return QP_OK;
}

/* {"data": [{"id": ..., "meta": {"n_vocab": ...}}]} */
static qp_status read_models(const strbuf *body, server_facts *out, qp_error *error)
{
    cJSON *root = NULL;
    const char *id = NULL;
    qp_status status = json_parse(strbuf_text(body), body->length, "/v1/models", &root, error);
    const cJSON *model = cJSON_GetArrayItem(json_get(root, "data"), 0);
    if (status == QP_OK) status = json_get_string(model, "id", "/v1/models", &id, error);
    if (status == QP_OK && !id) status = error_set(error, QP_FORMAT, "it lists no models");
    if (status == QP_OK) {
        snprintf(out->model, sizeof out->model, "%s", id);
        const cJSON *n_vocab = json_get(json_get(model, "meta"), "n_vocab");
        if (cJSON_IsNumber(n_vocab) && n_vocab->valuedouble >= 64 && n_vocab->valuedouble < 1e9)
            out->vocab_size = (int64_t)n_vocab->valuedouble;
    }
    cJSON_Delete(root);
    return status;
}

qp_status server_facts_get(const load_url *url, const char *api_key, double timeout,
                           const volatile int *cancel, server_facts *out, qp_error *why,
                           qp_error *error)
{
    int fd;
    http_reply reply = {0};
    strbuf body = {0};
    *out = (server_facts){0};
    TRY(url_connect(url, &out->address, &out->address_length, &fd, error));
    const uint64_t deadline = clock_ns() + (uint64_t)((timeout + 1) * 1e9);
    qp_status status = send_request(fd, url, api_key, error);
    if (status == QP_OK) status = read_reply(fd, deadline, cancel, url, &reply, &body, error);
    close(fd);
    if (status == QP_OK && reply.status != 200)
        answer_refused(reply.status, strbuf_text(&body), body.length, why);
    else if (status == QP_OK)
        read_models(&body, out, why);
    strbuf_free(&body);
    return status;
}
