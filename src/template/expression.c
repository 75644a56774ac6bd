/* Parses expressions of templates: see parser.h. The grammar and its precedences are jinja2's. */
#include "template/parser.h"

#include <string.h>

static qp_status parse_unary(parser *parser, bool filters, const node **out);
static qp_status parse_or(parser *parser, const node **out);

/* A list of nodes that grows at its end. */
typedef struct chain {
    const node *first;
    node *last;
} chain;

/* A node of an expression is in one list only, so `next` can be set later. */
static void chain_add(chain *chain, const node *item)
{
    node *added = (node *)item;
    if (chain->last)
        chain->last->next = added;
    else
        chain->first = added;
    chain->last = added;
}

static bool at_kind(const parser *parser, token_kind kind)
{
    return parser->current.kind == kind;
}

/* A node with two children, at the position of the first. */
static qp_status make_pair(parser *parser, node_kind kind, const node *a, const node *b,
                           const node **out)
{
    node *made;
    TRY(parser_node(parser, kind, &made));
    made->line = a->line;
    made->column = a->column;
    made->a = a;
    made->b = b;
    *out = made;
    return QP_OK;
}

/* name=value, value, *value or **value. */
static qp_status parse_argument(parser *parser, node *argument)
{
    const token *ahead;
    if (at_kind(parser, TOKEN_MUL) || at_kind(parser, TOKEN_POW)) {
        argument->detail = at_kind(parser, TOKEN_MUL) ? ARGUMENT_STAR : ARGUMENT_STAR_STAR;
        TRY(parser_advance(parser));
    } else if (at_kind(parser, TOKEN_NAME)) {
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
static qp_status parse_arguments(parser *parser, const node **out)
{
    chain arguments = {0};
    bool starred = false, named = false;
    TRY(parser_take(parser, TOKEN_LPAREN, "'('"));
    while (!at_kind(parser, TOKEN_RPAREN)) {
        if (arguments.first) {
            TRY(parser_take(parser, TOKEN_COMMA, "',' or ')'"));
            if (at_kind(parser, TOKEN_RPAREN)) break;
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
    bool absent = at_kind(parser, TOKEN_COLON) || at_kind(parser, TOKEN_RBRACKET);
    return absent ? QP_OK : parse_expression(parser, out);
}

/* [a, b]: the key is a tuple. */
static qp_status parse_tuple_key(parser *parser, const node **key)
{
    node *tuple;
    chain items = {0};
    TRY(parser_node(parser, NODE_TUPLE, &tuple));
    chain_add(&items, *key);
    while (at_kind(parser, TOKEN_COMMA)) {
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
    if (at_kind(parser, TOKEN_RBRACKET)) return parser_expected(parser, "an index");
    TRY(parse_optional(parser, &item->b));
    if (at_kind(parser, TOKEN_COLON)) {
        item->kind = NODE_SLICE;
        TRY(parser_advance(parser));
        TRY(parse_optional(parser, &item->c));
        if (at_kind(parser, TOKEN_COLON)) {
            TRY(parser_advance(parser));
            TRY(parse_optional(parser, &item->d));
        }
    }
    if (item->kind == NODE_ITEM && at_kind(parser, TOKEN_COMMA))
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
    if (at_kind(parser, TOKEN_INT)) {
        TRY(parser_node(parser, NODE_CONSTANT, &index));
        index->constant = parser->current.number;
        attribute->kind = NODE_ITEM;
        attribute->b = index;
        return parser_advance(parser);
    }
    attribute->text = parser->current.text;
    return parser_take(parser, TOKEN_NAME, "a name or a number after '.'");
}

static qp_status parse_call(parser *parser, const node *callee, const node **out)
{
    node *call;
    TRY(parser_node(parser, NODE_CALL, &call));
    call->a = callee;
    call->line = callee->line;
    call->column = callee->column;
    *out = call;
    return parse_arguments(parser, &call->b);
}

static qp_status parse_postfix(parser *parser, const node **out)
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
    while (!at_kind(parser, close)) {
        const node *item;
        if (items.first) TRY(parser_take(parser, TOKEN_COMMA, what));
        if (at_kind(parser, close)) break;
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
    while (at_kind(parser, TOKEN_STRING)) {
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

static void name_or_constant(node *made, const string *name)
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
    if (!at_kind(parser, TOKEN_RPAREN)) TRY(parse_tuple(parser, true, NULL, out));
    return parser_take(parser, TOKEN_RPAREN, "')'");
}

static qp_status parse_primary(parser *parser, const node **out)
{
    node *made;
    TRY(parser_node(parser, NODE_CONSTANT, &made));
    *out = made;
    switch (parser->current.kind) {
    case TOKEN_NAME:
        made->kind = NODE_NAME;
        name_or_constant(made, parser->current.text);
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
    while (started || at_kind(parser, TOKEN_PIPE)) {
        node *filter;
        if (!started) TRY(parser_advance(parser));
        started = false;
        TRY(parser_node(parser, NODE_FILTER, &filter));
        filter->text = parser->current.text;
        filter->a = *out;
        TRY(parser_take(parser, TOKEN_NAME, "the name of a filter"));
        if (at_kind(parser, TOKEN_LPAREN)) TRY(parse_arguments(parser, &filter->b));
        *out = filter;
    }
    return QP_OK;
}

/* Whether the current token begins a test's argument that is written without parentheses. */
static bool at_test_argument(const parser *parser)
{
    switch (parser->current.kind) {
    case TOKEN_NAME:
        return !parser_at_name(parser, "else") && !parser_at_name(parser, "or") &&
               !parser_at_name(parser, "and");
    case TOKEN_STRING:
    case TOKEN_INT:
    case TOKEN_FLOAT:
    case TOKEN_LBRACKET:
    case TOKEN_LBRACE:
        return true;
    default:
        return false;
    }
}

/* is [not] name, is name(...), is name argument */
static qp_status parse_test(parser *parser, const node **out)
{
    node *test, *argument;
    bool negated;
    TRY(parser_advance(parser));
    TRY(parser_skip_name(parser, "not", &negated));
    TRY(parser_node(parser, NODE_TEST, &test));
    test->text = parser->current.text;
    test->a = *out;
    *out = test;
    TRY(parser_take(parser, TOKEN_NAME, "the name of a test"));
    if (at_kind(parser, TOKEN_LPAREN)) {
        TRY(parse_arguments(parser, &test->b));
    } else if (at_test_argument(parser)) {
        if (parser_at_name(parser, "is"))
            return parser_expected(parser, "'and' or 'or' between two tests");
        TRY(parser_node(parser, NODE_ARGUMENT, &argument));
        TRY(parse_primary(parser, &argument->a));
        TRY(parse_postfix(parser, &argument->a));
        test->b = argument;
    }
    return negated ? make_pair(parser, NODE_NOT, test, NULL, out) : QP_OK;
}

static qp_status parse_tail(parser *parser, const node **out)
{
    for (;;) {
        if (at_kind(parser, TOKEN_PIPE))
            TRY(parse_filters(parser, *out, false, out));
        else if (parser_at_name(parser, "is"))
            TRY(parse_test(parser, out));
        else if (at_kind(parser, TOKEN_LPAREN))
            TRY(parse_call(parser, *out, out));
        else
            return QP_OK;
    }
}

static qp_status parse_unary(parser *parser, bool filters, const node **out)
{
    TRY(parser_enter(parser));
    if (at_kind(parser, TOKEN_SUB) || at_kind(parser, TOKEN_ADD)) {
        node *sign;
        TRY(parser_node(parser, at_kind(parser, TOKEN_SUB) ? NODE_NEGATE : NODE_PLUS, &sign));
        TRY(parser_advance(parser));
        TRY(parse_unary(parser, false, &sign->a));
        *out = sign;
    } else {
        TRY(parse_primary(parser, out));
    }
    TRY(parse_postfix(parser, out));
    if (filters) TRY(parse_tail(parser, out));
    parser_leave(parser);
    return QP_OK;
}

/* operand { operator operand }, from the left. */
static qp_status parse_binary(parser *parser, const token_kind *operators,
                              qp_status (*operand)(struct parser *, const node **),
                              const node **out)
{
    TRY(operand(parser, out));
    for (;;) {
        const token_kind *found = operators;
        while (*found != TOKEN_END && !at_kind(parser, *found))
            found++;
        if (*found == TOKEN_END) return QP_OK;
        node *binary;
        TRY(parser_node(parser, NODE_BINARY, &binary));
        TRY(parser_advance(parser));
        binary->detail = (int)*found;
        binary->a = *out;
        TRY(operand(parser, &binary->b));
        *out = binary;
    }
}

static qp_status parse_signed(parser *parser, const node **out)
{
    return parse_unary(parser, true, out);
}

static qp_status parse_power(parser *parser, const node **out)
{
    static const token_kind operators[] = {TOKEN_POW, TOKEN_END};
    return parse_binary(parser, operators, parse_signed, out);
}

static qp_status parse_product(parser *parser, const node **out)
{
    static const token_kind operators[] = {TOKEN_MUL, TOKEN_DIV, TOKEN_FLOORDIV, TOKEN_MOD,
                                           TOKEN_END};
    return parse_binary(parser, operators, parse_power, out);
}

static qp_status parse_concat(parser *parser, const node **out)
{
    TRY(parse_product(parser, out));
    if (!at_kind(parser, TOKEN_TILDE)) return QP_OK;
    node *concat;
    chain operands = {0};
    TRY(parser_node(parser, NODE_CONCAT, &concat));
    chain_add(&operands, *out);
    while (at_kind(parser, TOKEN_TILDE)) {
        const node *operand;
        TRY(parser_advance(parser));
        TRY(parse_product(parser, &operand));
        chain_add(&operands, operand);
    }
    concat->a = operands.first;
    *out = concat;
    return QP_OK;
}

static qp_status parse_sum(parser *parser, const node **out)
{
    static const token_kind operators[] = {TOKEN_ADD, TOKEN_SUB, TOKEN_END};
    return parse_binary(parser, operators, parse_concat, out);
}

/* The comparison at the current token, or -1; *tokens: its length. */
static qp_status comparison_at(parser *parser, int *found, int *tokens)
{
    *tokens = 1;
    *found = -1;
    switch (parser->current.kind) {
    case TOKEN_EQ:
        *found = COMPARE_EQ;
        break;
    case TOKEN_NE:
        *found = COMPARE_NE;
        break;
    case TOKEN_LT:
        *found = COMPARE_LT;
        break;
    case TOKEN_LE:
        *found = COMPARE_LE;
        break;
    case TOKEN_GT:
        *found = COMPARE_GT;
        break;
    case TOKEN_GE:
        *found = COMPARE_GE;
        break;
    default:
        if (parser_at_name(parser, "in")) *found = COMPARE_IN;
        if (parser_at_name(parser, "not")) {
            const token *ahead;
            TRY(parser_peek(parser, &ahead));
            *tokens = 2;
            if (ahead->kind == TOKEN_NAME && string_is(ahead->text, "in")) *found = COMPARE_NOT_IN;
        }
    }
    return QP_OK;
}

static qp_status parse_compare(parser *parser, const node **out)
{
    chain operands = {0};
    TRY(parse_sum(parser, out));
    for (;;) {
        int found, tokens;
        node *operand;
        TRY(comparison_at(parser, &found, &tokens));
        if (found < 0) break;
        TRY(parser_node(parser, NODE_OPERAND, &operand));
        operand->detail = found;
        while (tokens-- > 0)
            TRY(parser_advance(parser));
        TRY(parse_sum(parser, &operand->a));
        chain_add(&operands, operand);
    }
    return operands.first ? make_pair(parser, NODE_COMPARE, *out, operands.first, out) : QP_OK;
}

static qp_status parse_not(parser *parser, const node **out)
{
    if (!parser_at_name(parser, "not")) return parse_compare(parser, out);
    node * not ;
    TRY(parser_enter(parser));
    TRY(parser_node(parser, NODE_NOT, &not ));
    TRY(parser_advance(parser));
    TRY(parse_not(parser, &not ->a));
    *out = not ;
    parser_leave(parser);
    return QP_OK;
}

static qp_status parse_and(parser *parser, const node **out)
{
    TRY(parse_not(parser, out));
    while (parser_at_name(parser, "and")) {
        const node *right;
        TRY(parser_advance(parser));
        TRY(parse_not(parser, &right));
        TRY(make_pair(parser, NODE_AND, *out, right, out));
    }
    return QP_OK;
}

static qp_status parse_or(parser *parser, const node **out)
{
    TRY(parse_and(parser, out));
    while (parser_at_name(parser, "or")) {
        const node *right;
        TRY(parser_advance(parser));
        TRY(parse_and(parser, &right));
        TRY(make_pair(parser, NODE_OR, *out, right, out));
    }
    return QP_OK;
}

qp_status parse_expression(parser *parser, const node **out)
{
    TRY(parser_enter(parser));
    TRY(parse_or(parser, out));
    for (;;) {
        bool taken;
        node *choice;
        TRY(parser_skip_name(parser, "if", &taken));
        if (!taken) break;
        TRY(parser_node(parser, NODE_CHOICE, &choice));
        choice->a = *out;
        TRY(parse_or(parser, &choice->b));
        TRY(parser_skip_name(parser, "else", &taken));
        if (taken) TRY(parse_expression(parser, &choice->c));
        *out = choice;
    }
    parser_leave(parser);
    return QP_OK;
}

/* Whether the token ends a tuple without brackets. */
static bool at_tuple_end(const parser *parser, const char *end)
{
    return at_kind(parser, TOKEN_PRINT_END) || at_kind(parser, TOKEN_BLOCK_END) ||
           at_kind(parser, TOKEN_RPAREN) || (end && parser_at_name(parser, end));
}

qp_status parse_tuple(parser *parser, bool choice, const char *end, const node **out)
{
    node *tuple;
    chain items = {0};
    bool commas = false;
    TRY(parser_enter(parser));
    TRY(parser_node(parser, NODE_TUPLE, &tuple));
    while (!at_tuple_end(parser, end)) {
        const node *item;
        TRY(choice ? parse_expression(parser, &item) : parse_or(parser, &item));
        chain_add(&items, item);
        if (!at_kind(parser, TOKEN_COMMA)) break;
        commas = true;
        TRY(parser_advance(parser));
    }
    if (!items.first) return parser_expected(parser, "an expression");
    tuple->a = items.first;
    *out = commas ? tuple : items.first;
    parser_leave(parser);
    return QP_OK;
}

/* name, namespace.member or a tuple in parentheses */
static qp_status parse_one_target(parser *parser, bool members, const node **out)
{
    node *target;
    if (at_kind(parser, TOKEN_LPAREN)) {
        TRY(parser_enter(parser));
        TRY(parser_advance(parser));
        TRY(parse_target(parser, members, NULL, out));
        parser_leave(parser);
        return parser_take(parser, TOKEN_RPAREN, "')'");
    }
    TRY(parser_node(parser, NODE_NAME, &target));
    *out = target;
    if (at_kind(parser, TOKEN_NAME)) name_or_constant(target, parser->current.text);
    if (target->kind == NODE_CONSTANT)
        return parser_expected(parser, "a name that can be assigned to");
    TRY(parser_take(parser, TOKEN_NAME, "a name to assign to"));
    if (!members || !at_kind(parser, TOKEN_DOT)) return QP_OK;
    TRY(parser_advance(parser));
    target->kind = NODE_MEMBER;
    target->constant = value_text(target->text);
    target->text = parser->current.text;
    return parser_take(parser, TOKEN_NAME, "the name of a namespace's member");
}

qp_status parse_target(parser *parser, bool members, const char *end, const node **out)
{
    node *tuple;
    chain items = {0};
    TRY(parser_node(parser, NODE_TUPLE, &tuple));
    bool commas = false;
    do {
        const node *item;
        TRY(parse_one_target(parser, members, &item));
        chain_add(&items, item);
        if (!at_kind(parser, TOKEN_COMMA)) break;
        commas = true;
        TRY(parser_advance(parser));
    } while (!at_tuple_end(parser, end));
    tuple->a = items.first;
    *out = commas ? tuple : items.first;
    return QP_OK;
}
