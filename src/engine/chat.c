/* Conversations: see qp_chat in quipu.h.
 *
 * The session holds what the model has read. An answer renders all messages and reads the tokens
 * that differ, so a template that leaves out earlier thoughts costs these tokens and nothing else.
 */
#include "base/json.h"
#include "base/sized.h"
#include "engine/engine.h"
#include "engine/tool_call.h"
#include "text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct qp_chat {
    engine_object object;
    qp_session *session;
    qp_chat_options options;
    qp_sampling sampling;
    cJSON *variables, *messages; /* an object; an array */
    tool_names tools;            /* names point into the variables */
};

/* ---- opening ------------------------------------------------------------------------------- */

static void free_options(qp_chat *c)
{
    cJSON_Delete(c->variables);
    free(c->tools.names);
}

static void free_chat(engine_object *object)
{
    qp_chat *c = (qp_chat *)object;
    free_options(c);
    cJSON_Delete(c->messages);
    free(c);
}

static qp_status read_tools(qp_chat *c, qp_error *error)
{
    const cJSON *tools = json_get(c->variables, "tools"), *tool;
    c->tools.names = calloc((size_t)cJSON_GetArraySize(tools) + 1, sizeof *c->tools.names);
    if (!c->tools.names) return error_no_memory(error, "the chat's tools", 0);
    cJSON_ArrayForEach(tool, tools)
    {
        const char *name = cJSON_GetStringValue(json_get(json_get(tool, "function"), "name"));
        if (!name)
            return error_set(error, QP_INVALID,
                             "tool %zu of the chat's variables must be {\"type\": \"function\", "
                             "\"function\": {\"name\": ..., \"parameters\": ...}}",
                             c->tools.count);
        c->tools.names[c->tools.count++] = name;
    }
    return QP_OK;
}

static qp_status read_variables(qp_chat *c, qp_error *error)
{
    const char *json = c->options.variables ? c->options.variables : "{}";
    TRY(json_parse_exact(json, strlen(json), "the chat's variables", &c->variables, error));
    if (!cJSON_IsObject(c->variables))
        return error_set(error, QP_INVALID,
                         "the chat's variables must be an object of JSON, found %s",
                         json_type_name(c->variables));
    return read_tools(c, error);
}

static qp_status read_options(qp_chat *c, const qp_engine *e, const qp_chat_options *given,
                              qp_error *error)
{
    TRY(SIZED_READ(qp_chat_options, given, &c->options, error));
    c->sampling.size = sizeof c->sampling;
    if (c->options.sampling)
        TRY(SIZED_READ(qp_sampling, c->options.sampling, &c->sampling, error));
    else
        TRY(qp_sampling_defaults(e, &c->sampling, error));
    TRY(read_variables(c, error));
    return vocabulary_check_template(e->vocabulary, c->variables, error);
}

static qp_status open_chat(qp_chat *c, qp_engine *e, const qp_chat_options *given, qp_error *error)
{
    TRY(read_options(c, e, given, error));
    c->messages = cJSON_CreateArray();
    if (!c->messages) return error_no_memory(error, "the chat", 0);
    return engine_open_session(e, &c->session, error);
}

qp_status qp_chat_open(qp_engine *e, const qp_chat_options *options, qp_chat **out, qp_error *error)
{
    *out = NULL;
    TRY(engine_enter_within(e, error));
    qp_chat *c = calloc(1, sizeof *c);
    qp_status status = QP_OK;
    if (!c) status = error_no_memory(error, "the chat", sizeof *c);
    if (c) engine_add_object(e, &c->object, free_chat);
    if (c) status = open_chat(c, e, options, error);
    if (c && status != QP_OK) engine_close_object(e, &c->object);
    if (status == QP_OK) *out = c;
    engine_leave(e);
    return status;
}

void qp_chat_close(qp_chat *c)
{
    if (!c) return;
    qp_session *session = c->session;
    engine_close_object(session->engine, &c->object);
    qp_session_close(session);
}

qp_status qp_chat_set(qp_chat *c, const qp_chat_options *options, qp_error *error)
{
    qp_engine *e = c->session->engine;
    qp_chat other = *c;
    other.variables = NULL;
    other.tools = (tool_names){0};
    TRY(engine_enter(e, error));
    const qp_status status = read_options(&other, e, options, error);
    free_options(status == QP_OK ? c : &other);
    if (status == QP_OK) *c = other;
    engine_leave(e);
    return status;
}

const qp_session *qp_chat_session(const qp_chat *c)
{
    return c->session;
}

/* ---- messages ------------------------------------------------------------------------------ */

static qp_status check_message(const cJSON *message, qp_error *error)
{
    if (cJSON_IsObject(message)) return QP_OK;
    return error_set(error, QP_INVALID,
                     "a message is an object, such as {\"role\": \"user\", \"content\": "
                     "\"Hello\"}, found %s",
                     json_type_name(message));
}

/* Moves the parsed message, or the messages of an array, to the chat. */
static qp_status add_parsed(qp_chat *c, cJSON *given, qp_error *error)
{
    if (!cJSON_IsArray(given)) {
        TRY(check_message(given, error));
        return cJSON_AddItemToArray(c->messages, given), QP_OK;
    }
    for (const cJSON *item = given->child; item; item = item->next)
        TRY(check_message(item, error));
    while (given->child)
        cJSON_AddItemToArray(c->messages, cJSON_DetachItemFromArray(given, 0));
    return QP_OK;
}

static qp_status add_json(qp_chat *c, const char *json, size_t length, qp_error *error)
{
    cJSON *given;
    TRY(json_parse_exact(json, length, "the message", &given, error));
    const bool many = cJSON_IsArray(given);
    const qp_status status = add_parsed(c, given, error);
    if (many || status != QP_OK) cJSON_Delete(given);
    return status;
}

static void drop(qp_chat *c, size_t count)
{
    for (int n = cJSON_GetArraySize(c->messages); n > 0 && count > 0; count--)
        cJSON_DeleteItemFromArray(c->messages, --n);
}

qp_status qp_chat_add(qp_chat *c, const char *json, size_t length, qp_error *error)
{
    qp_engine *e = c->session->engine;
    TRY(engine_enter(e, error));
    const qp_status status = add_json(c, json, length, error);
    engine_leave(e);
    return status;
}

qp_status qp_chat_drop(qp_chat *c, size_t count, qp_error *error)
{
    qp_engine *e = c->session->engine;
    TRY(engine_enter(e, error));
    drop(c, count);
    engine_leave(e);
    return QP_OK;
}

qp_status qp_chat_messages(const qp_chat *c, char **json, qp_error *error)
{
    qp_engine *e = c->session->engine;
    engine_wait(e);
    *json = json_print(c->messages);
    engine_leave(e);
    return *json ? QP_OK : error_no_memory(error, "the messages", 0);
}

/* ---- answers ------------------------------------------------------------------------------- */

/* An answer while it is made. */
typedef struct chat_answer {
    qp_chat *chat;
    strbuf content, thoughts, name, arguments;
    cJSON *calls;
} chat_answer;

/* Invalid bytes, and NULs, which a model may produce and cJSON cannot hold, become U+FFFD. */
static bool add_text(cJSON *object, const char *key, const char *at, size_t left)
{
    strbuf readable = {0};
    while (left > 0) {
        const size_t run = strnlen(at, left), taken = run + (run < left);
        utf8_put_valid(&readable, at, run);
        if (taken > run) strbuf_puts(&readable, UTF8_REPLACEMENT);
        at += taken;
        left -= taken;
    }
    const bool added =
        !readable.failed && cJSON_AddStringToObject(object, key, strbuf_text(&readable));
    strbuf_free(&readable);
    return added;
}

static void add_call(chat_answer *a)
{
    cJSON *call = cJSON_CreateObject(), *function;
    if (!a->calls) a->calls = cJSON_CreateArray();
    char id[24];
    snprintf(id, sizeof id, "call%05d",
             cJSON_GetArraySize(a->chat->messages) * 100 + cJSON_GetArraySize(a->calls));
    cJSON_AddStringToObject(call, "id", id);
    cJSON_AddStringToObject(call, "type", "function");
    function = cJSON_AddObjectToObject(call, "function");
    add_text(function, "name", strbuf_text(&a->name), a->name.length);
    cJSON *arguments = tool_call_parse_arguments(strbuf_text(&a->arguments), a->arguments.length);
    cJSON_AddItemToObject(function, "arguments", arguments);
    cJSON_AddItemToArray(a->calls, call);
}

static void take_piece(chat_answer *a, const qp_text_piece *piece)
{
    switch (piece->kind) {
    case QP_TEXT_CONTENT:
        strbuf_append(&a->content, piece->text, piece->length);
        break;
    case QP_TEXT_THINKING:
        strbuf_append(&a->thoughts, piece->text, piece->length);
        break;
    case QP_TEXT_CALL:
        strbuf_clear(&a->name);
        strbuf_clear(&a->arguments);
        strbuf_append(&a->name, piece->text, piece->length);
        break;
    case QP_TEXT_ARGUMENTS:
        strbuf_append(&a->arguments, piece->text, piece->length);
        break;
    case QP_TEXT_CALL_END:
        if (piece->broken)
            strbuf_append(&a->content, piece->text, piece->length);
        else
            add_call(a);
        break;
    }
}

static qp_status on_text(void *context, const qp_text_piece *piece)
{
    chat_answer *a = context;
    const qp_chat_options *o = &a->chat->options;
    take_piece(a, piece);
    return o->on_text ? o->on_text(o->context, piece) : QP_OK;
}

static qp_status add_answer(chat_answer *a, qp_error *error)
{
    cJSON *message = cJSON_CreateObject();
    if (!message || a->content.failed || a->thoughts.failed || a->arguments.failed) {
        cJSON_Delete(message);
        return error_no_memory(error, "the answer", a->content.length);
    }
    cJSON_AddStringToObject(message, "role", "assistant");
    add_text(message, "content", strbuf_text(&a->content), a->content.length);
    if (a->thoughts.length > 0)
        add_text(message, "reasoning_content", strbuf_text(&a->thoughts), a->thoughts.length);
    if (a->calls) cJSON_AddItemToObject(message, "tool_calls", a->calls);
    a->calls = NULL;
    cJSON_AddItemToArray(a->chat->messages, message);
    return QP_OK;
}

/* The tokens of all messages, and what begins an answer. */
static qp_status render(const qp_chat *c, qp_tokens *out, qp_error *error)
{
    cJSON *all = cJSON_Duplicate(c->variables, true);
    if (!all || !cJSON_AddItemToObject(all, "messages", cJSON_Duplicate(c->messages, true))) {
        cJSON_Delete(all);
        return error_no_memory(error, "the conversation", 0);
    }
    char *json = json_print(all);
    cJSON_Delete(all);
    if (!json) return error_no_memory(error, "the conversation", 0);
    const qp_status status = qp_tokenize_chat(c->session->engine->vocabulary, json, strlen(json),
                                              true, c->options.flags, out, error);
    cJSON_free(json);
    return status;
}

/* Makes the session hold what it has in common with the prompt, but for the last token, after which
 * the answer begins. */
static void keep_common(qp_session *s, const qp_tokens *prompt)
{
    size_t common = 0;
    while (common < s->count && common + 1 < prompt->count &&
           s->tokens[common] == prompt->data[common])
        common++;
    session_truncate(s, common);
}

static qp_status answer_prompt(chat_answer *a, const qp_tokens *prompt, qp_generate_result *result,
                               qp_error *error)
{
    const qp_chat *c = a->chat;
    qp_session *s = c->session;
    const int64_t context = s->engine->program.options.context;
    if (prompt->count >= (size_t)context) {
        if (result) result->finish = QP_FINISH_CONTEXT;
        return error_set(error, QP_INVALID,
                         "the conversation takes %zu tokens, but the context has room for %lld: "
                         "drop messages, or open the engine with a longer context",
                         prompt->count, (long long)context);
    }
    keep_common(s, prompt);
    const qp_generate_options options = {.size = sizeof options,
                                         .prompt = prompt->data + s->count,
                                         .n_prompt = prompt->count - s->count,
                                         .sampling = &c->sampling,
                                         .max_tokens = c->options.max_tokens,
                                         .eos_interval = c->options.eos_interval,
                                         .cancel = c->options.cancel,
                                         .context = a,
                                         .on_text = on_text,
                                         .tools = c->tools.names,
                                         .n_tools = c->tools.count};
    return engine_generate(s, &options, result, error);
}

static qp_status answer(qp_chat *c, qp_generate_result *result, qp_error *error)
{
    chat_answer a = {.chat = c};
    qp_tokens prompt = {0};
    qp_status status = render(c, &prompt, error);
    if (status == QP_OK) status = answer_prompt(&a, &prompt, result, error);
    if (status == QP_OK) status = add_answer(&a, error);
    qp_tokens_free(&prompt);
    strbuf_free(&a.content);
    strbuf_free(&a.thoughts);
    strbuf_free(&a.name);
    strbuf_free(&a.arguments);
    cJSON_Delete(a.calls);
    return status;
}

qp_status qp_chat_answer(qp_chat *c, qp_generate_result *result, qp_error *error)
{
    qp_engine *e = c->session->engine;
    TRY(engine_enter(e, error));
    const qp_status status = answer(c, result, error);
    engine_leave(e);
    return status;
}

static qp_status ask(qp_chat *c, const char *text, qp_generate_result *result, qp_error *error)
{
    cJSON *message = cJSON_CreateObject();
    const bool made = message && cJSON_AddStringToObject(message, "role", "user") &&
                      add_text(message, "content", text, strlen(text)) &&
                      cJSON_AddItemToArray(c->messages, message);
    if (!made) {
        cJSON_Delete(message);
        return error_no_memory(error, "a message", strlen(text));
    }
    const qp_status status = answer(c, result, error);
    if (status != QP_OK) drop(c, 1);
    return status;
}

qp_status qp_chat_ask(qp_chat *c, const char *text, qp_generate_result *result, qp_error *error)
{
    qp_engine *e = c->session->engine;
    TRY(engine_enter(e, error));
    const qp_status status = ask(c, text, result, error);
    engine_leave(e);
    return status;
}
