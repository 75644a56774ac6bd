/* POST /api/chat and /api/generate, and the endpoints that describe the model to Ollama's clients.
 * A reply is a stream by default, with one JSON object on each line. */
#include "server/api_ollama.h"

#include "base/clock.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "server/api_parts.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) .at = offsetof(parameters, member)

/* ---- Fields -------------------------------------------------------------------------------- */

static qp_status read_length(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    double count = value->valuedouble;
    if (count != (double)(int64_t)count || count < -2 || count > 1 << 30)
        return api_refuse(error, 400, name, "\"%s\" must be a whole number from -2 to 2^30", name);
    p->max_tokens = count > 0 ? (int64_t)count : -1; /* -1, -2 and 0: until the end */
    return QP_OK;
}

static const field option_fields[] = {FIELD("num_predict", .type = FIELD_READ, .types = JSON_NUMBER,
                                            .read = read_length, .schema = SCHEMA_COUNT,
                                            .help = "tokens of the answer; -1: until it ends"),
                                      {0}};

static const field *const option_tables[] = {option_fields,
                                             call_ending_fields,
                                             call_sampling_fields,
                                             call_vendor_fields,
                                             call_refused_fields,
                                             call_single_fields,
                                             NULL};

static const field common_fields[] = {
    FIELD("model", .type = FIELD_STRING, AT(model), .help = "any name: the server has one model"),
    FIELD("stream", .type = FIELD_BOOL, AT(stream), .help = "true, if not given"),
    FIELD("options", .type = FIELD_OBJECT, .tables = option_tables),
    FIELD("format", .type = FIELD_READ, .types = JSON_STRING | JSON_OBJECT,
          .read = form_read_ollama, .help = "the form of the answer: \"json\", or a schema"),
    {0}};

static const field generate_fields[] = {
    FIELD("prompt", .type = FIELD_STRING, AT(text),
          .help = "the user's message, or with raw the text that goes on"),
    FIELD("system", .type = FIELD_STRING, AT(instructions), .help = "the system message"),
    FIELD("raw", .type = FIELD_BOOL, AT(raw), .help = "without the chat template"),
    FIELD("suffix", .type = FIELD_STRING, AT(suffix),
          .help = "what follows the text that is filled in after `prompt`"),
    {0}};

static const field chat_fields[] = {FIELD("messages", .type = FIELD_JSON, .types = JSON_ARRAY,
                                          AT(messages), .items = ITEMS_MESSAGES,
                                          .help = "the conversation; none: the model is loaded"),
                                    {0}};

static const field *const chat_tables[] = {
    chat_fields,         call_tool_fields,   call_thinking_fields,    common_fields,
    call_refused_fields, call_single_fields, call_no_logprobs_fields, NULL};
static const field *const generate_tables[] = {call_no_logprobs_fields, call_thinking_fields,
                                               generate_fields,         common_fields,
                                               call_refused_fields,     NULL};

/* Streams unless the body says otherwise. */
static void default_stream(call *c, const cJSON *body)
{
    if (!json_get(body, "stream")) c->p.stream = true;
}

static void put_head(const call *c, strbuf *out);

/* A request without a prompt asks for the model to be loaded, or not to be kept: it is always
 * loaded. */
static qp_status reply_loaded(call *c, const cJSON *body)
{
    const cJSON *kept = json_get(body, "keep_alive");
    const char *text = cJSON_GetStringValue(kept);
    const bool unload =
        text ? strtod(text, NULL) == 0 : cJSON_IsNumber(kept) && kept->valuedouble == 0;
    put_head(c, &c->out);
    strbuf_puts(&c->out, c->dialect == &ollama_chat
                             ? ",\"message\":{\"role\":\"assistant\",\"content\":\"\"}"
                             : ",\"response\":\"\"");
    strbuf_printf(&c->out, ",\"done\":true,\"done_reason\":\"%s\"}\n", unload ? "unload" : "load");
    return QP_OK;
}

/* Ollama's clients ask for thoughts only of models that have them. */
static qp_status check_think(const call *c, api_error *error)
{
    if (!c->p.think || c->server->thinks) return QP_OK;
    return api_refuse(
        error, 400, "think",
        "\"%s\" does not support thinking: its chat template has no marks of thoughts",
        c->server->options->alias);
}

static qp_status read_chat(call *c, const cJSON *body, api_error *error)
{
    cJSON *variables;
    default_stream(c, body);
    TRY(check_think(c, error));
    if (!cJSON_GetArraySize(c->p.messages)) return reply_loaded(c, body);
    TRY(call_chat_variables(c, c->p.messages, c->p.tools, &variables, error));
    return call_add_chat(c, variables, error);
}

static void add_message(cJSON *list, const char *role, const char *text)
{
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "role", role);
    cJSON_AddStringToObject(message, "content", text);
    cJSON_AddItemToArray(list, message);
}

static qp_status read_generate(call *c, const cJSON *body, api_error *error)
{
    cJSON *variables = NULL;
    default_stream(c, body);
    TRY(check_think(c, error));
    if (c->p.suffix && *c->p.suffix)
        return call_add_fill(c, c->p.text, c->p.suffix, NULL, NULL, error);
    if (!c->p.text || !*c->p.text) return reply_loaded(c, body);
    c->p.parse_special = c->p.raw && atomic_load(&c->server->raw_special);
    bool templated = c->server->vocabulary && qp_chat_template(c->server->vocabulary);
    if (c->p.raw || !templated) return call_add_text(c, c->p.text, error);
    cJSON *list = cJSON_CreateArray();
    if (c->p.instructions && *c->p.instructions) add_message(list, "system", c->p.instructions);
    add_message(list, "user", c->p.text);
    qp_status status = call_chat_variables(c, list, NULL, &variables, error);
    cJSON_Delete(list);
    return status == QP_OK ? call_add_chat(c, variables, error) : status;
}

/* ---- Replies ------------------------------------------------------------------------------- */

static void put_head(const call *c, strbuf *out)
{
    char when[40];
    struct tm utc;
    gmtime_r(&c->created, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    strbuf_puts(out, "{\"model\":");
    put_model(c, out);
    strbuf_printf(out, ",\"created_at\":\"%s\"", when);
}

static bool is_chat(const call *c)
{
    return c->dialect == &ollama_chat;
}

static void put_call(const cJSON *call, strbuf *out)
{
    const char *name = json_get(call, "name")->valuestring;
    strbuf_printf(out,
                  "{\"id\":\"call_%s\",\"function\":{\"name\":", json_get(call, "id")->valuestring);
    json_put_string(out, name, strlen(name));
    strbuf_printf(out, ",\"arguments\":%s}}", json_get(call, "arguments")->valuestring);
}

/* A reply's text, its thoughts, and its calls from this one on, each of which may be NULL. */
static void put_text(const call *c, const strbuf *text, const strbuf *thinking, const cJSON *calls,
                     strbuf *out)
{
    strbuf_puts(out, is_chat(c) ? ",\"message\":{\"role\":\"assistant\",\"content\":"
                                : ",\"response\":");
    json_put_string(out, text ? strbuf_text(text) : "", text ? text->length : 0);
    if (thinking && thinking->length && !c->p.no_thoughts) {
        strbuf_puts(out, ",\"thinking\":");
        json_put_string(out, strbuf_text(thinking), thinking->length);
    }
    if (calls) strbuf_puts(out, ",\"tool_calls\":[");
    for (const cJSON *one = calls; one; one = one->next) {
        if (one != calls) strbuf_putc(out, ',');
        put_call(one, out);
    }
    if (calls) strbuf_putc(out, ']');
    if (is_chat(c)) strbuf_putc(out, '}');
}

static void put_end(const call *c, strbuf *out)
{
    const request *r = c->prompts[0].request;
    call_usage sum = call_sum_usage(c);
    uint64_t now = clock_ns(), first = r->first_token ? r->first_token : now,
             admitted = r->admitted ? r->admitted : now;
    strbuf_printf(out,
                  ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%llu,"
                  "\"load_duration\":0,\"prompt_eval_count\":%zu,\"prompt_eval_duration\":%llu,"
                  "\"eval_count\":%zu,\"eval_duration\":%llu}",
                  c->answers[0].finish == QP_FINISH_LENGTH ||
                          c->answers[0].finish == QP_FINISH_CONTEXT
                      ? "length"
                      : "stop",
                  (unsigned long long)(now - c->arrived), sum.prompt,
                  (unsigned long long)(first > admitted ? first - admitted : 0), sum.completion,
                  (unsigned long long)(now > first ? now - first : 0));
}

static void whole(call *c)
{
    const answer *a = &c->answers[0];
    put_head(c, &c->out);
    put_text(c, &a->text, &a->thinking, a->tool_calls ? a->tool_calls->child : NULL, &c->out);
    put_end(c, &c->out);
}

static void begin(call *c)
{
    put_head(c, &c->head);
}

static void delta(call *c, answer *a, qp_text_kind kind, const char *text, size_t length)
{
    const bool call = kind == QP_TEXT_CALL_END, thought = kind == QP_TEXT_THINKING;
    strbuf piece = {0};
    if (!length) return;
    strbuf_append(&piece, text, length);
    strbuf_append(&c->out, c->head.data, c->head.length);
    put_text(c, call || thought ? NULL : &piece, thought ? &piece : NULL,
             call ? a->tool_calls->child->prev : NULL, &c->out);
    strbuf_puts(&c->out, ",\"done\":false}\n");
    strbuf_free(&piece);
}

static void finish(call *c, answer *a)
{
    (void)c, (void)a;
}

static void end(call *c)
{
    strbuf_append(&c->out, c->head.data, c->head.length);
    put_text(c, NULL, NULL, NULL, &c->out);
    put_end(c, &c->out);
    strbuf_putc(&c->out, '\n');
}

static void fail(call *c, const api_error *error)
{
    api_error_body(error, API_OLLAMA, &c->out);
    strbuf_putc(&c->out, '\n');
}

const dialect ollama_chat = {
    .fields = chat_tables,
    .stream_type = "application/x-ndjson",
    .likely = true,
    .whole_calls = true,
    .read = read_chat,
    .whole = whole,
    .begin = begin,
    .delta = delta,
    .finish = finish,
    .end = end,
    .fail = fail,
};

const dialect ollama_generate = {
    .fields = generate_tables,
    .stream_type = "application/x-ndjson",
    .likely = true,
    .whole_calls = true,
    .read = read_generate,
    .whole = whole,
    .begin = begin,
    .delta = delta,
    .finish = finish,
    .end = end,
    .fail = fail,
};

/* ---- The model ----------------------------------------------------------------------------- */

void reply_ollama_version(server *s, exchange *x)
{
    (void)s;
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "version", QP_VERSION);
    server_reply_json(x, tree);
}

/* How many elements the model's weights have, and the type of most of them. */
typedef struct weight_facts {
    double elements;
    dtype type;
} weight_facts;

static weight_facts count_weights(const program *p)
{
    double of[DTYPE_COUNT] = {0};
    weight_facts out = {0};
    for (int i = 0; i < p->n_weights; i++) {
        const program_weight *w = &p->weights[i];
        if (w->stored != i) continue; /* tied to another one */
        of[w->whole.type] += (double)tensor_elements(&w->whole);
        out.elements += (double)tensor_elements(&w->whole);
        if (of[w->whole.type] > of[out.type]) out.type = w->whole.type;
    }
    return out;
}

static void add_details(const server *s, cJSON *tree)
{
    const program *p = &s->engine->program;
    const weight_facts weights = count_weights(p);
    const bool billions = weights.elements >= 1e9;
    const char *family = engine_family(s->engine);
    char size[32];
    snprintf(size, sizeof size, "%.*f%c", billions ? 1 : 2,
             weights.elements / (billions ? 1e9 : 1e6), billions ? 'B' : 'M');
    cJSON *details = cJSON_AddObjectToObject(tree, "details");
    cJSON_AddStringToObject(details, "format", "gguf");
    cJSON_AddStringToObject(details, "family", family);
    cJSON_AddItemToObject(details, "families", cJSON_CreateStringArray(&family, 1));
    cJSON_AddStringToObject(details, "parameter_size", size);
    cJSON_AddStringToObject(details, "quantization_level", dtype_name(weights.type));
}

/* Under the name that GGUF's keys of this family have. */
static void add_of_family(const server *s, cJSON *tree, const char *key, double value)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", engine_gguf_family(s->engine), key);
    cJSON_AddNumberToObject(tree, name, value);
}

/* 64 digits that stand for the model: of its sizes, not of a file, as Ollama's are. */
static void add_digest(const server *s, cJSON *model)
{
    const weight_facts weights = count_weights(&s->engine->program);
    const uint64_t sizes = hash_random((uint64_t)s->info.weight_bytes, (uint64_t)weights.elements,
                                       (uint64_t)s->engine->program.config.hidden_size);
    char digits[65];
    for (uint64_t i = 0; i < 4; i++)
        snprintf(digits + 16 * i, 17, "%016llx",
                 (unsigned long long)hash_random(sizes, (uint64_t)s->info.vocab_size, i));
    cJSON_AddStringToObject(model, "digest", digits);
}

/* The only model of a list; returns it. */
static cJSON *add_model(const server *s, cJSON *tree)
{
    cJSON *model = cJSON_CreateObject();
    cJSON_AddStringToObject(model, "name", s->options->alias);
    cJSON_AddStringToObject(model, "model", s->options->alias);
    cJSON_AddNumberToObject(model, "size", (double)s->info.weight_bytes);
    add_digest(s, model);
    add_details(s, model);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(tree, "models"), model);
    return model;
}

void reply_ollama_tags(server *s, exchange *x)
{
    char when[40];
    struct tm utc;
    gmtime_r(&s->started, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(add_model(s, tree), "modified_at", when);
    server_reply_json(x, tree);
}

/* The model stays loaded as long as the server runs. */
void reply_ollama_ps(server *s, exchange *x)
{
    const bool on_gpu = s->engine->device.context != NULL;
    cJSON *tree = cJSON_CreateObject(), *model = add_model(s, tree);
    cJSON_AddStringToObject(model, "expires_at", "9999-12-31T23:59:59Z");
    cJSON_AddNumberToObject(model, "size_vram", on_gpu ? (double)s->info.weight_bytes : 0);
    cJSON_AddNumberToObject(model, "context_length", (double)s->info.context);
    server_reply_json(x, tree);
}

static const field show_fields[] = {
    FIELD("model", .type = FIELD_STRING, AT(model), .help = "any name: the server has one model"),
    FIELD("name", .type = FIELD_STRING, AT(model), .help = "another name of model"),
    {0}};
const field *const ollama_show_tables[] = {show_fields, NULL};

qp_status answer_ollama_show(call *c, cJSON **out, api_error *error)
{
    (void)error;
    const server *s = c->server;
    const char *source = s->vocabulary ? qp_chat_template(s->vocabulary) : NULL;
    *out = cJSON_CreateObject();
    cJSON_AddStringToObject(*out, "template", source ? source : "");
    cJSON_AddStringToObject(*out, "parameters", "");
    cJSON_AddStringToObject(*out, "modelfile", "");
    add_details(s, *out);
    cJSON *info = cJSON_AddObjectToObject(*out, "model_info");
    const program *p = &s->engine->program;
    cJSON_AddStringToObject(info, "general.architecture", engine_gguf_family(s->engine));
    cJSON_AddNumberToObject(info, "general.parameter_count", count_weights(p).elements);
    add_of_family(s, info, "context_length", (double)s->info.model_context);
    add_of_family(s, info, "embedding_length", (double)p->config.hidden_size);
    add_of_family(s, info, "vocab_size", (double)s->info.vocab_size);
    cJSON *capabilities = cJSON_AddArrayToObject(*out, "capabilities");
    cJSON_AddItemToArray(capabilities, cJSON_CreateString("completion"));
    if (s->takes_tools) cJSON_AddItemToArray(capabilities, cJSON_CreateString("tools"));
    if (s->thinks) cJSON_AddItemToArray(capabilities, cJSON_CreateString("thinking"));
    return QP_OK;
}
