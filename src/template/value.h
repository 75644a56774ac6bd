/* The values of a template: Python's None, bool, int, float, str, list, tuple, dict and a few more.
 *
 * Values are small and copied freely. The data that they point to lives in the heap of one
 * rendering and is freed with it. The sandbox for templates forbids changing lists and dicts, so
 * only namespaces ever change. Strings may share bytes with others and are not NUL-terminated.
 */
#pragma once

#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum value_kind {
    VALUE_MISSING, /* an argument that was not given; never seen by templates */
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST, /* every sequence but str: see list_kind */
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_LOOP,
    VALUE_MACRO,
    VALUE_BUILTIN, /* a global function, or a method bound to its object */
} value_kind;

typedef enum list_kind {
    LIST_LIST,
    LIST_TUPLE,
    LIST_BYTES, /* whole numbers of 0 to 255 */
    LIST_RANGE,
    LIST_ITERATOR, /* the result of map, select, ...: always true, can be read once */
    LIST_KEYS,
    LIST_VALUES,
    LIST_ITEMS,
} list_kind;

typedef struct string string;
typedef struct list list;
typedef struct dict dict;
typedef struct undefined undefined;
typedef struct bound bound;
typedef struct loop loop;   /* exec.c */
typedef struct macro macro; /* exec.c */
struct builtin;             /* run.h */

typedef struct value {
    value_kind kind;
    bool markup; /* a string from escape or safe: it is not escaped again */
    union {
        bool boolean;
        int64_t integer;
        double number;
        const string *text;
        list *items;
        dict *members; /* of dicts and namespaces */
        const undefined *reason;
        const bound *callable;
        loop *loop;
        const macro *macro;
    } as;
} value;

struct string {
    const char *data;
    size_t length; /* bytes */
    size_t points; /* characters */
};

struct list {
    list_kind kind;
    value *items;
    size_t count;
    bool is_group;             /* a tuple of groupby: its items are also .grouper and .list */
    size_t cursor;             /* of an iterator: items before it were read */
    int64_t start, stop, step; /* of a range, for repr */
};

/* Insertion order; `index` (a power of two slots of entry number + 1) comes with the ninth key. */
struct dict {
    value *keys, *values;
    size_t count, capacity;
    uint32_t *index;
    size_t slots;
};

/* Why a value is undefined: `hint` if set, else "'name' is undefined" or "'owner' has no ...". */
struct undefined {
    const char *hint;
    const char *owner; /* Python's name of the type that was asked, or NULL */
    value name;
};

struct bound {
    const struct builtin *builtin;
    value self;
};

enum { VALUE_MAX_DEPTH = 200 }; /* most nesting of data, for every function that walks it */

typedef struct heap {
    arena arena;
    size_t limit;   /* most bytes; allocations beyond it fail */
    uint64_t steps; /* work done so far */
    uint64_t
        max_steps; /* most work; walks of data stop beyond it, and the interpreter reports it */
} heap;

/* Counts `work` steps; false once more than max_steps were taken. */
bool heap_spend(heap *heap, uint64_t work);

/* Zeroed memory, or NULL beyond the limit. */
void *heap_alloc(heap *heap, size_t count, size_t size);

/* Strings: a copy of the bytes, or a view of bytes that outlive the heap's values. NULL when memory
 * is out. */
const string *string_copy(heap *heap, const char *data, size_t length);
const string *string_view(heap *heap, const char *data, size_t length);
bool string_equal(const string *a, const string *b);
bool string_is(const string *text, const char *other);

/* Lists: `count` items, all None until set. NULL when memory is out. */
list *list_new(heap *heap, list_kind kind, size_t count);

dict *dict_new(heap *heap);
/* Replaces or appends; false when memory is out or the key is not hashable. */
bool dict_set(heap *heap, dict *dict, value key, value item);
/* NULL when absent. */
const value *dict_get(heap *heap, const dict *dict, value key);

value value_none(void);
value value_bool(bool boolean);
value value_int(int64_t integer);
value value_float(double number);
value value_text(const string *text);
value value_list(list *items);

/* "str", "list", ...: Python's name of the type. */
const char *value_type(value value);

bool value_truth(value value);
bool value_is_number(value value); /* bool, int or float */
bool value_is_list(value value, list_kind kind);

/* Numbers as int (bools too) or as float. */
int64_t value_as_int(value value);
double value_as_float(value value);

/* Whether `value` can be a key of a dict. */
bool value_hashable(heap *heap, value value);

/* Python's ==; values nested deeper than VALUE_MAX_DEPTH count as different. */
bool value_equal(heap *heap, value a, value b);

/* Orders numbers, strings, lists and tuples: *order < 0, 0, > 0. False if Python has no order for
 * them. With NaN, `*unordered` is set, because comparisons with it are false, not errors. */
bool value_compare(heap *heap, value a, value b, int *order, bool *unordered);
