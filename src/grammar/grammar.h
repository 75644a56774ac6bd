/* A grammar as data: rules over bytes.
 *
 *     readers (gbnf.h, json_schema.h) -> grammar -> automaton.h -> matcher.h -> masks of tokens
 *
 * An expression is a set of bytes, a sequence, a choice, a repetition with counts, or a rule. Code
 * points are compiled to ranges of bytes when they are added, so that nothing after the readers
 * knows UTF-8. Expressions refer to older expressions and to rules; a rule may be named before it
 * is set, so that rules can be recursive.
 *
 * Functions that add expressions cannot fail: if memory is out or a limit is reached, the grammar
 * remembers it, and grammar_check() reports it.
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GRAMMAR_MAX_EXPRS = 1 << 17,
    GRAMMAR_MAX_RULES = 1 << 14,
    GRAMMAR_MAX_NESTING = 10000,    /* of expressions that begin with each other */
    GRAMMAR_MAX_COUNT = 1000000000, /* of a repetition */
    GRAMMAR_MAX_CODE_POINT = 0x10FFFF,
};

#define GRAMMAR_UNBOUNDED UINT32_MAX

typedef uint32_t grammar_expr;

enum { GRAMMAR_EMPTY = 0 }; /* the expression of the empty text */

typedef enum expr_kind {
    EXPR_EMPTY,
    EXPR_BYTES,    /* a byte of sets[first] */
    EXPR_SEQUENCE, /* children[first .. first + count), one after the other */
    EXPR_CHOICE,   /* one of children[first .. first + count); none: matches nothing */
    EXPR_REPEAT,   /* expression `first`, min to max times */
    EXPR_RULE,     /* rule `first` */
} expr_kind;

typedef struct expr {
    expr_kind kind;
    uint32_t first, count;
    uint32_t min, max; /* max: GRAMMAR_UNBOUNDED for any number */
} expr;

typedef struct byte_set {
    uint64_t bits[4];
} byte_set;

static inline bool byte_set_has(const byte_set *set, uint8_t byte)
{
    return set->bits[byte >> 6] >> (byte & 63) & 1;
}

typedef struct grammar_rule {
    char *name; /* for messages */
    grammar_expr expr;
    bool set;
} grammar_rule;

/* Zero-initialise; grammar_free() at the end. Rule 0 is the root. */
typedef struct grammar {
    expr *exprs; /* exprs[0] is the empty text */
    size_t n_exprs, exprs_capacity;
    byte_set *sets;
    size_t n_sets, sets_capacity;
    grammar_expr *children;
    size_t n_children, children_capacity;
    grammar_rule *rules;
    size_t n_rules, rules_capacity;
    char nothing[400]; /* why an expression matches nothing: the first reason */
    qp_status failed;
} grammar;

void grammar_free(grammar *grammar);

/* A growing list of expressions. Zero-initialise; grammar_sequence_of() and grammar_choice_of()
 * free it. */
typedef struct expr_list {
    grammar_expr *items;
    size_t count, capacity;
} expr_list;

void expr_list_add(grammar *grammar, expr_list *list, grammar_expr item);
grammar_expr grammar_sequence_of(grammar *grammar, expr_list *list);
grammar_expr grammar_choice_of(grammar *grammar, expr_list *list);

grammar_expr grammar_sequence(grammar *grammar, const grammar_expr *items, size_t count);
grammar_expr grammar_choice(grammar *grammar, const grammar_expr *items, size_t count);
grammar_expr grammar_pair(grammar *grammar, grammar_expr first, grammar_expr second);
grammar_expr grammar_either(grammar *grammar, grammar_expr first, grammar_expr second);
grammar_expr grammar_repeat(grammar *grammar, grammar_expr item, uint32_t min, uint32_t max);
grammar_expr grammar_optional(grammar *grammar, grammar_expr item);
grammar_expr grammar_bytes(grammar *grammar, const byte_set *set);
grammar_expr grammar_literal(grammar *grammar, const char *text, size_t length);
grammar_expr grammar_text(grammar *grammar, const char *text); /* NUL-terminated */

/* The expression that matches nothing. */
grammar_expr grammar_nothing(grammar *grammar);

typedef struct code_range {
    uint32_t low, high;
} code_range;

/* Growing sets of code points. Zero-initialise; free(set.ranges) at the end. */
typedef struct code_set {
    code_range *ranges; /* [count] */
    size_t count, capacity;
    bool failed; /* memory is out */
} code_set;

void code_set_add(code_set *set, uint32_t low, uint32_t high);

/* Sorts and merges the ranges. Inverts the set, without U+0000, which no text should have. */
void code_set_normalize(code_set *set);
void code_set_invert(code_set *set);
bool code_set_has(const code_set *set, uint32_t code_point);

/* One code point of the set, in UTF-8; surrogates have no form. */
grammar_expr grammar_code_points(grammar *grammar, const code_set *set);

/* A new rule, and the expression that stands for it. The name is copied. */
uint32_t grammar_add_rule(grammar *grammar, const char *name, size_t length);
void grammar_set_rule(grammar *grammar, uint32_t rule, grammar_expr expr);
grammar_expr grammar_rule_expr(grammar *grammar, uint32_t rule);

/* What grammar_check() finds out of every expression. [n_exprs] */
typedef struct grammar_facts {
    uint8_t *nullable;   /* it matches the empty text */
    uint8_t *productive; /* it matches some text */
} grammar_facts;

void grammar_facts_free(grammar_facts *facts);

/* Whether the grammar can be used: QP_UNSUPPORTED for a limit, a rule that begins with itself (left
 * recursion), or a root that matches no text. grammar_facts_free() the facts. */
qp_status grammar_check(const grammar *grammar, grammar_facts *facts, qp_error *error);
