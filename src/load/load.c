#include "load/load.h"

#include "load/client.h"
#include "load/simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_VOCABULARY = 32000 }; /* Llama 2's, the smallest of the usual ones */

qp_status load_parse_limits(const char *text, load_limits *out, qp_error *error)
{
    *out = (load_limits){0};
    while (*text) {
        double *limit = strncmp(text, "ttft:", 5) == 0   ? &out->ttft
                        : strncmp(text, "tpot:", 5) == 0 ? &out->tpot
                        : strncmp(text, "e2el:", 5) == 0 ? &out->e2e
                                                         : NULL;
        char *end = NULL;
        if (limit) *limit = strtod(text + 5, &end);
        if (!limit || end == text + 5 || !(*limit > 0 && *limit < 1e12) || (*end && *end != ','))
            return error_set(error, QP_INVALID,
                             "--slo is \"%s\"; expected limits in milliseconds such as "
                             "ttft:200,tpot:20,e2el:5000",
                             text);
        text = end + (*end == ',');
    }
    return QP_OK;
}

/* The model's name as a JSON string. */
static qp_status quote(const char *name, strbuf *out, qp_error *error)
{
    strbuf_putc(out, '"');
    for (; *name; name++) {
        if (*name == '"' || *name == '\\') strbuf_putc(out, '\\');
        if ((unsigned char)*name < ' ')
            return error_set(error, QP_INVALID, "the model's name holds a control character");
        strbuf_putc(out, *name);
    }
    strbuf_putc(out, '"');
    return out->failed ? error_no_memory(error, "a name", out->length) : QP_OK;
}

/* Determines the model's name for requests, and the size of its vocabulary. */
static qp_status choose_model(const load_options *o, const server_facts *server,
                              const qp_error *why, workload *w, load_result *out, strbuf *quoted,
                              qp_error *error)
{
    const char *name = o->model ? o->model : server->model;
    if (!*name)
        return error_set(error, QP_INVALID,
                         "--model is needed, because %s/v1/models names none: %s", o->url,
                         why->message);
    snprintf(out->model, sizeof out->model, "%s", name);
    if (!w->source.vocab_size) w->source.vocab_size = server->vocab_size;
    if (!w->source.vocab_size) w->source.vocab_size = USUAL_VOCABULARY;
    TRY(quote(name, quoted, error));
    w->model = quoted->data;
    return QP_OK;
}

static qp_status run(const load_options *o, const load_url *url, workload *w, strbuf *model,
                     load_result *out, qp_error *error)
{
    server_facts server;
    client *c = NULL;
    qp_error why = {0};
    TRY(server_facts_get(url, o->api_key, o->timeout, o->cancel, &server, &why, error));
    TRY(choose_model(o, &server, &why, w, out, model, error));
    qp_status status = client_open(w, url, &server, out, &c, error);
    if (status == QP_OK && o->warmup) status = client_run(c, true, error);
    if (status == QP_OK) status = client_run(c, false, error);
    client_close(c);
    return status;
}

qp_status load_run(const load_options *options, load_result *out, qp_error *error)
{
    load_url url;
    workload w;
    strbuf model = {0};
    *out = (load_result){0};
    if (!options->costs) TRY(url_parse(options->url, &url, error));
    qp_status status = workload_open(options, &w, error);
    if (status == QP_OK)
        status =
            options->costs ? simulate(&w, out, error) : run(options, &url, &w, &model, out, error);
    out->left_out = w.left_out;
    workload_close(&w);
    strbuf_free(&model);
    return status;
}

void load_result_free(load_result *result)
{
    free(result->records);
    free(result->gaps);
    *result = (load_result){0};
}
