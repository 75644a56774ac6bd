/* The parser's state, shared by statements (parser.c) and expressions (expression.c). Recursive
 * descent with one token of lookahead. */
#pragma once

#include "template/lexer.h"

typedef struct parser {
    lexer lexer;
    token current, ahead;
    bool has_ahead;
    int depth; /* nesting of blocks and expressions */
    int loops; /* number of for blocks around the current statement, within one macro */
    int names; /* macro_names that the body of the current macro has used so far */
} parser;

qp_status parser_advance(parser *parser);
/* The token after the current one. */
qp_status parser_peek(parser *parser, const token **ahead);
/* Fails at the current token: "expected ..., found ...". */
qp_status parser_expected(parser *parser, const char *what);
/* Fails at a node. */
qp_status parser_fail(parser *parser, const node *at, const char *message);
/* Consumes the current token, which must be of `kind`; `what` names it in the message. */
qp_status parser_take(parser *parser, token_kind kind, const char *what);
bool parser_at_name(const parser *parser, const char *name);
/* Consumes the current token if it is the name; *taken: whether it was. */
qp_status parser_skip_name(parser *parser, const char *name, bool *taken);

/* Makes a node at the current token. */
qp_status parser_node(parser *parser, node_kind kind, node **out);

/* Enters and leaves a level of nesting; entering fails beyond TEMPLATE_MAX_NESTING. */
qp_status parser_enter(parser *parser);
void parser_leave(parser *parser);

/* Which of macro_names it is; 0: none. */
int macro_name_of(const string *name);

/* Parses a if b else c and everything of higher precedence. */
qp_status parse_expression(parser *parser, const node **out);
/* The same, or a tuple where commas follow; `choice` allows a if b else c; `end` is a name that
 * ends the tuple (or NULL). */
qp_status parse_tuple(parser *parser, bool choice, const char *end, const node **out);
/* A name, a tuple of targets or, if `members`, namespace.member; `end` as above. */
qp_status parse_target(parser *parser, bool members, const char *end, const node **out);
/* `|name(...)|name(...)` applied to `input`; `started`: the first bar was consumed. */
qp_status parse_filters(parser *parser, const node *input, bool started, const node **out);
