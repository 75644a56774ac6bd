/* Adapters of requests: see lora.h. */
#include "server/lora.h"

#include "base/files.h"
#include "engine/engine.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <math.h>
#include <string.h>

void lora_begin(server *s)
{
    const engine_adapters *own = &s->engine->adapters;
    pthread_mutex_init(&s->adapters.lock, NULL);
    for (size_t i = 0; i < own->n_begin; i++)
        s->adapters.scales[own->begin[i].adapter] = own->begin[i].scale;
}

const char *lora_name(const server *s, int64_t adapter)
{
    if (s->options->adapter_names) return s->options->adapter_names[adapter];
    return files_last(model_get_adapter(s->engine->model, adapter)->path);
}

int64_t lora_find(const server *s, const char *name)
{
    for (int64_t i = 0; name && i < s->info.n_adapters; i++)
        if (strcmp(lora_name(s, i), name) == 0) return i;
    return -1;
}

/* The adapter that a call names; -1: it names none. */
static int64_t named(const call *c)
{
    const int64_t adapter = lora_find(c->server, c->p.adapter);
    return adapter >= 0 ? adapter : lora_find(c->server, c->p.model);
}

const char *lora_model(const call *c)
{
    const int64_t adapter = c->p.lora ? -1 : named(c);
    return adapter >= 0 ? lora_name(c->server, adapter) : c->server->options->alias;
}

/* [{"id": 0, "scale": 1}, ...] as scales by number; adapters that it lacks have 0. */
static qp_status read_scales(const server *s, const char *where, const cJSON *list,
                             double scales[ADAPTER_MAX], api_error *error)
{
    memset(scales, 0, ADAPTER_MAX * sizeof *scales);
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        const cJSON *id = json_get(item, "id"), *scale = json_get(item, "scale");
        if (!cJSON_IsNumber(id) || !cJSON_IsNumber(scale))
            return api_refuse(error, 400, where,
                              "%s must be a list of {\"id\": number of an adapter, \"scale\": "
                              "number}",
                              where);
        if (!(id->valuedouble >= 0 && id->valuedouble < (double)s->info.n_adapters) ||
            id->valuedouble != floor(id->valuedouble))
            return api_refuse(error, 400, where,
                              "%s: there is no adapter %g; GET /lora-adapters lists the %lld that "
                              "there are",
                              where, id->valuedouble, (long long)s->info.n_adapters);
        if (!isfinite(scale->valuedouble))
            return api_refuse(error, 400, where, "%s: the scale of adapter %g must be finite",
                              where, id->valuedouble);
        scales[(int)id->valuedouble] = scale->valuedouble;
    }
    return QP_OK;
}

/* Those whose scale is not 0. */
static qp_status use(const server *s, const double scales[ADAPTER_MAX], session_adapters *out,
                     api_error *error)
{
    qp_adapter_use uses[ADAPTER_MAX];
    size_t n = 0;
    for (size_t i = 0; i < (size_t)s->info.n_adapters; i++)
        if (scales[i] != 0) uses[n++] = (qp_adapter_use){i, scales[i]};
    const qp_status status =
        engine_use_adapters(s->engine->model, &s->engine->adapters, uses, n, out, &error->error);
    return status == QP_OK ? QP_OK : api_refuse(error, 400, "lora", "%s", error->error.message);
}

qp_status lora_choose(const call *c, session_adapters *out, api_error *error)
{
    server *s = c->server;
    double scales[ADAPTER_MAX] = {0};
    const int64_t adapter = named(c);
    if (c->p.adapter && lora_find(s, c->p.adapter) < 0)
        return api_refuse(error, 400, "lora_path",
                          "there is no adapter of the name \"%.100s\"; GET /v1/models lists them",
                          c->p.adapter);
    if (c->p.lora) {
        TRY(read_scales(s, "lora", c->p.lora, scales, error));
    } else if (adapter >= 0) {
        scales[adapter] = s->engine->adapters.scales[adapter];
    } else {
        pthread_mutex_lock(&s->adapters.lock);
        memcpy(scales, s->adapters.scales, sizeof scales);
        pthread_mutex_unlock(&s->adapters.lock);
    }
    return use(s, scales, out, error);
}

qp_status answer_adapters(call *c, api_error *error)
{
    server *s = c->server;
    (void)error;
    strbuf_putc(&c->out, '[');
    for (int64_t i = 0; i < s->info.n_adapters; i++) {
        pthread_mutex_lock(&s->adapters.lock);
        const double scale = s->adapters.scales[i];
        pthread_mutex_unlock(&s->adapters.lock);
        json_put(&c->out, "%s{'id':%i,'name':%q,'path':%q,'scale':%g}", i ? "," : "", i,
                 lora_name(s, i), model_get_adapter(s->engine->model, i)->path, scale);
    }
    strbuf_putc(&c->out, ']');
    return QP_OK;
}

qp_status answer_set_adapters(call *c, api_error *error)
{
    server *s = c->server;
    double scales[ADAPTER_MAX];
    session_adapters checked;
    const strbuf *body = &exchange_request(c->exchange)->body;
    if (json_parse_exact(strbuf_text(body), body->length, "the body", &c->body, &error->error) !=
        QP_OK)
        return api_failed(error, QP_FORMAT);
    if (!cJSON_IsArray(c->body))
        return api_refuse(error, 400, NULL, "the body must be a list, found %s",
                          json_type_name(c->body));
    TRY(read_scales(s, "the body", c->body, scales, error));
    TRY(use(s, scales, &checked, error));
    pthread_mutex_lock(&s->adapters.lock);
    memcpy(s->adapters.scales, scales, sizeof scales);
    pthread_mutex_unlock(&s->adapters.lock);
    json_put(&c->out, "{'success':true}");
    return QP_OK;
}
