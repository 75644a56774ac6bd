/* One rendering: its state, and what the files of the interpreter share.
 *
 * Every error has the position of the node that was being evaluated. Values and the texts being
 * built live in the run's heap, so nothing needs freeing after an error.
 */
#pragma once

#include "template/template.h"
#include "template/lexer.h"
#include "template/node.h"
#include "template/value.h"

enum {
    RUN_MAX_DEPTH = 600, /* most nested evaluations: expressions, blocks and macro calls together */
    RUN_MAX_RANGE = 100000, /* most items of a range, as in jinja2's sandbox */
    CALL_MAX_BOUND = 6,     /* most parameters of a builtin */
};

typedef struct run run;

/* A text being built in the heap. */
typedef struct builder {
    run *run;
    char *data;
    size_t length, capacity;
} builder;

typedef struct binding binding;
struct binding {
    const string *name;
    value item;
    binding *next;
};

typedef struct scope scope;
struct scope {
    scope *parent;
    binding *first;
};

typedef enum run_flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } run_flow;

struct run {
    heap heap;
    qp_error *error;
    template_options options; /* defaults filled in */
    const node *at;           /* for messages */
    scope *scope;
    builder *out;
    int depth;
    run_flow flow;
};

/* A call of a builtin, a macro or a loop. */
typedef struct named {
    const string *name;
    value item;
} named;

typedef struct call {
    const struct builtin *builtin;
    value self; /* the input of a filter or test, or the object of a method */
    value *positional;
    size_t n_positional;
    named *named;
    size_t n_named;
    value bound[CALL_MAX_BOUND]; /* by the builtin's parameters; VALUE_MISSING where not given */
} call;

/* A function of the tables: a filter, test, method or global function. */
typedef struct builtin {
    const char *name;
    const char *parameters; /* names, separated by blanks; NULL: takes any arguments, and nothing is
                               bound */
    int required;           /* number of required parameters */
    qp_status (*run)(run *run, call *call, value *out);
    int detail; /* distinguishes operations that share a function */
} builtin;

/* --- run.c: state, errors, texts --- */

/* QP_FORMAT at the current node. */
qp_status run_fail(run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Converts a NULL from the heap to an error. */
qp_status run_check(run *run, const void *memory);
/* Counts work; fails beyond the limit. */
qp_status run_step(run *run, uint64_t work);
/* Enters a level of recursion. */
qp_status run_enter(run *run);
void run_leave(run *run);

qp_status run_text(run *run, const char *data, size_t length, value *out); /* copies */
qp_status run_view(run *run, const char *data, size_t length, value *out); /* shares */
qp_status run_list(run *run, list_kind kind, size_t count, value *out);
qp_status run_undefined(run *run, const char *hint, value *out);
/* The value of an expression that uses `undefined` other than by printing or testing it. */
qp_status run_fail_undefined(run *run, value undefined);

qp_status builder_put(builder *builder, const char *data, size_t length);
qp_status builder_text(builder *builder, const char *text);
qp_status builder_code(builder *builder, uint32_t code);
qp_status builder_repeat(builder *builder, const string *text, size_t times);
qp_status builder_finish(builder *builder, value *out);

/* Converts JSON to a value; nested no deeper than VALUE_MAX_DEPTH. */
qp_status run_from_json(run *run, const cJSON *item, int depth, value *out);

/* The items of anything that can be iterated (undefined: none). An iterator is used up. */
qp_status run_iterate(run *run, value from, list **out);

/* --- eval.c: expressions --- */
qp_status run_eval(run *run, const node *node, value *out);
qp_status run_arguments(run *run, const node *arguments, call *call);
qp_status run_filters(run *run, const node *filter, value input, value *out);
qp_status run_call(run *run, value callee, call *call, value *out);
qp_status run_filter(run *run, const string *name, call *call, value *out);
qp_status run_test(run *run, const string *name, call *call, bool *out);
qp_status run_attribute(run *run, value object, const string *name, value *out);
qp_status run_item(run *run, value object, value key, value *out);

/* --- exec.c: statements --- */
qp_status run_exec(run *run, const node *body);
const value *scope_find(run *run, const string *name);
qp_status scope_set(run *run, scope *scope, const string *name, value item);
/* The same with a name that is a literal of this program. */
qp_status scope_set_text(run *run, scope *scope, const char *name, value item);
qp_status scope_new(run *run, scope *parent, scope **out);
/* Runs the body in `scope` (NULL: a new one inside the current scope); what it writes becomes a
 * value. */
qp_status run_capture(run *run, scope *scope, const node *body, value *out);
qp_status loop_attribute(run *run, loop *loop, const string *name, value *out);
qp_status loop_recurse(run *run, loop *loop, value items, value *out);
qp_status loop_changed(run *run, loop *loop, value now, value *out);
size_t loop_index(const loop *loop);

/* --- macro.c --- */
qp_status exec_macro(run *run, const node *node);
qp_status exec_call_block(run *run, const node *node);
qp_status call_macro(run *run, const macro *macro, call *call, value *out);
const string *macro_name(const macro *macro); /* NULL: of {% call %} */

/* --- operator.c --- */
qp_status op_binary(run *run, token_kind kind, value a, value b, value *out);
qp_status op_compare(run *run, compare_kind kind, value a, value b, bool *out);
qp_status op_negate(run *run, value a, value *out);
qp_status op_slice(run *run, value object, value start, value stop, value step, value *out);
/* a[from:to], in characters. */
qp_status text_part(run *run, const string *text, size_t from, size_t to, value *out);
/* An integer argument; bools are allowed. Fails with Python's message. */
qp_status need_int(run *run, value from, int64_t *out);
qp_status need_text(run *run, value from, const string **out);
/* Whether the value can be a key of a dict. */
qp_status need_key(run *run, value key);

/* --- print.c --- */
qp_status print_str(builder *out, value item);
qp_status print_repr(builder *out, value item);
/* Python's str() as a value; strings are returned as they are. */
qp_status run_str(run *run, value item, value *out);
/* The shortest digits that read back as the number, as Python's repr() writes them. */
size_t print_float(double number, char out[32]);

/* --- json.c --- */
qp_status filter_tojson(run *run, call *call, value *out);

/* --- markup.c --- */
/* The item's text with &<>"' escaped, as markup; markup stays as it is. */
qp_status text_escape(run *run, value item, value *out);

/* --- pprint.c --- */
qp_status filter_pprint(run *run, call *call, value *out);

/* --- bytes.c --- */
qp_status method_encode(run *run, call *call, value *out);
qp_status method_decode(run *run, call *call, value *out);
qp_status print_bytes(builder *out, const list *bytes);

/* --- format_percent.c, format_braces.c --- */
qp_status format_percent(run *run, const string *format, value arguments, value *out);
qp_status format_braces(run *run, const string *format, call *call, value *out);

/* --- time.c --- */
qp_status format_time(run *run, const string *format, value *out);

/* --- the tables --- */
const builtin *find_filter(const string *name);   /* filter.c */
const builtin *find_markup(const string *name);   /* markup.c: more filters */
const builtin *find_sequence(const string *name); /* sequence.c: more filters */
const builtin *find_test(const string *name);     /* test.c */
const builtin *find_function(const string *name); /* function.c */
const builtin *find_method(value object, const string *name, bool *forbidden); /* method.c */
const builtin *find_string_method(const string *name);                         /* string.c */
const builtin *find_in(const builtin *table, size_t count, const string *name);

/* str.strip() and similar methods; `chars` may be NULL for white space. */
typedef enum strip_side { STRIP_LEFT = 1, STRIP_RIGHT = 2, STRIP_BOTH = 3 } strip_side;
qp_status text_strip(run *run, const string *text, const string *chars, int side, value *out);
/* Offset of `what` in bytes [from, to) of `text`, or -1. */
int64_t text_find(run *run, const string *text, const string *what, size_t from, size_t to);
qp_status text_replace(run *run, const string *text, const string *old, const string *new,
                       int64_t count, value *out);
qp_status text_case(run *run, const string *text, int to, value *out);
/* Appends the character text[at .. at + size), which is `code`, in another case. */
qp_status text_put_case(builder *made, const string *text, size_t at, size_t size, uint32_t code,
                        int to);
qp_status text_capitalize(run *run, const string *text, value *out);
qp_status text_lines(run *run, const string *text, bool keep_ends, value *out);
/* A list with capacity for `room` pieces of a text; appends a piece to it. */
qp_status text_piece_list(run *run, size_t room, value *out);
qp_status text_add_piece(run *run, list *pieces, const string *text, size_t from, size_t to);
/* Sorts stably by `keys` (ascending, or descending with ties in order). */
qp_status sort_by(run *run, value *items, const value *keys, size_t count, bool reverse);
