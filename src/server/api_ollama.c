/* POST /api/chat and /api/generate, and the endpoints that describe the model to Ollama's clients.
 * A reply is a stream by default, with one JSON object on each line. */
#include "server/endpoints.h"

#include "base/clock.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "server/api_parts.h"
#include "server/lora.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static const field option_fields[] = {FIELD("num_predict", READ(JSON_NUMBER, read_length),
                                            .schema = SCHEMA_COUNT,
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
    MODEL_FIELD,
    FIELD("stream", BOOLEAN(stream), .help = "true, if not given"),
    FIELD("options", .type = FIELD_OBJECT, .tables = option_tables),
    FIELD("format", READ(JSON_STRING | JSON_OBJECT, form_read_ollama),
          .help = "the form of the answer: \"json\", or a schema"),
    {0}};

static const field generate_fields[] = {
    FIELD("prompt", TEXT(text), .help = "the user's message, or with raw the text that goes on"),
    FIELD("system", TEXT(instructions), .help = "the system message"),
    FIELD("raw", BOOLEAN(raw), .help = "without the chat template"),
    FIELD("suffix", TEXT(suffix), .help = "what follows the text that is filled in after `prompt`"),
    {0}};

static const field chat_fields[] = {FIELD("messages", TREE(JSON_ARRAY, messages),
                                          .items = ITEMS_MESSAGES,
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

static bool is_chat(const call *c)
{
    return c->dialect == &ollama_chat;
}

/* A request without a prompt asks for the model to be loaded, or not to be kept: it is always
 * loaded. */
static qp_status reply_loaded(call *c, const cJSON *body)
{
    const cJSON *kept = json_get(body, "keep_alive");
    const char *text = cJSON_GetStringValue(kept);
    const bool unload =
        text ? strtod(text, NULL) == 0 : cJSON_IsNumber(kept) && kept->valuedouble == 0;
    put_head(c, &c->out);
    json_put(&c->out,
             is_chat(c) ? ",'message':{'role':'assistant','content':''}" : ",'response':''");
    json_put(&c->out, ",'done':true,'done_reason':%q}\n", unload ? "unload" : "load");
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
    const bool system = c->p.instructions && *c->p.instructions;
    cJSON *list = system
                      ? json_make("[{'role':'system','content':%q},{'role':'user','content':%q}]",
                                  c->p.instructions, c->p.text)
                      : json_make("[{'role':'user','content':%q}]", c->p.text);
    qp_status status = call_chat_variables(c, list, NULL, &variables, error);
    cJSON_Delete(list);
    return status == QP_OK ? call_add_chat(c, variables, error) : status;
}

/* ---- Replies ------------------------------------------------------------------------------- */

static void put_head(const call *c, strbuf *out)
{
    char when[CLOCK_UTC_SIZE];
    clock_utc(c->created, when);
    json_put(out, "{'model':%q,'created_at':%q", lora_model(c), when);
}

/* A reply's text, its thoughts, and its calls from this one on, each of which may be NULL. */
static void put_text(const call *c, const strbuf *text, const strbuf *thinking, const cJSON *calls,
                     strbuf *out)
{
    json_put(out, is_chat(c) ? ",'message':{'role':'assistant','content':%Q" : ",'response':%Q",
             text ? strbuf_text(text) : "", text ? text->length : 0);
    if (thinking && thinking->length && !c->p.no_thoughts)
        json_put(out, ",'thinking':%Q", strbuf_text(thinking), thinking->length);
    for (const cJSON *one = calls; one; one = one->next)
        json_put(out, "%s{'id':'call_%s','function':{'name':%q,'arguments':%s}}",
                 one == calls ? ",\"tool_calls\":[" : ",", json_text(one, "id"),
                 json_text(one, "name"), json_text(one, "arguments"));
    if (calls) strbuf_putc(out, ']');
    if (is_chat(c)) strbuf_putc(out, '}');
}

static void put_end(const call *c, strbuf *out)
{
    const request *r = c->prompts[0].request;
    const int finish = c->answers[0].finish;
    const bool cut = finish == QP_FINISH_LENGTH || finish == QP_FINISH_CONTEXT;
    const call_usage sum = call_sum_usage(c);
    const uint64_t now = clock_ns(), first = r->first_token ? r->first_token : now,
                   admitted = r->admitted ? r->admitted : now;
    json_put(out,
             ",'done':true,'done_reason':%q,'total_duration':%i,'load_duration':0,"
             "'prompt_eval_count':%z,'prompt_eval_duration':%i,'eval_count':%z,'eval_duration':%i}",
             cut ? "length" : "stop", (int64_t)(now - c->arrived), sum.prompt,
             (int64_t)(first > admitted ? first - admitted : 0), sum.completion,
             (int64_t)(now > first ? now - first : 0));
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

#define DIALECT(tables, reader)                                                                    \
    {                                                                                              \
        .fields = (tables), .stream_type = "application/x-ndjson", .likely = true,                 \
        .whole_calls = true, .read = (reader), .whole = whole, .begin = begin, .delta = delta,     \
        .end = end, .fail = fail                                                                   \
    }
const dialect ollama_chat = DIALECT(chat_tables, read_chat);
const dialect ollama_generate = DIALECT(generate_tables, read_generate);

/* ---- The model ----------------------------------------------------------------------------- */

void reply_ollama_version(server *s, exchange *x)
{
    (void)s;
    server_reply_json(x, "{'version':%q}", QP_VERSION);
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

static void put_details(const server *s, strbuf *out)
{
    const weight_facts weights = count_weights(&s->engine->program);
    const bool billions = weights.elements >= 1e9;
    const char *family = engine_family(s->engine);
    char size[32];
    snprintf(size, sizeof size, "%.*f%c", billions ? 1 : 2,
             weights.elements / (billions ? 1e9 : 1e6), billions ? 'B' : 'M');
    json_put(out,
             ",'details':{'format':'gguf','family':%q,'families':[%q],'parameter_size':%q,"
             "'quantization_level':%q}",
             family, family, size, dtype_name(weights.type));
}

/* 64 digits that stand for the model: of its sizes, not of a file, as Ollama's are. */
static void put_digest(const server *s, strbuf *out)
{
    const weight_facts weights = count_weights(&s->engine->program);
    const uint64_t sizes = hash_random((uint64_t)s->info.weight_bytes, (uint64_t)weights.elements,
                                       (uint64_t)s->engine->program.config.hidden_size);
    char digits[65];
    for (uint64_t i = 0; i < 4; i++)
        snprintf(digits + 16 * i, 17, "%016llx",
                 (unsigned long long)hash_random(sizes, (uint64_t)s->info.vocab_size, i));
    json_put(out, ",'digest':%q", digits);
}

/* A list of the only model, with members of its own. */
static void reply_list(const server *s, exchange *x, const char *members)
{
    strbuf facts = {0};
    put_digest(s, &facts);
    put_details(s, &facts);
    server_reply_json(x, "{'models':[{'name':%q,'model':%q,'size':%i%t,%s}]}", s->options->alias,
                      s->options->alias, (int64_t)s->info.weight_bytes, &facts, members);
    strbuf_free(&facts);
}

void reply_ollama_tags(server *s, exchange *x)
{
    char when[CLOCK_UTC_SIZE], members[80];
    clock_utc(s->started, when);
    snprintf(members, sizeof members, "\"modified_at\":\"%s\"", when);
    reply_list(s, x, members);
}

/* The model stays loaded as long as the server runs. */
void reply_ollama_ps(server *s, exchange *x)
{
    const bool on_gpu = s->engine->device.context != NULL;
    strbuf members = {0};
    json_put(&members, "'expires_at':'9999-12-31T23:59:59Z','size_vram':%i,'context_length':%i",
             on_gpu ? (int64_t)s->info.weight_bytes : (int64_t)0, (int64_t)s->info.context);
    reply_list(s, x, strbuf_text(&members));
    strbuf_free(&members);
}

static const field show_fields[] = {
    FIELD("model", TEXT(model), .help = "any name: the server has one model"),
    FIELD("name", TEXT(model), .help = "another name of model"),
    {0}};
const field *const ollama_show_tables[] = {show_fields, NULL};

qp_status answer_ollama_show(call *c, api_error *error)
{
    (void)error;
    const server *s = c->server;
    const program *p = &s->engine->program;
    const char *source = s->vocabulary ? qp_chat_template(s->vocabulary) : NULL;
    const char *family = engine_gguf_family(s->engine); /* as GGUF's keys of it begin */
    strbuf facts = {0};
    put_details(s, &facts);
    json_put(&c->out,
             "{'template':%q,'parameters':'','modelfile':''%t,'model_info':"
             "{'general.architecture':%q,'general.parameter_count':%g,"
             "'%s.context_length':%i,'%s.embedding_length':%i,'%s.vocab_size':%i},"
             "'capabilities':['completion'%s%s]}",
             source ? source : "", &facts, family, count_weights(p).elements, family,
             (int64_t)s->info.model_context, family, (int64_t)p->config.hidden_size, family,
             (int64_t)s->info.vocab_size, s->takes_tools ? ",\"tools\"" : "",
             s->thinks ? ",\"thinking\"" : "");
    strbuf_free(&facts);
    return QP_OK;
}
