/* Operands and operators of expressions, for expression.c and operand.c. */
#pragma once

#include "template/parser.h"

/* A list of nodes that grows at its end. */
typedef struct chain {
    const node *first;
    node *last;
} chain;

/* A node of an expression is in one list only, so `next` can be set later. */
static inline void chain_add(chain *chain, const node *item)
{
    node *added = (node *)item;
    if (chain->last)
        chain->last->next = added;
    else
        chain->first = added;
    chain->last = added;
}

static inline bool parser_at(const parser *parser, token_kind kind)
{
    return parser->current.kind == kind;
}

/* A literal, a name, parentheses, a list or a dictionary. */
qp_status parse_primary(parser *parser, const node **out);

/* The same with the calls, attributes and indices that follow it. */
qp_status parse_postfix(parser *parser, const node **out);

/* A call of `callee`; the current token is "(". */
qp_status parse_call(parser *parser, const node *callee, const node **out);

/* "(" arguments ")"; the first of them, NULL: none. */
qp_status parse_arguments(parser *parser, const node **out);

/* Makes the node that of a name, or of one of the constants true, false and none. */
void parser_name_or_constant(node *made, const string *name);
