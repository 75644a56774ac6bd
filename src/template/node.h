/* The tree of a template: the parser builds it and the interpreter walks it.
 *
 * One struct serves all nodes; the table gives the meaning of its fields for each kind. Lists are
 * chained through `next`. Nodes live in the template's arena and are never changed after parsing.
 */
#pragma once

#include "base/status.h"
#include "template/value.h"

typedef enum node_kind {
    /* Expressions.   text           a               b            c             detail */
    NODE_CONSTANT,  /*                                                            (constant) */
    NODE_NAME,      /* name */
    NODE_LIST,      /*                items */
    NODE_TUPLE,     /*                items */
    NODE_DICT,      /*                key, value, key, ... */
    NODE_ATTRIBUTE, /* name          object */
    NODE_ITEM,      /*                object          key */
    NODE_SLICE,     /*                object          start        stop          (d: step) */
    NODE_CALL,      /*                callee          arguments */
    NODE_FILTER,    /* name           input           arguments */
    NODE_TEST,      /* name           input           arguments                  (negated: NOT) */
    NODE_ARGUMENT,  /* keyword        value                                      argument_kind */
    NODE_NOT,       /*                operand */
    NODE_NEGATE,    /*                operand */
    NODE_PLUS,      /*                operand */
    NODE_BINARY,    /*                left            right                      token_kind */
    NODE_CONCAT,    /*                operands */
    NODE_COMPARE,   /*                first           operands */
    NODE_OPERAND,   /*                value                                      compare_kind */
    NODE_AND,       /*                left            right */
    NODE_OR,        /*                left            right */
    NODE_CHOICE,    /*                then            test         else or NULL */
    /* Statements. */
    NODE_DATA,  /* the text */
    NODE_PRINT, /*              values */
    NODE_IF,    /*              test            body         else         is an elif */
    NODE_FOR,   /*              target          iterable     body  (d: else, e: filter) recursive */
    NODE_SET,   /*              target          value */
    NODE_SET_BLOCK,    /*              target          body         filter or NULL */
    NODE_MEMBER,       /* member       (constant: name of the namespace); a target */
    NODE_MACRO,        /* name         parameters      body                      macro_names */
    NODE_PARAMETER,    /* name         default or NULL */
    NODE_CALL_BLOCK,   /*              call            parameters   body         macro_names */
    NODE_FILTER_BLOCK, /*            filter          body */
    NODE_WITH,         /*              target, value, ...           body in b */
    NODE_SCOPE,        /*              body: what stands in {% generation %} */
    NODE_BREAK,
    NODE_CONTINUE,
} node_kind;

/* Names that the body of a macro uses, which say which calls it takes. */
typedef enum macro_names {
    MACRO_CALLER = 1, /* one with a `caller`, such as that of {% call %} */
    MACRO_KWARGS = 2, /* with keyword arguments that are no parameters */
    MACRO_VARARGS = 4 /* with more positional arguments than parameters */
} macro_names;

typedef enum argument_kind {
    ARGUMENT_POSITIONAL,
    ARGUMENT_KEYWORD,
    ARGUMENT_STAR,
    ARGUMENT_STAR_STAR,
} argument_kind;

typedef enum compare_kind {
    COMPARE_EQ,
    COMPARE_NE,
    COMPARE_LT,
    COMPARE_LE,
    COMPARE_GT,
    COMPARE_GE,
    COMPARE_IN,
    COMPARE_NOT_IN,
} compare_kind;

typedef struct node node;
struct node {
    node_kind kind;
    int detail;
    uint32_t line, column; /* from 1; columns count characters */
    const string *text;
    value constant;
    const node *a, *b, *c, *d, *e;
    node *next;
};

enum { TEMPLATE_MAX_NESTING = 150 }; /* of brackets, prefixes and blocks in a template's text */

/* Parses `length` bytes of valid UTF-8 whose line ends are \n. The nodes and their texts are in
 * `heap`; texts may point into `source`. */
qp_status template_parse(heap *heap, const char *source, size_t length, const node **body,
                         qp_error *error);
