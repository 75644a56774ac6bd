/* Parses statements of templates: see parser.h. */
#include "template/parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

qp_status parser_advance(parser *parser)
{
    if (parser->has_ahead) {
        parser->current = parser->ahead;
        parser->has_ahead = false;
        return QP_OK;
    }
    return lexer_next(&parser->lexer, &parser->current);
}

qp_status parser_peek(parser *parser, const token **ahead)
{
    *ahead = &parser->ahead;
    if (parser->has_ahead) return QP_OK;
    TRY(lexer_next(&parser->lexer, &parser->ahead));
    parser->has_ahead = true;
    return QP_OK;
}

qp_status parser_expected(parser *parser, const char *what)
{
    const token *found = &parser->current;
    char quoted[64];
    int shown = found->length < 40 ? (int)found->length : 40;
    snprintf(quoted, sizeof quoted, "'%.*s'", shown, shown ? found->start : "");
    const char *name = found->kind == TOKEN_END           ? "the end of the template"
                       : found->kind == TOKEN_PRINT_END   ? "the end of the tag '}}'"
                       : found->kind == TOKEN_BLOCK_END   ? "the end of the tag '%}'"
                       : found->kind == TOKEN_DATA        ? "text"
                       : found->kind == TOKEN_PRINT_BEGIN ? "'{{'"
                       : found->kind == TOKEN_BLOCK_BEGIN ? "'{%'"
                                                          : quoted;
    return template_error_at(parser->lexer.error, QP_FORMAT, found->line, found->column,
                             "expected %s, found %s", what, name);
}

qp_status parser_fail(parser *parser, const node *at, const char *message)
{
    return template_error_at(parser->lexer.error, QP_FORMAT, at->line, at->column, "%s", message);
}

qp_status parser_take(parser *parser, token_kind kind, const char *what)
{
    return parser->current.kind == kind ? parser_advance(parser) : parser_expected(parser, what);
}

bool parser_at_name(const parser *parser, const char *name)
{
    return parser->current.kind == TOKEN_NAME && string_is(parser->current.text, name);
}

qp_status parser_skip_name(parser *parser, const char *name, bool *taken)
{
    *taken = parser_at_name(parser, name);
    return *taken ? parser_advance(parser) : QP_OK;
}

qp_status parser_node(parser *parser, node_kind kind, node **out)
{
    *out = heap_alloc(parser->lexer.heap, 1, sizeof **out);
    if (!*out) return error_no_memory(parser->lexer.error, "a template's tree", sizeof **out);
    (*out)->kind = kind;
    (*out)->line = parser->current.line;
    (*out)->column = parser->current.column;
    return QP_OK;
}

qp_status parser_enter(parser *parser)
{
    if (parser->depth == TEMPLATE_MAX_NESTING)
        return template_error_at(parser->lexer.error, QP_FORMAT, parser->current.line,
                                 parser->current.column, "nested too deeply (more than %d levels)",
                                 TEMPLATE_MAX_NESTING);
    parser->depth++;
    return QP_OK;
}

void parser_leave(parser *parser)
{
    parser->depth--;
}

static qp_status parse_body(parser *parser, const char *const *ends, const node **out);

/* Parses the rest of a tag, then its body up to {% end %}, whose name is consumed. */
static qp_status parse_block(parser *parser, const char *end, const node **out)
{
    const char *const ends[] = {end, NULL};
    TRY(parse_body(parser, ends, out));
    return parser_advance(parser);
}

static qp_status parse_for(parser *parser, node *made)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    bool taken;
    TRY(parse_target(parser, false, "in", &made->a));
    TRY(parser_skip_name(parser, "in", &taken));
    if (!taken) return parser_expected(parser, "'in'");
    TRY(parse_tuple(parser, false, "recursive", &made->b));
    TRY(parser_skip_name(parser, "if", &taken));
    if (taken) TRY(parse_expression(parser, &made->e));
    TRY(parser_skip_name(parser, "recursive", &taken));
    made->detail = taken;
    parser->loops++;
    TRY(parse_body(parser, ends, &made->c));
    parser->loops--;
    TRY(parser_skip_name(parser, "else", &taken));
    return taken ? parse_block(parser, "endfor", &made->d) : parser_advance(parser);
}

static qp_status parse_if(parser *parser, node *made)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    for (;;) {
        bool elif, otherwise;
        node *next;
        TRY(parse_tuple(parser, false, NULL, &made->a));
        TRY(parse_body(parser, ends, &made->b));
        TRY(parser_skip_name(parser, "elif", &elif));
        if (!elif) {
            TRY(parser_skip_name(parser, "else", &otherwise));
            return otherwise ? parse_block(parser, "endif", &made->c) : parser_advance(parser);
        }
        TRY(parser_node(parser, NODE_IF, &next));
        next->detail = true;
        made->c = next;
        made = next;
    }
}

static qp_status parse_set(parser *parser, node *made)
{
    TRY(parse_target(parser, true, NULL, &made->a));
    if (parser->current.kind == TOKEN_ASSIGN) {
        TRY(parser_advance(parser));
        return parse_tuple(parser, true, NULL, &made->b);
    }
    made->kind = NODE_SET_BLOCK;
    TRY(parse_filters(parser, NULL, false, &made->c));
    return parse_block(parser, "endset", &made->b);
}

/* (a, b=1) */
static qp_status parse_parameters(parser *parser, const node **out)
{
    node *last = NULL;
    TRY(parser_take(parser, TOKEN_LPAREN, "'('"));
    while (parser->current.kind != TOKEN_RPAREN) {
        node *parameter;
        if (last) TRY(parser_take(parser, TOKEN_COMMA, "',' or ')'"));
        TRY(parser_node(parser, NODE_PARAMETER, &parameter));
        parameter->text = parser->current.text;
        TRY(parser_take(parser, TOKEN_NAME, "the name of a parameter"));
        if (parser->current.kind == TOKEN_ASSIGN) {
            TRY(parser_advance(parser));
            TRY(parse_expression(parser, &parameter->a));
        } else if (last && last->a) {
            return parser_fail(parser, parameter,
                               "a parameter without a default follows one that has it");
        }
        if (last)
            last->next = parameter;
        else
            *out = parameter;
        last = parameter;
    }
    return parser_advance(parser);
}

/* A body in which break and continue do not refer to the loops around it. */
static qp_status parse_apart(parser *parser, const char *end, const node **out)
{
    int loops = parser->loops;
    parser->loops = 0;
    TRY(parse_block(parser, end, out));
    parser->loops = loops;
    return QP_OK;
}

/* Removes the names that are parameters; `caller` is one only with a default, as in jinja2. */
static qp_status hide_parameters(parser *parser, const node *parameters, int *names)
{
    for (const node *parameter = parameters; parameter; parameter = parameter->next) {
        const int name = macro_name_of(parameter->text);
        if (name & *names & MACRO_CALLER && !parameter->a)
            return parser_fail(parser, parameter, "the parameter 'caller' needs a default");
        *names &= ~name;
    }
    return QP_OK;
}

/* The macro around it uses the names that this one uses, as in jinja2. */
static qp_status parse_macro_body(parser *parser, const char *end, const node *parameters,
                                  node *macro, const node **out)
{
    int names = parser->names;
    parser->names = 0;
    TRY(parse_apart(parser, end, out));
    macro->detail = parser->names;
    TRY(hide_parameters(parser, parameters, &macro->detail));
    parser->names |= names;
    return QP_OK;
}

static qp_status parse_macro(parser *parser, node *made)
{
    made->text = parser->current.text;
    TRY(parser_take(parser, TOKEN_NAME, "the name of a macro"));
    TRY(parse_parameters(parser, &made->a));
    return parse_macro_body(parser, "endmacro", made->a, made, &made->b);
}

static qp_status parse_call_block(parser *parser, node *made)
{
    if (parser->current.kind == TOKEN_LPAREN) TRY(parse_parameters(parser, &made->b));
    TRY(parse_expression(parser, &made->a));
    if (made->a->kind != NODE_CALL) return parser_fail(parser, made->a, "expected a call");
    return parse_macro_body(parser, "endcall", made->b, made, &made->c);
}

static qp_status parse_filter_block(parser *parser, node *made)
{
    TRY(parse_filters(parser, NULL, true, &made->a));
    return parse_block(parser, "endfilter", &made->b);
}

static qp_status parse_with(parser *parser, node *made)
{
    node *last = NULL;
    while (parser->current.kind != TOKEN_BLOCK_END) {
        node *set;
        if (last) TRY(parser_take(parser, TOKEN_COMMA, "',' or the end of the tag"));
        TRY(parser_node(parser, NODE_SET, &set));
        TRY(parse_target(parser, false, NULL, &set->a));
        TRY(parser_take(parser, TOKEN_ASSIGN, "'='"));
        TRY(parse_expression(parser, &set->b));
        if (last)
            last->next = set;
        else
            made->a = set;
        last = set;
    }
    return parse_block(parser, "endwith", &made->b);
}

static qp_status parse_generation(parser *parser, node *made)
{
    return parse_apart(parser, "endgeneration", &made->a);
}

static qp_status parse_break(parser *parser, node *made)
{
    return parser->loops ? QP_OK : parser_fail(parser, made, "this stands outside of any loop");
}

static qp_status parse_print(parser *parser, node *made)
{
    return parse_expression(parser, &made->a);
}

static qp_status parse_refused(parser *parser, node *made)
{
    template_error_at(parser->lexer.error, QP_UNSUPPORTED, made->line, made->column,
                      "the tag '%.*s' is not supported: a chat template stands alone",
                      (int)made->text->length, made->text->data);
    return QP_UNSUPPORTED;
}

static const struct statement {
    const char *name;
    node_kind kind;
    qp_status (*parse)(parser *parser, node *made);
} statements[] = {
    {"for", NODE_FOR, parse_for},
    {"if", NODE_IF, parse_if},
    {"set", NODE_SET, parse_set},
    {"macro", NODE_MACRO, parse_macro},
    {"call", NODE_CALL_BLOCK, parse_call_block},
    {"filter", NODE_FILTER_BLOCK, parse_filter_block},
    {"with", NODE_WITH, parse_with},
    {"generation", NODE_SCOPE, parse_generation},
    {"break", NODE_BREAK, parse_break},
    {"continue", NODE_CONTINUE, parse_break},
    {"print", NODE_PRINT, parse_print},
    {"block", NODE_SCOPE, parse_refused},
    {"extends", NODE_SCOPE, parse_refused},
    {"include", NODE_SCOPE, parse_refused},
    {"import", NODE_SCOPE, parse_refused},
    {"from", NODE_SCOPE, parse_refused},
    {"autoescape", NODE_SCOPE, parse_refused},
};

/* Parses the tag between {% and %}, without these. */
static qp_status parse_statement(parser *parser, node **out)
{
    TRY(parser_node(parser, NODE_SCOPE, out));
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        if (!parser_at_name(parser, statements[i].name)) continue;
        (*out)->kind = statements[i].kind;
        (*out)->text = parser->current.text;
        TRY(parser_advance(parser));
        return statements[i].parse(parser, *out);
    }
    return parser_expected(parser, "the name of a tag (for, if, set, macro, ...)");
}

static bool at_any(const parser *parser, const char *const *ends)
{
    while (ends && *ends && !parser_at_name(parser, *ends))
        ends++;
    return ends && *ends;
}

/* "'endfor' or 'else'", for messages. */
static qp_status missing_end(parser *parser, const char *const *ends)
{
    char what[64];
    size_t used = 0;
    for (size_t i = 0; ends[i] && used < sizeof what; i++)
        used +=
            (size_t)snprintf(what + used, sizeof what - used, "%s'%s'", i ? " or " : "", ends[i]);
    return parser_expected(parser, what);
}

/* Parses text and tags up to one of `ends`, which stays the current token, or, if it is NULL, up to
 * the end of the template. */
static qp_status parse_nodes(parser *parser, const char *const *ends, const node **out)
{
    node *last = NULL;
    while (parser->current.kind != TOKEN_END) {
        node *made;
        token_kind kind = parser->current.kind;
        TRY(parser_node(parser, kind == TOKEN_DATA ? NODE_DATA : NODE_PRINT, &made));
        made->text = parser->current.text;
        TRY(parser_advance(parser));
        if (kind == TOKEN_PRINT_BEGIN) {
            TRY(parse_tuple(parser, true, NULL, &made->a));
            TRY(parser_take(parser, TOKEN_PRINT_END, "'}}' or an operator"));
        } else if (kind == TOKEN_BLOCK_BEGIN) {
            if (at_any(parser, ends)) return QP_OK;
            TRY(parse_statement(parser, &made));
            TRY(parser_take(parser, TOKEN_BLOCK_END, "'%}'"));
        }
        if (last)
            last->next = made;
        else
            *out = made;
        last = made;
    }
    return ends ? missing_end(parser, ends) : QP_OK;
}

static qp_status parse_body(parser *parser, const char *const *ends, const node **out)
{
    if (parser->current.kind == TOKEN_COLON) TRY(parser_advance(parser));
    TRY(parser_take(parser, TOKEN_BLOCK_END, "'%}'"));
    TRY(parser_enter(parser));
    TRY(parse_nodes(parser, ends, out));
    parser_leave(parser);
    return QP_OK;
}

qp_status template_parse(heap *heap, const char *source, size_t length, const node **body,
                         qp_error *error)
{
    parser parser;
    memset(&parser, 0, sizeof parser);
    lexer_start(&parser.lexer, heap, source, length, error);
    TRY(parser_advance(&parser));
    *body = NULL;
    return parse_nodes(&parser, NULL, body);
}
