/* Forms of answers: see form.h. */
#include "server/form.h"

#include "grammar/matcher.h"
#include "grammar/pattern.h"
#include "server/call.h"
#include "server/server_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Recent grammars ----------------------------------------------------------------------- */

void form_cache_open(form_cache *cache)
{
    *cache = (form_cache){0};
    pthread_mutex_init(&cache->lock, NULL);
}

static void forget(form_kept *kept)
{
    free(kept->text);
    qp_grammar_close(kept->grammar);
    *kept = (form_kept){0};
}

void form_cache_close(form_cache *cache)
{
    for (size_t i = 0; i < FORM_KEPT; i++)
        forget(&cache->kept[i]);
    pthread_mutex_destroy(&cache->lock);
}

/* Returns the grammar with a reference for the caller; NULL: it is not kept. */
static qp_grammar *find(form_cache *cache, int kind, const char *text, size_t length)
{
    qp_grammar *found = NULL;
    pthread_mutex_lock(&cache->lock);
    for (size_t i = 0; i < FORM_KEPT && !found; i++) {
        form_kept *k = &cache->kept[i];
        if (!k->text || k->kind != kind || k->length != length ||
            memcmp(k->text, text, length) != 0)
            continue;
        k->used = ++cache->uses;
        found = k->grammar;
        form_hold(found);
    }
    pthread_mutex_unlock(&cache->lock);
    return found;
}

/* Keeps the grammar in place of the one that has not been used for longest. If memory is out, it is
 * not kept. */
static void keep(form_cache *cache, int kind, const char *text, size_t length, qp_grammar *grammar)
{
    char *copy = malloc(length + 1);
    if (!copy) return;
    memcpy(copy, text, length);
    pthread_mutex_lock(&cache->lock);
    form_kept *oldest = &cache->kept[0];
    for (size_t i = 1; i < FORM_KEPT; i++)
        if (cache->kept[i].used < oldest->used) oldest = &cache->kept[i];
    form_kept old = *oldest;
    form_hold(grammar);
    *oldest = (form_kept){copy, length, kind, grammar, ++cache->uses};
    pthread_mutex_unlock(&cache->lock);
    forget(&old);
}

static qp_status open_regex(const qp_vocabulary *v, const char *text, qp_grammar **out,
                            qp_error *error)
{
    grammar g = {0};
    qp_status status = pattern_read(text, &g, error);
    if (status == QP_OK) status = vocabulary_open_form(v, &g, out, error);
    grammar_free(&g);
    return status;
}

/* The grammar of a text, to qp_grammar_close(). */
static qp_status open_grammar(form_cache *cache, const qp_vocabulary *vocabulary, int kind,
                              const char *text, size_t length, qp_grammar **out, qp_error *error)
{
    *out = find(cache, kind, text, length);
    if (*out) return QP_OK;
    TRY(kind == FORM_REGEX
            ? open_regex(vocabulary, text, out, error)
            : qp_grammar_open(vocabulary, (qp_grammar_kind)kind, text, length, out, error));
    keep(cache, kind, text, length, *out);
    return QP_OK;
}

/* ---- Fields -------------------------------------------------------------------------------- */

/* Takes the form that a field asks for; a request may have one. */
static qp_status take_form(void *out, const char *name, requested_form wanted, api_error *error)
{
    parameters *p = out;
    if (*p->form.field)
        return api_refuse(error, 400, name,
                          "\"%s\" and \"%s\" exclude each other: an answer has one form",
                          p->form.field, name);
    p->form = wanted;
    snprintf(p->form.field, sizeof p->form.field, "%s", name);
    return QP_OK;
}

void form_force_call(parameters *p, const char *field, const char *name)
{
    snprintf(p->tool.field, sizeof p->tool.field, "%s", field);
    p->tool.name = name;
    p->tool.one |= name != NULL;
}

qp_status form_read_schema(void *out, const char *name, const cJSON *value, api_error *error)
{
    if (cJSON_IsString(value) && !*value->valuestring) return QP_OK;
    return take_form(out, name, (requested_form){.kind = QP_GRAMMAR_JSON_SCHEMA, .schema = value},
                     error);
}

qp_status form_read_grammar(void *out, const char *name, const cJSON *value, api_error *error)
{
    if (!*value->valuestring) return QP_OK;
    return take_form(
        out, name, (requested_form){.kind = QP_GRAMMAR_GBNF, .grammar = value->valuestring}, error);
}

qp_status form_read_regex(void *out, const char *name, const cJSON *value, api_error *error)
{
    if (!*value->valuestring) return QP_OK;
    return take_form(out, name, (requested_form){.kind = FORM_REGEX, .grammar = value->valuestring},
                     error);
}

qp_status form_read_words(void *out, const char *name, const cJSON *value, api_error *error)
{
    const cJSON *item;
    bool good = cJSON_IsArray(value) && value->child;
    cJSON_ArrayForEach(item, value) good = good && cJSON_IsString(item) && *item->valuestring;
    if (!good)
        return api_refuse(error, 400, name, "\"%s\" must be a list of texts, none of them empty",
                          name);
    return take_form(out, name, (requested_form){.kind = QP_GRAMMAR_GBNF, .words = value}, error);
}

static qp_status any_object(void *out, const char *name, api_error *error)
{
    return take_form(out, name, (requested_form){.kind = QP_GRAMMAR_JSON}, error);
}

/* {"type": "json_schema", "json_schema": {"schema": ...}}; without the inner object in the API of
 * responses, and with "json_object" in llama.cpp's. */
qp_status form_read_response(void *out, const char *name, const cJSON *value, api_error *error)
{
    const char *type = cJSON_GetStringValue(json_get(value, "type"));
    const cJSON *inner = json_get(value, "json_schema");
    const cJSON *schema = json_get(inner ? inner : value, "schema");
    if (type && strcmp(type, "text") == 0) return QP_OK;
    if (type && strcmp(type, "json_object") == 0 && !schema) return any_object(out, name, error);
    if (type && (strcmp(type, "json_schema") == 0 || strcmp(type, "json_object") == 0)) {
        if (schema) return form_read_schema(out, name, schema, error);
        return api_refuse(error, 400, name, "\"%s\" is of type json_schema and has no \"schema\"",
                          name);
    }
    return api_refuse(error, 400, name,
                      "\"%s\" may be of type text, json_object or json_schema, found %.40s", name,
                      type ? type : "none");
}

qp_status form_read_ollama(void *out, const char *name, const cJSON *value, api_error *error)
{
    if (!cJSON_IsString(value)) return form_read_schema(out, name, value, error);
    if (!*value->valuestring) return QP_OK;
    if (strcmp(value->valuestring, "json") == 0) return any_object(out, name, error);
    return api_refuse(error, 400, name, "\"%s\" may be \"json\" or a schema, found \"%.40s\"", name,
                      value->valuestring);
}

/* Whether a member of structured_outputs asks for a form, and does not only set how one is read. */
static bool asks_for_form(const cJSON *member)
{
    static const char *const forms[] = {"json",    "json_object", "choice",
                                        "grammar", "regex",       "structural_tag"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(member->string, forms[i]) == 0)
            return !cJSON_IsNull(member) && !cJSON_IsFalse(member);
    return false;
}

static qp_status check_one_form(const char *name, const cJSON *value, api_error *error)
{
    const cJSON *member, *first = NULL;
    cJSON_ArrayForEach(member, value)
    {
        if (!asks_for_form(member)) continue;
        if (first)
            return api_refuse(error, 400, name,
                              "\"%s\" has \"%s\" and \"%s\", which exclude each other: an answer "
                              "has one form",
                              name, first->string, member->string);
        first = member;
    }
    return QP_OK;
}

qp_status form_read_structured(void *out, const char *name, const cJSON *value, api_error *error)
{
    TRY(check_one_form(name, value, error));
    const cJSON *schema = json_get(value, "json"), *words = json_get(value, "choice");
    const cJSON *grammar = json_get(value, "grammar"), *regex = json_get(value, "regex");
    if (schema) return form_read_schema(out, name, schema, error);
    if (cJSON_IsTrue(json_get(value, "json_object"))) return any_object(out, name, error);
    if (words) return form_read_words(out, name, words, error);
    if (cJSON_IsString(grammar)) return form_read_grammar(out, name, grammar, error);
    if (cJSON_IsString(regex)) return form_read_regex(out, name, regex, error);
    return api_refuse(error, 400, name,
                      "\"%s\" must have \"json\", \"json_object\", \"choice\", \"regex\" or "
                      "\"grammar\"; \"structural_tag\" is not supported",
                      name);
}

qp_status form_read_tool_choice(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    const cJSON *function = json_get(value, "function");
    const char *type =
        cJSON_GetStringValue(cJSON_IsObject(value) ? json_get(value, "type") : value);
    const char *tool = cJSON_GetStringValue(json_get(function ? function : value, "name"));
    p->no_tools = type && strcmp(type, "none") == 0;
    if (type && (p->no_tools || strcmp(type, "auto") == 0)) return QP_OK;
    const bool any = type && strcmp(type, "required") == 0;
    if (any || (type && strcmp(type, "function") == 0 && tool))
        return form_force_call(p, name, any ? NULL : tool), QP_OK;
    return api_refuse(error, 400, name,
                      "\"%s\" may be \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                      "\"function\": {\"name\": ...}}",
                      name);
}

qp_status form_read_parallel(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    (void)name, (void)error;
    if (cJSON_IsFalse(value)) p->tool.one = true;
    return QP_OK;
}

/* ---- Grammars of requests ------------------------------------------------------------------ */

/* A grammar whose texts are the words. */
static void put_words(const cJSON *words, strbuf *out)
{
    const cJSON *word;
    strbuf_puts(out, "root ::= ");
    cJSON_ArrayForEach(word, words)
    {
        strbuf_puts(out, word == words->child ? "\"" : " | \"");
        for (const char *c = word->valuestring; *c; c++) {
            const bool plain = (uint8_t)*c >= 0x20 && *c != '"' && *c != '\\';
            if (plain)
                strbuf_putc(out, *c);
            else
                strbuf_printf(out, "\\x%02x", (unsigned)(uint8_t)*c);
        }
        strbuf_puts(out, "\"");
    }
}

/* The text of the form, as qp_grammar_open() reads it. */
static qp_status put_text(const requested_form *w, strbuf *out, api_error *error)
{
    if (w->words) {
        put_words(w->words, out);
    } else if (w->grammar) {
        strbuf_puts(out, w->grammar);
    } else if (cJSON_IsString(w->schema)) {
        strbuf_puts(out, w->schema->valuestring);
    } else if (w->schema) {
        char *text = json_print(w->schema);
        strbuf_puts(out, text ? text : "");
        out->failed |= !text;
        cJSON_free(text);
    }
    if (!out->failed) return QP_OK;
    return api_failed(error, error_no_memory(&error->error, "the form", out->length));
}

/* What would keep an answer from ending where its form ends. */
static qp_status check_end(const call *c, const char *name, api_error *error)
{
    if (!c->p.ignore_eos && c->p.min_tokens == 0) return QP_OK;
    return api_refuse(error, 400, name,
                      "\"%s\" and \"%s\" exclude each other: an answer ends where its form does",
                      name, c->p.ignore_eos ? "ignore_eos" : "min_tokens");
}

qp_status form_opened(call *c, const char *name, qp_status status, api_error *error)
{
    if (status == QP_OK) return check_end(c, name, error);
    if (status == QP_NO_MEMORY) return api_failed(error, status);
    const qp_error said = error->error;
    return api_refuse(error, 400, name, "\"%s\": %.900s", name, said.message);
}

qp_status call_open_form(call *c, api_error *error)
{
    const requested_form *w = &c->p.form;
    server *s = c->server;
    strbuf text = {0};
    if (!*w->field || c->form) return QP_OK;
    TRY(server_vocabulary(s, error));
    qp_status status = put_text(w, &text, error);
    if (status == QP_OK) {
        status = open_grammar(&s->forms, s->vocabulary, w->kind, strbuf_text(&text), text.length,
                              &c->form, &error->error);
        status = form_opened(c, w->field, status, error);
    }
    strbuf_free(&text);
    c->tools.count = 0;
    return status;
}
