/* Calls of tools that are forced, in the form that the model's template writes them: see
 * tool_calls.h for the forms. */
#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "server/call.h"
#include "server/server_state.h"

#include <string.h>

enum { MOST_CALLS = 16 };

/* How a family writes calls. */
typedef struct tool_style {
    const char *mark; /* in a template of the family; "": any other template */
    const char *begin, *name, *end, *arguments, *after; /* around the name and the arguments */
    const char *open, *close;                           /* around all calls */
    const char *between;                                /* two calls; NULL: there is one */
} tool_style;

static const tool_style styles[] = {
    {"<|channel|>", "<|channel|>commentary to=functions.", "", "", " <|constrain|>json<|message|>",
     "", "", "", NULL},
    {"[ARGS]", "[TOOL_CALLS]", "", "", "[ARGS]", "", "", "", ""},
    {"[TOOL_CALLS]", "{\"name\": ", "\"", "\"", ", \"arguments\": ", "}", "[TOOL_CALLS][", "]",
     ", "},
    {"<tool_call>", "<tool_call>\n{\"name\": ", "\"", "\"", ", \"arguments\": ", "}\n</tool_call>",
     "", "", "\n"},
    {"", "{\"name\": ", "\"", "\"", ", \"parameters\": ", "}", "", "", NULL},
};

static const tool_style *style_of(const qp_vocabulary *v)
{
    const chat_templates *t = &v->templates;
    const char *source = t->with_tools.source ? t->with_tools.source : t->plain.source;
    const tool_style *style = styles;
    while (*style->mark && !(source && strstr(source, style->mark)))
        style++;
    return style;
}

/* A text of the style, in which marks that are control tokens are those tokens. */
static grammar_expr marked(grammar *g, const tokenizer *t, const char *text)
{
    static const char *const marks[] = {"<tool_call>", "</tool_call>",  "[TOOL_CALLS]", "[ARGS]",
                                        "<|channel|>", "<|constrain|>", "<|message|>"};
    expr_list list = {0};
    while (*text) {
        size_t length = 1;
        bool control = false;
        for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
            const size_t n = strlen(marks[i]);
            if (strncmp(text, marks[i], n) != 0) continue;
            const int32_t token = tokenizer_find(t, marks[i], n);
            control = token >= 0 && tokenizer_is_control(t, token);
            length = n;
        }
        const char begin = (char)TRIE_CONTROL;
        if (control) expr_list_add(g, &list, grammar_literal(g, &begin, 1));
        expr_list_add(g, &list, grammar_literal(g, text, length));
        text += length;
    }
    return grammar_sequence_of(g, &list);
}

/* The name between quotes where the style has them; of a name that JSON would escape, as it is. */
static grammar_expr named(grammar *g, const tool_style *style, const char *name)
{
    grammar_expr parts[] = {grammar_text(g, style->name), grammar_text(g, name),
                            grammar_text(g, style->end)};
    return grammar_sequence(g, parts, 3);
}

static qp_status add_tool(json_parts *parts, const tokenizer *t, const tool_style *style,
                          const cJSON *tool, expr_list *out, qp_error *error)
{
    grammar *g = parts->g;
    const cJSON *function = json_get(tool, "function");
    const cJSON *schema = json_get(function, "parameters");
    const char *name = cJSON_GetStringValue(json_get(function, "name"));
    grammar_expr arguments = json_object(parts);
    if (name[strcspn(name, "\"\\")])
        return error_set(error, QP_UNSUPPORTED, "the name of a tool has a quote or a backslash");
    if (cJSON_IsObject(schema) && schema->child) {
        qp_status status = json_schema_add(parts, schema, &arguments, error);
        if (status != QP_OK) return error_prefix(error, "parameters of %.60s", name);
    }
    grammar_expr all[] = {marked(g, t, style->begin), named(g, style, name),
                          marked(g, t, style->arguments), arguments, marked(g, t, style->after)};
    expr_list_add(g, out, grammar_sequence(g, all, 5));
    return QP_OK;
}

/* One of the tools, or the one that is wanted. */
static qp_status add_tools(json_parts *parts, const tokenizer *t, const tool_style *style,
                           const cJSON *tools, const requested_tool *requested, grammar_expr *out,
                           qp_error *error)
{
    const cJSON *tool;
    expr_list list = {0};
    qp_status status = QP_OK;
    cJSON_ArrayForEach(tool, tools)
    {
        const char *name = cJSON_GetStringValue(json_get(json_get(tool, "function"), "name"));
        if (requested->name && strcmp(requested->name, name) != 0) continue;
        if (status == QP_OK) status = add_tool(parts, t, style, tool, &list, error);
    }
    const bool none = list.count == 0;
    *out = grammar_choice_of(parts->g, &list);
    if (status != QP_OK || !none) return status;
    return error_set(error, QP_INVALID, "no tool \"%.60s\" is in \"tools\"",
                     requested->name ? requested->name : "");
}

static qp_status build(const qp_vocabulary *v, const cJSON *tools, const requested_tool *requested,
                       grammar *g, qp_error *error)
{
    static const char root_name[] = "calls of tools", call_name[] = "a call";
    const tokenizer *t = v->tokenizer;
    const tool_style *style = style_of(v);
    json_parts parts = {.g = g};
    grammar_expr one;
    const uint32_t root = grammar_add_rule(g, root_name, strlen(root_name));
    const uint32_t rule = grammar_add_rule(g, call_name, strlen(call_name));
    TRY(add_tools(&parts, t, style, tools, requested, &one, error));
    grammar_set_rule(g, rule, one);
    grammar_expr calls = grammar_rule_expr(g, rule);
    if (style->between && !requested->one) {
        const grammar_expr more =
            grammar_pair(g, grammar_text(g, style->between), grammar_rule_expr(g, rule));
        calls = grammar_pair(g, calls, grammar_repeat(g, more, 0, MOST_CALLS - 1));
    }
    grammar_expr all[] = {marked(g, t, style->open), calls, marked(g, t, style->close)};
    grammar_set_rule(g, root, grammar_sequence(g, all, 3));
    return QP_OK;
}

qp_status call_open_tool_form(call *c, const cJSON *tools, api_error *error)
{
    const requested_tool *requested = &c->p.tool;
    const qp_vocabulary *v = c->server->vocabulary;
    grammar g = {0};
    if (!*requested->field) return QP_OK;
    if (!c->tools.count)
        return api_refuse(error, 400, requested->field,
                          "\"%s\" wants a call, and \"tools\" has none", requested->field);
    qp_status status = build(v, tools, requested, &g, &error->error);
    if (status == QP_OK) status = vocabulary_open_form(v, &g, &c->form, &error->error);
    grammar_free(&g);
    return form_opened(c, requested->field, status, error);
}
