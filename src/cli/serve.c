/* quipu serve: the server's options; all else is in src/server. */
#include "cli/cli.h"

#include "base/files.h"
#include "base/json.h"
#include "base/platform.h"
#include "file/mapping.h"
#include "router/link.h"
#include "router/router.h"
#include "server/server.h"

#include <stdlib.h>
#include <string.h>

/* The name of the model's file, without its folder and ending. */
static void name_model(const char *path, char *name, size_t size)
{
    snprintf(name, size, "%s", files_last(path));
    size_t length = strlen(name);
    if (length > 5 && strcmp(name + length - 5, ".gguf") == 0) name[length - 5] = '\0';
}

/* Rows of logits in a pass: one for each answer, and for prompts whose tokens are all scored.
 * Passes of fixed shapes always compute all of them. */
enum { OUTPUTS_LEAST = 128, OUTPUTS_LEAST_FIXED = 32 };

static qp_status open_model(void *context, qp_engine **engine, qp_sampling *sampling,
                            qp_error *error)
{
    cli_call call = *(const cli_call *)context;
    call.error = error;
    const int64_t least = call.settings->batch_invariant ? OUTPUTS_LEAST_FIXED : OUTPUTS_LEAST;
    int64_t outputs = call.settings->parallel;
    if (outputs < least) outputs = least;
    qp_status status = cli_open_engine(&call, outputs, engine);
    return status == QP_OK ? cli_sampling(&call, *engine, sampling) : status;
}

/* Requests choose adapters by their names. */
static qp_status check_names(const cli_adapters *adapters, const char *model, qp_error *error)
{
    for (size_t i = 0; i < adapters->n; i++) {
        bool taken = strcmp(adapters->names[i], model) == 0;
        for (size_t j = 0; j < i; j++)
            taken |= strcmp(adapters->names[i], adapters->names[j]) == 0;
        if (taken)
            return error_set(error, QP_INVALID,
                             "--lora: \"%.100s\" is the name of the model or of another adapter; "
                             "give it one by NAME=%.200s",
                             adapters->names[i], adapters->of[i].path);
    }
    return QP_OK;
}

static void log_line(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "%s\n", line);
}

static void tell_ready(void *context, int port)
{
    const cli_call *call = context;
    (void)port;
    link_tell_ready((int)call->settings->started_by);
}

static server_options options_of(const cli_call *call, const cJSON *template_variables,
                                 const char *chat_template)
{
    static const char *const usual[] = {"127.0.0.1"};
    const cli_settings *s = call->settings;
    return (server_options){.hosts = s->hosts.count ? s->hosts.items : usual,
                            .n_hosts = s->hosts.count ? (size_t)s->hosts.count : 1,
                            .tls_certificate = s->tls_cert,
                            .tls_key = s->tls_key,
                            .prefix = s->api_prefix && *s->api_prefix ? s->api_prefix : NULL,
                            .access_log = s->access_log || s->log_json,
                            .log_json = s->log_json,
                            .log_line = log_line,
                            .max_tokens = (size_t)s->n_predict,
                            .port = (int)s->port,
                            .alias = s->alias,
                            .api_key_file = s->api_key_file,
                            .origins = s->origins.items,
                            .n_origins = (size_t)s->origins.count,
                            .insecure = s->insecure,
                            .shared_cache = s->shared_cache,
                            .template_variables = template_variables,
                            .pooling = (server_pooling)s->pooling,
                            .cut_embeddings = s->matryoshka,
                            .raw_special = (server_switch)s->raw_special,
                            .chat_template = chat_template,
                            .prompt_cache = s->prompt_cache,
                            .prompt_cache_size = s->prompt_cache_size,
                            .workers = (int)s->http_workers,
                            .parallel = (size_t)s->parallel,
                            .max_body = s->max_body,
                            .store_size = s->store_size,
                            .max_connections = (size_t)s->max_connections,
                            .client_connections = (size_t)s->client_connections,
                            .max_queued = (size_t)s->max_queued,
                            .kv_events = s->kv_events,
                            .kv_events_replay = s->kv_events_replay,
                            .kv_events_topic = s->kv_events_topic,
                            .own_metrics = s->own_metrics,
                            .drain_delay = s->drain_delay,
                            .drain_seconds = s->drain,
                            .timeout = s->silence,
                            .ping_seconds = s->sse_ping,
                            .open = open_model,
                            .limit_ending = cli_limit_ending,
                            .context = (void *)call,
                            .stop = s->started_by ? LINK_END_DESCRIPTOR : 0,
                            .ready = s->started_by ? tell_ready : NULL,
                            .log = s->started_by ? NULL : cli_log};
}

static qp_status serve(const cli_call *call, const cJSON *template_variables,
                       const char *chat_template)
{
    server_options options = options_of(call, template_variables, chat_template);
    const char *path;
    char name[256];
    TRY(cli_model_path(call, &path));
    if (cli_only_helps_ranks(call)) { /* the first rank listens */
        qp_engine *none;
        qp_sampling sampling;
        return open_model((void *)call, &none, &sampling, call->error);
    }
    cli_adapters adapters;
    TRY(cli_read_adapters(call, &adapters));
    name_model(path, name, sizeof name);
    if (!options.alias || !*options.alias) options.alias = name;
    options.adapter_names = adapters.names;
    TRY(check_names(&adapters, options.alias, call->error));
    return server_run(&options, call->error);
}

/* One server before a process for each model that is asked for. */
static qp_status serve_models(const cli_call *call)
{
    const cli_settings *s = call->settings;
    server_options options = options_of(call, NULL, NULL);
    router_options several = {.models = s->models,
                              .memory =
                                  s->models_memory ? s->models_memory : platform_free_memory(),
                              .keep_alive = s->keep_alive,
                              .load_timeout = s->load_timeout,
                              .log = cli_log};
    router *router;
    strbuf words = {0};
    const char **arguments = cli_arguments_for_models(call, &words, &several.n_arguments);
    if (!arguments) return error_no_memory(call->error, "arguments", 0);
    several.arguments = arguments;
    options.alias = "several models";
    options.ping_seconds = 0; /* the processes do that */
    options.prompt_cache = NULL;
    qp_status status = router_new(&several, &options.proxy, &router, call->error);
    if (status == QP_OK) status = server_run(&options, call->error);
    router_free(router);
    free(arguments);
    strbuf_free(&words);
    return status;
}

/* An origin has a scheme and no path, or no browser would ever send it. */
static qp_status check_origins(const cli_call *call)
{
    const option_strings *origins = &call->settings->origins;
    for (int i = 0; i < origins->count; i++) {
        const char *name = origins->items[i], *host = strstr(name, "://");
        if (strcmp(name, "*") == 0 || strcmp(name, "localhost") == 0) continue;
        if (!host || host == name || !host[3] || strchr(host + 3, '/'))
            return error_set(call->error, QP_INVALID,
                             "--cors-origin: expected an origin such as https://example.org, "
                             "localhost or *, found '%.200s'",
                             name);
    }
    return QP_OK;
}

static qp_status check_prefix(const cli_call *call)
{
    const char *prefix = call->settings->api_prefix;
    const size_t length = prefix ? strlen(prefix) : 0;
    if (length == 0 || (*prefix == '/' && length > 1 && prefix[length - 1] != '/')) return QP_OK;
    return error_set(call->error, QP_INVALID,
                     "--api-prefix: expected a path that begins with / and does not end with one, "
                     "such as /llm, found '%.200s'",
                     prefix);
}

/* The text of --chat-template, to free(); NULL: it is not given. */
static qp_status read_template(const cli_call *call, char **out)
{
    enum { TEMPLATE_LIMIT = 16 << 20 };
    size_t length;
    const char *given = call->settings->chat_template;
    if (!given) return QP_OK;
    if (!strchr(given, '{'))
        return file_read_text(given, TEMPLATE_LIMIT, out, &length, call->error);
    *out = strdup(given);
    return *out ? QP_OK : error_no_memory(call->error, "the chat template", strlen(given));
}

qp_status command_serve(const cli_call *call)
{
    static const char option[] = "--chat-template-kwargs";
    const char *text = call->settings->template_kwargs;
    char *template = NULL;
    cJSON *variables = NULL;
    TRY(check_origins(call));
    TRY(check_prefix(call));
    if (call->settings->models) return serve_models(call);
    if (text) TRY(json_parse_exact(text, strlen(text), option, &variables, call->error));
    qp_status status = QP_OK;
    if (text && !cJSON_IsObject(variables))
        status =
            error_set(call->error, QP_INVALID,
                      "%s must be a JSON object, such as {\"enable_thinking\": false}, found %s",
                      option, json_type_name(variables));
    if (status == QP_OK) status = read_template(call, &template);
    if (status == QP_OK) status = serve(call, variables, template);
    if (status != QP_OK && call->settings->started_by)
        link_tell_failed((int)call->settings->started_by, call->error->message);
    free(template);
    cJSON_Delete(variables);
    return status;
}
