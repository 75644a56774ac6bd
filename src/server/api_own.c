/* Health, models, tokens and templates: see api_own.h. */
#include "server/api_own.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/sampling.h"
#include "server/lora.h"
#include "server/server_state.h"
#include "text/json_string.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

#define AT(member) .at = offsetof(parameters, member)

/* ---- At once ------------------------------------------------------------------------------- */

void reply_ready(server *s, exchange *x)
{
    api_error error = {0};
    if (atomic_load(&s->phase) != SERVER_READY || !atomic_load(&s->leaving)) {
        reply_health(s, x);
        return;
    }
    api_refuse(&error, 503, NULL, "the server ends soon, and still answers");
    server_reply_error(x, &error, API_OPENAI);
}

void reply_health(server *s, exchange *x)
{
    int phase = atomic_load(&s->phase);
    if (phase != SERVER_READY) {
        api_error error = {0};
        api_refuse(&error, 503, NULL,
                   phase == SERVER_LOADING ? "the model is being loaded" : "the server ends");
        server_reply_error(x, &error, API_OPENAI);
        return;
    }
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "status", "ok");
    if (s->batcher) {
        uint64_t now = clock_ns(), step = batcher_last_step(s->batcher);
        cJSON_AddNumberToObject(tree, "last_step_seconds",
                                now > step ? (double)(now - step) * 1e-9 : 0);
    }
    server_reply_json(x, tree);
}

static cJSON *describe_model(const server *s)
{
    cJSON *model = cJSON_CreateObject();
    cJSON_AddStringToObject(model, "id", s->options->alias);
    cJSON_AddStringToObject(model, "object", "model");
    cJSON_AddNumberToObject(model, "created", (double)s->started);
    cJSON_AddStringToObject(model, "owned_by", "quipu");
    if (atomic_load(&s->phase) == SERVER_LOADING) return model;
    cJSON_AddNumberToObject(model, "max_model_len", (double)s->info.context);
    cJSON *meta = cJSON_AddObjectToObject(model, "meta");
    cJSON_AddNumberToObject(meta, "n_vocab", (double)s->info.vocab_size);
    cJSON_AddNumberToObject(meta, "n_ctx_train", (double)s->info.model_context);
    cJSON_AddNumberToObject(meta, "size", (double)s->info.weight_bytes);
    return model;
}

/* As vLLM lists an adapter. */
static cJSON *describe_adapter(const server *s, int64_t adapter)
{
    cJSON *model = cJSON_CreateObject();
    cJSON_AddStringToObject(model, "id", lora_name(s, adapter));
    cJSON_AddStringToObject(model, "object", "model");
    cJSON_AddNumberToObject(model, "created", (double)s->started);
    cJSON_AddStringToObject(model, "owned_by", "quipu");
    cJSON_AddStringToObject(model, "root", model_get_adapter(s->engine->model, adapter)->path);
    cJSON_AddStringToObject(model, "parent", s->options->alias);
    cJSON_AddNumberToObject(model, "max_model_len", (double)s->info.context);
    return model;
}

void reply_models(server *s, exchange *x)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "object", "list");
    cJSON *list = cJSON_AddArrayToObject(tree, "data");
    cJSON_AddItemToArray(list, describe_model(s));
    const bool opened = atomic_load(&s->phase) != SERVER_LOADING;
    for (int64_t i = 0; opened && i < s->info.n_adapters; i++)
        cJSON_AddItemToArray(list, describe_adapter(s, i));
    server_reply_json(x, tree);
}

void reply_model(server *s, exchange *x)
{
    const char *name = exchange_request(x)->target + strlen("/v1/models/");
    if (strcmp(name, s->options->alias) == 0) {
        server_reply_json(x, describe_model(s));
        return;
    }
    const int64_t adapter = atomic_load(&s->phase) == SERVER_LOADING ? -1 : lora_find(s, name);
    if (adapter >= 0) {
        server_reply_json(x, describe_adapter(s, adapter));
        return;
    }
    api_error error = {.code = "model_not_found"};
    api_refuse(&error, 404, "model", "there is no model %.200s here, but %s", name,
               s->options->alias);
    server_reply_error(x, &error, API_OPENAI);
}

static void add_piece(cJSON *object, const char *name, const qp_vocabulary *v, qp_role role)
{
    size_t length = 0;
    const char *piece = v ? qp_token_piece(v, qp_special_token(v, role), &length) : NULL;
    strbuf json = {0};
    json_put_string(&json, piece ? piece : "", piece ? length : 0);
    cJSON_AddRawToObject(object, name, strbuf_text(&json));
    strbuf_free(&json);
}

void reply_props(server *s, exchange *x)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON *settings = cJSON_AddObjectToObject(tree, "default_generation_settings");
    qp_sampling sampling = s->defaults;
    sampling_exclude_unlikely(s->engine, &sampling);
    cJSON_AddNumberToObject(settings, "n_ctx", (double)s->info.context);
    cJSON *values = cJSON_AddObjectToObject(settings, "params");
    for (int i = 0; i < QP_SETTING_COUNT; i++)
        cJSON_AddNumberToObject(values, qp_setting_name((qp_setting)i), sampling.value[i]);
    cJSON_AddNumberToObject(tree, "total_slots", (double)s->options->parallel);
    cJSON_AddStringToObject(tree, "model_alias", s->options->alias);
    cJSON_AddStringToObject(tree, "model_path", model_path(s->engine->model));
    const char *source = s->vocabulary ? qp_chat_template(s->vocabulary) : NULL;
    cJSON_AddStringToObject(tree, "chat_template", source ? source : "");
    add_piece(tree, "bos_token", s->vocabulary, QP_ROLE_BOS);
    add_piece(tree, "eos_token", s->vocabulary, QP_ROLE_EOS);
    cJSON_AddStringToObject(tree, "build_info", "quipu " QP_VERSION);
    server_reply_json(x, tree);
}

/* What routers ask a worker for before they send it requests. */
void reply_model_info(server *s, exchange *x)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "model_path", model_path(s->engine->model));
    cJSON_AddStringToObject(tree, "tokenizer_path", model_path(s->engine->model));
    cJSON_AddStringToObject(tree, "served_model_name", s->options->alias);
    cJSON_AddStringToObject(tree, "model_type", engine_family(s->engine));
    cJSON_AddBoolToObject(tree, "is_generation", true);
    cJSON_AddNumberToObject(tree, "max_context_length", (double)s->info.context);
    cJSON_AddNumberToObject(tree, "vocab_size", (double)s->info.vocab_size);
    server_reply_json(x, tree);
}

void reply_server_info(server *s, exchange *x)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "version", QP_VERSION);
    cJSON_AddStringToObject(tree, "model_path", model_path(s->engine->model));
    cJSON_AddStringToObject(tree, "served_model_name", s->options->alias);
    cJSON_AddStringToObject(tree, "device", s->info.device);
    cJSON_AddStringToObject(tree, "kv_cache_dtype", dtype_name(s->engine->program.options.kv_type));
    cJSON_AddNumberToObject(tree, "max_model_len", (double)s->info.context);
    cJSON_AddNumberToObject(tree, "max_running_requests", (double)s->options->parallel);
    cJSON_AddNumberToObject(tree, "max_queued_requests", (double)s->options->max_queued);
    cJSON_AddNumberToObject(tree, "page_size", (double)s->engine->pages.page_size);
    cJSON_AddNumberToObject(tree, "num_pages", (double)s->engine->pages.n_pages);
    cJSON_AddNumberToObject(tree, "max_total_num_tokens",
                            (double)(s->engine->pages.n_pages * s->engine->pages.page_size));
    cJSON_AddNumberToObject(tree, "dp_size", 1);
    server_reply_json(x, tree);
}

/* As vLLM has it, for programs that tokenize by the server. */
void reply_tokenizer_info(server *s, exchange *x)
{
    static const struct {
        const char *name;
        qp_role role;
    } tokens[] = {{"bos_token", QP_ROLE_BOS},
                  {"eos_token", QP_ROLE_EOS},
                  {"unk_token", QP_ROLE_UNKNOWN},
                  {"pad_token", QP_ROLE_PADDING}};
    cJSON *tree = cJSON_CreateObject();
    const char *source = s->vocabulary ? qp_chat_template(s->vocabulary) : NULL;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        if (s->vocabulary && qp_special_token(s->vocabulary, tokens[i].role) >= 0)
            add_piece(tree, tokens[i].name, s->vocabulary, tokens[i].role);
        else
            cJSON_AddNullToObject(tree, tokens[i].name);
    }
    cJSON_AddNumberToObject(tree, "model_max_length", (double)s->info.context);
    if (source) cJSON_AddStringToObject(tree, "chat_template", source);
    server_reply_json(x, tree);
}

/* ---- On a worker --------------------------------------------------------------------------- */

static const field tokenize_fields[] = {
    FIELD("content", .type = FIELD_STRING, AT(text), .help = "the text"),
    FIELD("prompt", .type = FIELD_STRING, AT(text),
          .help = "the text, as vLLM has it: control tokens in it become their ids"),
    FIELD("add_special_tokens", .type = FIELD_BOOL, AT(add_special),
          .help = "with \"prompt\": begin with BOS where the model wants it; none: true"),
    FIELD("add_special", .type = FIELD_BOOL, AT(add_special),
          .help = "begin with BOS where the model wants it"),
    FIELD("parse_special", .type = FIELD_BOOL, AT(parse_special),
          .help = "control tokens written in the text become their ids"),
    FIELD("with_pieces", .type = FIELD_BOOL, AT(with_pieces),
          .help = "objects with \"id\" and \"piece\" in place of ids"),
    {0}};
const field *const tokenize_tables[] = {tokenize_fields, NULL};

/* A token's bytes: a text, or an array of bytes where they are no whole UTF-8. */
static cJSON *piece_value(const qp_vocabulary *v, int32_t token)
{
    size_t length = 0;
    const char *piece = qp_token_piece(v, token, &length);
    if (utf8_valid_run(piece ? piece : "", length) == length && !memchr(piece, '\0', length)) {
        char *text = strndup(piece, length);
        cJSON *value = cJSON_CreateString(text ? text : "");
        free(text);
        return value;
    }
    cJSON *bytes = cJSON_CreateArray();
    for (size_t i = 0; i < length; i++)
        cJSON_AddItemToArray(bytes, cJSON_CreateNumber((unsigned char)piece[i]));
    return bytes;
}

qp_status answer_tokenize(call *c, cJSON **out, api_error *error)
{
    const qp_vocabulary *v = c->server->vocabulary;
    const bool prompt = json_get(c->body, "prompt");
    const bool begins = prompt && !json_get(c->body, "add_special_tokens");
    qp_tokens tokens = {0};
    unsigned flags = c->p.add_special || begins ? QP_BOS_DEFAULT : QP_BOS_NEVER;
    if (c->p.parse_special || prompt) flags |= QP_SPECIAL;
    TRY(server_vocabulary(c->server, error));
    if (!c->p.text) return api_refuse(error, 400, "content", "\"content\" is missing");
    qp_status status = qp_tokenize(v, c->p.text, strlen(c->p.text), flags, &tokens, &error->error);
    if (status != QP_OK) return api_failed(error, status);
    *out = cJSON_CreateObject();
    cJSON *list = cJSON_AddArrayToObject(*out, "tokens");
    cJSON_AddNumberToObject(*out, "count", (double)tokens.count);
    cJSON_AddNumberToObject(*out, "max_model_len", (double)c->server->info.context);
    for (size_t i = 0; i < tokens.count; i++) {
        cJSON *id = cJSON_CreateNumber(tokens.data[i]);
        if (c->p.with_pieces) {
            cJSON *pair = cJSON_CreateObject();
            cJSON_AddItemToObject(pair, "id", id);
            cJSON_AddItemToObject(pair, "piece", piece_value(v, tokens.data[i]));
            id = pair;
        }
        cJSON_AddItemToArray(list, id);
    }
    qp_tokens_free(&tokens);
    return QP_OK;
}

static const field detokenize_fields[] = {FIELD("tokens", .type = FIELD_JSON, .types = JSON_ARRAY,
                                                AT(prompt), .required = true, .items = ITEMS_TOKENS,
                                                .help = "token ids"),
                                          {0}};
const field *const detokenize_tables[] = {detokenize_fields, NULL};

qp_status answer_detokenize(call *c, cJSON **out, api_error *error)
{
    size_t count = (size_t)cJSON_GetArraySize(c->p.prompt), used = 0, length;
    const cJSON *item;
    char *text;
    TRY(server_vocabulary(c->server, error));
    int32_t *ids = calloc(count + 1, sizeof *ids);
    if (!ids) return api_failed(error, error_no_memory(&error->error, "the tokens", count));
    cJSON_ArrayForEach(item, c->p.prompt) if (call_token_id(item, &ids[used])) used++;
    qp_status status = used == count ? qp_detokenize(c->server->vocabulary, ids, used, QP_SPECIAL,
                                                     &text, &length, &error->error)
                                     : error_set(&error->error, QP_INVALID,
                                                 "token ids must be whole numbers from 0 on");
    free(ids);
    if (status != QP_OK) return api_failed(error, status);
    strbuf json = {0};
    json_put_string(&json, text, length);
    qp_free(text);
    *out = cJSON_CreateObject();
    cJSON_AddRawToObject(*out, "content", strbuf_text(&json));
    cJSON_AddRawToObject(*out, "prompt", strbuf_text(&json)); /* as vLLM calls it */
    strbuf_free(&json);
    return QP_OK;
}

const field *const template_tables[] = {call_message_fields, call_tool_fields, call_template_fields,
                                        call_thinking_fields, NULL};

qp_status answer_template(call *c, cJSON **out, api_error *error)
{
    cJSON *variables;
    char *text = NULL;
    TRY(call_chat_variables(c, c->p.messages, c->p.tools, &variables, error));
    char *json = json_print(variables);
    cJSON_Delete(variables);
    if (!json) return api_failed(error, error_no_memory(&error->error, "the conversation", 0));
    qp_status status = qp_render_chat(c->server->vocabulary, json, strlen(json),
                                      !c->p.no_generation_prompt, &text, &error->error);
    cJSON_free(json);
    if (status != QP_OK) return api_failed(error, status);
    *out = cJSON_CreateObject();
    cJSON_AddStringToObject(*out, "prompt", text);
    qp_free(text);
    return QP_OK;
}
