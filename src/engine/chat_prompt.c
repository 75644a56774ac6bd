/* Renders conversations as prompts: see quipu.h. */
#define _GNU_SOURCE /* memmem */
#include "base/json.h"
#include "engine/conversation.h"
#include "engine/vocabulary.h"
#include "text/control_marks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void add_token_text(cJSON *context, const char *key, const tokenizer *tokenizer, int32_t id)
{
    size_t length = 0;
    const char *piece = id >= 0 ? tokenizer_piece(tokenizer, id, &length) : NULL;
    char *text = strndup(piece ? piece : "", length);
    if (text && !cJSON_HasObjectItem(context, key)) cJSON_AddStringToObject(context, key, text);
    free(text);
}

/* The template's variables: those of the caller, and those that every template may expect. */
static qp_status make_context(const qp_vocabulary *v, cJSON *given, bool add_generation_prompt,
                              cJSON **out, qp_error *error)
{
    cJSON *context = given;
    if (cJSON_IsArray(given)) {
        context = cJSON_CreateObject();
        cJSON_AddItemToObject(context, "messages", given);
    }
    *out = context;
    if (!cJSON_IsArray(json_get(context, "messages")))
        return error_set(error, QP_INVALID,
                         "a conversation must be an array of messages, or an object with one under "
                         "\"messages\", found %s",
                         cJSON_IsObject(given) ? "an object without it" : json_type_name(given));
    if (!cJSON_HasObjectItem(context, "add_generation_prompt"))
        cJSON_AddBoolToObject(context, "add_generation_prompt", add_generation_prompt);
    /* transformers always passes these, as None if they are absent. */
    if (!cJSON_HasObjectItem(context, "tools")) cJSON_AddNullToObject(context, "tools");
    if (!cJSON_HasObjectItem(context, "documents")) cJSON_AddNullToObject(context, "documents");
    tokenizer_special special = tokenizer_special_ids(v->tokenizer);
    add_token_text(context, "bos_token", v->tokenizer, special.bos);
    add_token_text(context, "eos_token", v->tokenizer, special.eos);
    add_token_text(context, "unk_token", v->tokenizer, special.unknown);
    add_token_text(context, "pad_token", v->tokenizer, special.padding);
    return QP_OK;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The content of the last message, if it is a text; else NULL. */
static const char *last_content(const cJSON *context)
{
    const cJSON *messages = json_get(context, "messages");
    const cJSON *last = cJSON_GetArrayItem(messages, cJSON_GetArraySize(messages) - 1);
    return cJSON_GetStringValue(json_get(last, "content"));
}

static void put_reversed(const char *text, size_t length, char *out)
{
    for (size_t i = 0; i < length; i++)
        out[i] = text[length - 1 - i];
}

/* The last place of `text` in `in`, or in->length if there is none: the first place in both
 * reversed, because memmem() takes linear time and texts are hostile. */
static qp_status find_last(const strbuf *in, const char *text, size_t length, size_t *at,
                           qp_error *error)
{
    char *room = malloc(in->length + length + 1);
    if (!room) return error_no_memory(error, "the rendered conversation", in->length);
    put_reversed(in->data, in->length, room);
    put_reversed(text, length, room + in->length);
    const char *found = memmem(room, in->length, room + in->length, length);
    *at = found ? in->length - (size_t)(found - room) - length : in->length;
    free(room);
    return QP_OK;
}

/* Cuts the conversation after the last place where it has `text`, as transformers'
 * continue_final_message does. Templates may strip white space from messages. */
static qp_status cut_after(strbuf *out, const char *text, qp_error *error)
{
    size_t at = out->length;
    while (text && is_space(*text))
        text++;
    const size_t whole = text ? strlen(text) : 0;
    size_t trimmed = whole;
    while (trimmed && is_space(text[trimmed - 1]))
        trimmed--;
    if (trimmed) TRY(find_last(out, text, trimmed, &at, error));
    if (at == out->length)
        return error_set(error, QP_INVALID,
                         "an answer can only continue a last message whose text the chat template "
                         "writes as it is, but this one has %s; end with a message of the user",
                         trimmed ? "another" : "none");
    const bool kept = out->length - at >= whole && memcmp(out->data + at, text, whole) == 0;
    out->length = at + (kept ? whole : trimmed);
    out->data[out->length] = '\0';
    return QP_OK;
}

/* Renders; a conversation that the template refuses is changed as conversation.h says, and tried
 * again. The error is that of the first try. */
static qp_status render_or_change(const qp_vocabulary *v, cJSON *context,
                                  const template_options *options, strbuf *out, qp_error *error)
{
    static conversation_change *const changes[] = {conversation_shorten_ids,
                                                   conversation_split_calls};
    const template *t = chat_templates_choose(&v->templates, context)->compiled;
    qp_status status = template_render(t, context, options, out, error);
    const qp_status first = status;
    for (size_t i = 0; status == QP_INVALID && i < sizeof changes / sizeof *changes; i++)
        if (changes[i](cJSON_GetObjectItemCaseSensitive(context, "messages")))
            status = template_render(t, context, options, out, NULL);
    return status == QP_OK ? status : first;
}

/* Renders with the variables in `given`, and frees it. */
static qp_status render(const qp_vocabulary *v, cJSON *given, bool add_generation_prompt,
                        strbuf *out, qp_error *error)
{
    cJSON *context;
    const bool continues = cJSON_IsTrue(json_get(given, "continue_final_message"));
    qp_status status = make_context(v, given, add_generation_prompt && !continues, &context, error);
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    template_options options = {.now = now, .utc_offset = (int32_t)local.tm_gmtoff};
    if (status == QP_OK) status = render_or_change(v, context, &options, out, error);
    if (status == QP_OK && continues) status = cut_after(out, last_content(context), error);
    cJSON_Delete(context);
    if (status == QP_OK && out->failed)
        status = error_no_memory(error, "the rendered conversation", out->length);
    return status;
}

qp_status vocabulary_check_template(const qp_vocabulary *v, const cJSON *given, qp_error *error)
{
    if (!v) return vocabulary_missing(error);
    const chat_template *t = chat_templates_choose(&v->templates, given);
    if (!t->source)
        return error_set(error, QP_UNSUPPORTED,
                         "the model has no chat template; give it plain text instead");
    if (t->compiled) return QP_OK;
    return error_set(error, t->error.status, "the model's chat template: %s", t->error.message);
}

/* To cJSON_Delete(). */
static qp_status read_conversation(const qp_vocabulary *v, const char *json, size_t length,
                                   cJSON **given, qp_error *error)
{
    qp_error problem = {0};
    *given = NULL;
    if (!v) return vocabulary_missing(error);
    qp_status status = json_parse_exact(json, length, "conversation", given, &problem);
    if (status == QP_OK) status = vocabulary_check_template(v, *given, &problem);
    if (status == QP_OK) return QP_OK;
    if (*given) {
        cJSON_Delete(*given);
        return error_set(error, status, "%s", problem.message);
    }
    if (status != QP_FORMAT) return error_set(error, status, "%s", problem.message);
    return error_set(error, status,
                     "%s; expected an array of messages, such as "
                     "[{\"role\": \"user\", \"content\": \"Hello\"}]",
                     problem.message);
}

qp_status qp_render_chat(const qp_vocabulary *v, const char *json, size_t length,
                         bool add_generation_prompt, char **text, qp_error *error)
{
    cJSON *given;
    strbuf out = {0};
    *text = NULL;
    TRY(read_conversation(v, json, length, &given, error));
    qp_status status = render(v, given, add_generation_prompt, &out, error);
    strbuf_puts(&out, "");
    if (status == QP_OK && !(*text = strbuf_take(&out)))
        status = error_no_memory(error, "the rendered conversation", 0);
    strbuf_free(&out);
    return status;
}

/* ---- Messages stay text -------------------------------------------------------------------- */

/* Calls back for every text of a JSON value: strings and the names of members. */
static qp_status each_text(cJSON *value, control_marks *marks,
                           qp_status visit(control_marks *, char **, qp_error *), qp_error *error)
{
    for (cJSON *item = value; item; item = item->next) {
        if (item->string) TRY(visit(marks, &item->string, error));
        if (cJSON_IsString(item)) TRY(visit(marks, &item->valuestring, error));
        if (item->child) TRY(each_text(item->child, marks, visit, error));
    }
    return QP_OK;
}

static qp_status see_text(control_marks *marks, char **text, qp_error *error)
{
    (void)error;
    control_marks_see(marks, *text, strlen(*text));
    return QP_OK;
}

/* Replaces the text by the text with marks, in memory that cJSON allocates. */
static qp_status mark_text(control_marks *marks, char **text, qp_error *error)
{
    bool changed;
    strbuf marked = {0};
    control_marks_put(marks, *text, strlen(*text), &marked, &changed);
    char *copy = changed && !marked.failed ? cJSON_malloc(marked.length + 1) : NULL;
    qp_status status = QP_OK;
    if (copy) {
        memcpy(copy, marked.data, marked.length + 1);
        cJSON_free(*text);
        *text = copy;
    } else if (changed || marked.failed) {
        status = error_no_memory(error, "the conversation", marked.length);
    }
    strbuf_free(&marked);
    return status;
}

static qp_status mark_controls(cJSON *given, control_marks *marks, qp_error *error)
{
    TRY(each_text(given, marks, see_text, error));
    TRY(control_marks_choose(marks, error));
    return each_text(given, marks, mark_text, error);
}

qp_status qp_tokenize_chat(const qp_vocabulary *v, const char *json, size_t length,
                           bool add_generation_prompt, unsigned flags, qp_tokens *tokens,
                           qp_error *error)
{
    cJSON *given;
    control_marks marks = {0};
    strbuf text = {0};
    TRY(read_conversation(v, json, length, &given, error));
    qp_status status = QP_OK;
    if (!(flags & QP_SPECIAL)) {
        status = control_marks_init(&marks, v->tokenizer, error);
        if (status == QP_OK) status = mark_controls(given, &marks, error);
    }
    if (status == QP_OK)
        status = render(v, given, add_generation_prompt, &text, error);
    else
        cJSON_Delete(given);
    token_ids ids = {tokens->data, tokens->count, tokens->capacity};
    if (status == QP_OK)
        status = tokenizer_encode_marked(
            v->tokenizer, strbuf_text(&text), text.length, *marks.mark ? marks.mark : NULL,
            vocabulary_encode_flags(v->tokenizer, QP_BOS_NEVER | QP_SPECIAL), &ids, error);
    *tokens = (qp_tokens){ids.data, ids.count, ids.capacity};
    control_marks_free(&marks);
    strbuf_free(&text);
    return status;
}

/* A conversation of one message, with or without a tool; NULL: the template refuses it. */
static char *render_probe(const qp_vocabulary *v, const char *tools)
{
    char json[256], *text = NULL;
    snprintf(json, sizeof json,
             "{\"messages\": [{\"role\": \"user\", \"content\": \"?\"}], \"tools\": %s}", tools);
    return qp_render_chat(v, json, strlen(json), true, &text, NULL) == QP_OK ? text : NULL;
}

qp_status vocabulary_set_template(qp_vocabulary *v, const char *source, size_t length,
                                  qp_error *error)
{
    if (!v) return vocabulary_missing(error);
    if (chat_templates_set(&v->templates, source, length, error) == QP_OK) return QP_OK;
    return error_prefix(error, "--chat-template");
}

bool vocabulary_takes_tools(const qp_vocabulary *v)
{
    if (!v || !v->templates.plain.source) return false;
    char *without = render_probe(v, "null");
    char *with = render_probe(v, "[{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                                 "\"description\": \"\", \"parameters\": {\"type\": \"object\", "
                                 "\"properties\": {}}}}]");
    const bool takes = with && (!without || strcmp(with, without) != 0);
    free(with);
    free(without);
    return takes;
}
