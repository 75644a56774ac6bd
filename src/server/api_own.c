/* Health, models, tokens and templates: see endpoints.h. */
#include "server/endpoints.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/sampling.h"
#include "server/lora.h"
#include "server/server_state.h"
#include "text/json_string.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

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
    if (!s->batcher) {
        server_reply_json(x, "{'status':'ok'}");
        return;
    }
    const uint64_t now = clock_ns(), step = batcher_last_step(s->batcher);
    server_reply_json(x, "{'status':'ok','last_step_seconds':%g}",
                      now > step ? (double)(now - step) * 1e-9 : 0.0);
}

static void put_own_model(const server *s, strbuf *out)
{
    json_put(out, "{'id':%q,'object':'model','created':%i,'owned_by':'quipu'", s->options->alias,
             (int64_t)s->started);
    if (atomic_load(&s->phase) != SERVER_LOADING)
        json_put(out, ",'max_model_len':%i,'meta':{'n_vocab':%i,'n_ctx_train':%i,'size':%i}",
                 (int64_t)s->info.context, (int64_t)s->info.vocab_size,
                 (int64_t)s->info.model_context, (int64_t)s->info.weight_bytes);
    strbuf_putc(out, '}');
}

/* As vLLM lists an adapter. */
static void put_adapter(const server *s, int64_t adapter, strbuf *out)
{
    json_put(out,
             "{'id':%q,'object':'model','created':%i,'owned_by':'quipu','root':%q,'parent':%q,"
             "'max_model_len':%i}",
             lora_name(s, adapter), (int64_t)s->started,
             model_get_adapter(s->engine->model, adapter)->path, s->options->alias,
             (int64_t)s->info.context);
}

void reply_models(server *s, exchange *x)
{
    strbuf list = {0};
    const bool opened = atomic_load(&s->phase) != SERVER_LOADING;
    put_own_model(s, &list);
    for (int64_t i = 0; opened && i < s->info.n_adapters; i++) {
        strbuf_putc(&list, ',');
        put_adapter(s, i, &list);
    }
    server_reply_json(x, "{'object':'list','data':[%t]}", &list);
    strbuf_free(&list);
}

void reply_model(server *s, exchange *x)
{
    const char *name = exchange_request(x)->target + strlen("/v1/models/");
    const int64_t adapter = atomic_load(&s->phase) == SERVER_LOADING ? -1 : lora_find(s, name);
    const bool own = strcmp(name, s->options->alias) == 0;
    strbuf model = {0};
    if (own)
        put_own_model(s, &model);
    else if (adapter >= 0)
        put_adapter(s, adapter, &model);
    if (model.length) {
        server_reply_text(x, "application/json", &model);
        strbuf_free(&model);
        return;
    }
    api_error error = {.code = "model_not_found"};
    api_refuse(&error, 404, "model", "there is no model %.200s here, but %s", name,
               s->options->alias);
    server_reply_error(x, &error, API_OPENAI);
}

/* A control token's text as JSON; `none`: where there is no such token. */
static void put_role(const qp_vocabulary *v, const char *name, qp_role role, const char *none,
                     strbuf *out)
{
    size_t length = 0;
    const char *piece = v ? qp_token_piece(v, qp_special_token(v, role), &length) : NULL;
    json_put(out, ",'%s':%Q", name, piece ? piece : none, piece ? length : 0);
}

static const char *template_of(const server *s)
{
    return s->vocabulary ? qp_chat_template(s->vocabulary) : NULL;
}

void reply_props(server *s, exchange *x)
{
    const char *source = template_of(s);
    qp_sampling sampling = s->defaults;
    strbuf values = {0}, tokens = {0};
    sampling_exclude_unlikely(s->engine, &sampling);
    for (int i = 0; i < QP_SETTING_COUNT; i++)
        json_put(&values, i ? ",%q:%g" : "%q:%g", qp_setting_name((qp_setting)i),
                 sampling.value[i]);
    put_role(s->vocabulary, "bos_token", QP_ROLE_BOS, "", &tokens);
    put_role(s->vocabulary, "eos_token", QP_ROLE_EOS, "", &tokens);
    server_reply_json(x,
                      "{'default_generation_settings':{'n_ctx':%i,'params':{%t}},'total_slots':%i,"
                      "'model_alias':%q,'model_path':%q,'chat_template':%q%t,'build_info':%q}",
                      (int64_t)s->info.context, &values, (int64_t)s->options->parallel,
                      s->options->alias, model_path(s->engine->model), source ? source : "",
                      &tokens, "quipu " QP_VERSION);
    strbuf_free(&values);
    strbuf_free(&tokens);
}

/* What routers ask a worker for before they send it requests. */
void reply_model_info(server *s, exchange *x)
{
    const char *path = model_path(s->engine->model);
    server_reply_json(x,
                      "{'model_path':%q,'tokenizer_path':%q,'served_model_name':%q,'model_type':%q,"
                      "'is_generation':true,'max_context_length':%i,'vocab_size':%i}",
                      path, path, s->options->alias, engine_family(s->engine),
                      (int64_t)s->info.context, (int64_t)s->info.vocab_size);
}

void reply_server_info(server *s, exchange *x)
{
    const int64_t pages = (int64_t)s->engine->pages.n_pages,
                  size = (int64_t)s->engine->pages.page_size;
    server_reply_json(x,
                      "{'version':%q,'model_path':%q,'served_model_name':%q,'device':%q,"
                      "'kv_cache_dtype':%q,'max_model_len':%i,'max_running_requests':%i,"
                      "'max_queued_requests':%i,'page_size':%i,'num_pages':%i,"
                      "'max_total_num_tokens':%i,'dp_size':1}",
                      QP_VERSION, model_path(s->engine->model), s->options->alias, s->info.device,
                      dtype_name(s->engine->program.options.kv_type), (int64_t)s->info.context,
                      (int64_t)s->options->parallel, (int64_t)s->options->max_queued, size, pages,
                      pages * size);
}

/* As vLLM has it, for programs that tokenize by the server. */
void reply_tokenizer_info(server *s, exchange *x)
{
    const char *source = template_of(s);
    strbuf out = {0};
    json_put(&out, "{'model_max_length':%i", (int64_t)s->info.context);
    put_role(s->vocabulary, "bos_token", QP_ROLE_BOS, NULL, &out);
    put_role(s->vocabulary, "eos_token", QP_ROLE_EOS, NULL, &out);
    put_role(s->vocabulary, "unk_token", QP_ROLE_UNKNOWN, NULL, &out);
    put_role(s->vocabulary, "pad_token", QP_ROLE_PADDING, NULL, &out);
    if (source) json_put(&out, ",'chat_template':%q", source);
    server_reply_json(x, "%t}", &out);
    strbuf_free(&out);
}

/* ---- On a worker --------------------------------------------------------------------------- */

static const field tokenize_fields[] = {
    FIELD("content", TEXT(text), .help = "the text"),
    FIELD("prompt", TEXT(text),
          .help = "the text, as vLLM has it: control tokens in it become their ids"),
    FIELD("add_special_tokens", BOOLEAN(add_special),
          .help = "with \"prompt\": begin with BOS where the model wants it; none: true"),
    FIELD("add_special", BOOLEAN(add_special), .help = "begin with BOS where the model wants it"),
    FIELD("parse_special", BOOLEAN(parse_special),
          .help = "control tokens written in the text become their ids"),
    FIELD("with_pieces", BOOLEAN(with_pieces),
          .help = "objects with \"id\" and \"piece\" in place of ids"),
    {0}};
const field *const tokenize_tables[] = {tokenize_fields, NULL};

/* A token: its id, or with its bytes, a text, or an array of bytes where they are no whole UTF-8.
 */
static void put_token(const call *c, int32_t token, strbuf *out)
{
    size_t length = 0;
    const char *piece = qp_token_piece(c->server->vocabulary, token, &length);
    if (!c->p.with_pieces) {
        json_put(out, "%d", (int)token);
        return;
    }
    json_put(out, "{'id':%d,'piece':", (int)token);
    if (utf8_valid_run(piece ? piece : "", length) == length) {
        json_put(out, "%Q}", piece ? piece : "", length);
        return;
    }
    for (size_t i = 0; i < length; i++)
        json_put(out, i ? ",%d" : "[%d", (int)(unsigned char)piece[i]);
    strbuf_puts(out, "]}");
}

qp_status answer_tokenize(call *c, api_error *error)
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
    strbuf list = {0};
    for (size_t i = 0; i < tokens.count; i++) {
        if (i) strbuf_putc(&list, ',');
        put_token(c, tokens.data[i], &list);
    }
    json_put(&c->out, "{'tokens':[%t],'count':%z,'max_model_len':%i}", &list, tokens.count,
             (int64_t)c->server->info.context);
    strbuf_free(&list);
    qp_tokens_free(&tokens);
    return QP_OK;
}

static const field detokenize_fields[] = {FIELD("tokens", TREE(JSON_ARRAY, prompt),
                                                .required = true, .items = ITEMS_TOKENS,
                                                .help = "token ids"),
                                          {0}};
const field *const detokenize_tables[] = {detokenize_fields, NULL};

qp_status answer_detokenize(call *c, api_error *error)
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
    json_put(&c->out, "{'content':%Q,'prompt':%Q}", text, length, text, length); /* vLLM: prompt */
    qp_free(text);
    return QP_OK;
}

const field *const template_tables[] = {call_message_fields, call_tool_fields, call_template_fields,
                                        call_thinking_fields, NULL};

qp_status answer_template(call *c, api_error *error)
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
    json_put(&c->out, "{'prompt':%q}", text);
    qp_free(text);
    return QP_OK;
}
