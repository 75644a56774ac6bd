/* Parses expressions of templates: see parser.h. The grammar and its precedences are jinja2's;
 * operands are in operand.c. */
#include "template/expression.h"

static qp_status parse_unary(parser *parser, bool filters, const node **out);
static qp_status parse_or(parser *parser, const node **out);

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
    if (parser_at(parser, TOKEN_LPAREN)) {
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
        if (parser_at(parser, TOKEN_PIPE))
            TRY(parse_filters(parser, *out, false, out));
        else if (parser_at_name(parser, "is"))
            TRY(parse_test(parser, out));
        else if (parser_at(parser, TOKEN_LPAREN))
            TRY(parse_call(parser, *out, out));
        else
            return QP_OK;
    }
}

static qp_status parse_unary(parser *parser, bool filters, const node **out)
{
    TRY(parser_enter(parser));
    if (parser_at(parser, TOKEN_SUB) || parser_at(parser, TOKEN_ADD)) {
        node *sign;
        TRY(parser_node(parser, parser_at(parser, TOKEN_SUB) ? NODE_NEGATE : NODE_PLUS, &sign));
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
        while (*found != TOKEN_END && !parser_at(parser, *found))
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
    if (!parser_at(parser, TOKEN_TILDE)) return QP_OK;
    node *concat;
    chain operands = {0};
    TRY(parser_node(parser, NODE_CONCAT, &concat));
    chain_add(&operands, *out);
    while (parser_at(parser, TOKEN_TILDE)) {
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
    return parser_at(parser, TOKEN_PRINT_END) || parser_at(parser, TOKEN_BLOCK_END) ||
           parser_at(parser, TOKEN_RPAREN) || (end && parser_at_name(parser, end));
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
        if (!parser_at(parser, TOKEN_COMMA)) break;
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
    if (parser_at(parser, TOKEN_LPAREN)) {
        TRY(parser_enter(parser));
        TRY(parser_advance(parser));
        TRY(parse_target(parser, members, NULL, out));
        parser_leave(parser);
        return parser_take(parser, TOKEN_RPAREN, "')'");
    }
    TRY(parser_node(parser, NODE_NAME, &target));
    *out = target;
    if (parser_at(parser, TOKEN_NAME)) parser_name_or_constant(target, parser->current.text);
    if (target->kind == NODE_CONSTANT)
        return parser_expected(parser, "a name that can be assigned to");
    TRY(parser_take(parser, TOKEN_NAME, "a name to assign to"));
    if (!members || !parser_at(parser, TOKEN_DOT)) return QP_OK;
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
        if (!parser_at(parser, TOKEN_COMMA)) break;
        commas = true;
        TRY(parser_advance(parser));
    } while (!at_tuple_end(parser, end));
    tuple->a = items.first;
    *out = commas ? tuple : items.first;
    return QP_OK;
}
