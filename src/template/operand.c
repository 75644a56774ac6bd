/* Parses the operands of expressions: literals, names, parentheses, and the calls, attributes,
 * indices and filters that follow them. See parser.h. */
#include "template/expression.h"

#include <string.h>

/* name=value, value, *value or **value. */
static qp_status parse_argument(parser *parser, node *argument)
{
    const token *ahead;
    if (parser_at(parser, TOKEN_MUL) || parser_at(parser, TOKEN_POW)) {
        argument->detail = parser_at(parser, TOKEN_MUL) ? ARGUMENT_STAR : ARGUMENT_STAR_STAR;
        TRY(parser_advance(parser));
    } else if (parser_at(parser, TOKEN_NAME)) {
        TRY(parser_peek(parser, &ahead));
        if (ahead->kind == TOKEN_ASSIGN) {
            argument->detail = ARGUMENT_KEYWORD;
            argument->text = parser->current.text;
            TRY(parser_advance(parser));
            TRY(parser_advance(parser));
        }
    }
    return parse_expression(parser, &argument->a);
}

/* ( ... ): positional arguments first, then keywords and *, then **. */
qp_status parse_arguments(parser *parser, const node **out)
{
    chain arguments = {0};
    bool starred = false, named = false;
    TRY(parser_take(parser, TOKEN_LPAREN, "'('"));
    while (!parser_at(parser, TOKEN_RPAREN)) {
        if (arguments.first) {
            TRY(parser_take(parser, TOKEN_COMMA, "',' or ')'"));
            if (parser_at(parser, TOKEN_RPAREN)) break;
        }
        node *argument;
        TRY(parser_node(parser, NODE_ARGUMENT, &argument));
        TRY(parse_argument(parser, argument));
        bool late = argument->detail == ARGUMENT_POSITIONAL && (starred || named);
        late |= argument->detail == ARGUMENT_STAR && starred;
        if (late)
            return parser_fail(parser, argument, "positional arguments come before all others");
        starred |= argument->detail == ARGUMENT_STAR || argument->detail == ARGUMENT_STAR_STAR;
        named |= argument->detail == ARGUMENT_KEYWORD;
        chain_add(&arguments, argument);
    }
    *out = arguments.first;
    return parser_take(parser, TOKEN_RPAREN, "')'");
}

static qp_status parse_optional(parser *parser, const node **out)
{
    bool absent = parser_at(parser, TOKEN_COLON) || parser_at(parser, TOKEN_RBRACKET);
    return absent ? QP_OK : parse_expression(parser, out);
}

/* [a, b]: the key is a tuple. */
static qp_status parse_tuple_key(parser *parser, const node **key)
{
    node *tuple;
    chain items = {0};
    TRY(parser_node(parser, NODE_TUPLE, &tuple));
    chain_add(&items, *key);
    while (parser_at(parser, TOKEN_COMMA)) {
        const node *next;
        TRY(parser_advance(parser));
        TRY(parse_expression(parser, &next));
        chain_add(&items, next);
    }
    tuple->a = items.first;
    *key = tuple;
    return QP_OK;
}

/* [key], [a, b] or [start:stop:step]. */
static qp_status parse_subscript(parser *parser, const node *object, const node **out)
{
    node *item;
    TRY(parser_node(parser, NODE_ITEM, &item));
    TRY(parser_take(parser, TOKEN_LBRACKET, "'['"));
    item->a = object;
    *out = item;
    if (parser_at(parser, TOKEN_RBRACKET)) return parser_expected(parser, "an index");
    TRY(parse_optional(parser, &item->b));
    if (parser_at(parser, TOKEN_COLON)) {
        item->kind = NODE_SLICE;
        TRY(parser_advance(parser));
        TRY(parse_optional(parser, &item->c));
        if (parser_at(parser, TOKEN_COLON)) {
            TRY(parser_advance(parser));
            TRY(parse_optional(parser, &item->d));
        }
    }
    if (item->kind == NODE_ITEM && parser_at(parser, TOKEN_COMMA))
        TRY(parse_tuple_key(parser, &item->b));
    return parser_take(parser, TOKEN_RBRACKET, "']'");
}

/* .name or .0 */
static qp_status parse_attribute(parser *parser, const node *object, const node **out)
{
    node *attribute, *index;
    TRY(parser_advance(parser));
    TRY(parser_node(parser, NODE_ATTRIBUTE, &attribute));
    attribute->a = object;
    *out = attribute;
    if (parser_at(parser, TOKEN_INT)) {
        TRY(parser_node(parser, NODE_CONSTANT, &index));
        index->constant = parser->current.number;
        attribute->kind = NODE_ITEM;
        attribute->b = index;
        return parser_advance(parser);
    }
    attribute->text = parser->current.text;
    return parser_take(parser, TOKEN_NAME, "a name or a number after '.'");
}

qp_status parse_call(parser *parser, const node *callee, const node **out)
{
    node *call;
    TRY(parser_node(parser, NODE_CALL, &call));
    call->a = callee;
    call->line = callee->line;
    call->column = callee->column;
    *out = call;
    return parse_arguments(parser, &call->b);
}

qp_status parse_postfix(parser *parser, const node **out)
{
    for (;;) {
        switch (parser->current.kind) {
        case TOKEN_DOT:
            TRY(parse_attribute(parser, *out, out));
            break;
        case TOKEN_LBRACKET:
            TRY(parse_subscript(parser, *out, out));
            break;
        case TOKEN_LPAREN:
            TRY(parse_call(parser, *out, out));
            break;
        default:
            return QP_OK;
        }
    }
}

static qp_status parse_items(parser *parser, node *made, token_kind close, const char *what)
{
    chain items = {0};
    TRY(parser_advance(parser));
    while (!parser_at(parser, close)) {
        const node *item;
        if (items.first) TRY(parser_take(parser, TOKEN_COMMA, what));
        if (parser_at(parser, close)) break;
        TRY(parse_expression(parser, &item));
        chain_add(&items, item);
        if (made->kind != NODE_DICT) continue;
        TRY(parser_take(parser, TOKEN_COLON, "':'"));
        TRY(parse_expression(parser, &item));
        chain_add(&items, item);
    }
    made->a = items.first;
    return parser_take(parser, close, what);
}

/* Adjacent string literals are one string. */
static qp_status parse_strings(parser *parser, node *made)
{
    const string *text = parser->current.text;
    TRY(parser_advance(parser));
    while (parser_at(parser, TOKEN_STRING)) {
        const string *more = parser->current.text;
        size_t length = text->length + more->length;
        char *joined = heap_alloc(parser->lexer.heap, length, 1);
        if (joined && text->length) memcpy(joined, text->data, text->length);
        if (joined && more->length) memcpy(joined + text->length, more->data, more->length);
        text = joined ? string_view(parser->lexer.heap, joined, length) : NULL;
        if (!text) return error_no_memory(parser->lexer.error, "a template's text", length);
        TRY(parser_advance(parser));
    }
    made->constant = value_text(text);
    return QP_OK;
}

void parser_name_or_constant(node *made, const string *name)
{
    made->text = name;
    if (string_is(name, "true") || string_is(name, "True"))
        made->constant = value_bool(true);
    else if (string_is(name, "false") || string_is(name, "False"))
        made->constant = value_bool(false);
    else if (string_is(name, "none") || string_is(name, "None"))
        made->constant = value_none();
    else
        return;
    made->kind = NODE_CONSTANT;
}

/* ( ... ): an expression in parentheses or a tuple, () too. */
static qp_status parse_parentheses(parser *parser, node *empty, const node **out)
{
    TRY(parser_advance(parser));
    empty->kind = NODE_TUPLE;
    if (!parser_at(parser, TOKEN_RPAREN)) TRY(parse_tuple(parser, true, NULL, out));
    return parser_take(parser, TOKEN_RPAREN, "')'");
}

int macro_name_of(const string *name)
{
    return string_is(name, "caller")    ? MACRO_CALLER
           : string_is(name, "kwargs")  ? MACRO_KWARGS
           : string_is(name, "varargs") ? MACRO_VARARGS
                                        : 0;
}

qp_status parse_primary(parser *parser, const node **out)
{
    node *made;
    TRY(parser_node(parser, NODE_CONSTANT, &made));
    *out = made;
    switch (parser->current.kind) {
    case TOKEN_NAME:
        made->kind = NODE_NAME;
        parser_name_or_constant(made, parser->current.text);
        parser->names |= macro_name_of(parser->current.text);
        return parser_advance(parser);
    case TOKEN_STRING:
        return parse_strings(parser, made);
    case TOKEN_INT:
    case TOKEN_FLOAT:
        made->constant = parser->current.number;
        return parser_advance(parser);
    case TOKEN_LPAREN:
        return parse_parentheses(parser, made, out);
    case TOKEN_LBRACKET:
        made->kind = NODE_LIST;
        return parse_items(parser, made, TOKEN_RBRACKET, "',' or ']'");
    case TOKEN_LBRACE:
        made->kind = NODE_DICT;
        return parse_items(parser, made, TOKEN_RBRACE, "',' or '}'");
    default:
        return parser_expected(parser, "an expression");
    }
}

qp_status parse_filters(parser *parser, const node *input, bool started, const node **out)
{
    *out = input;
    while (started || parser_at(parser, TOKEN_PIPE)) {
        node *filter;
        if (!started) TRY(parser_advance(parser));
        started = false;
        TRY(parser_node(parser, NODE_FILTER, &filter));
        filter->text = parser->current.text;
        filter->a = *out;
        TRY(parser_take(parser, TOKEN_NAME, "the name of a filter"));
        if (parser_at(parser, TOKEN_LPAREN)) TRY(parse_arguments(parser, &filter->b));
        *out = filter;
    }
    return QP_OK;
}
