/* The values of a template: see value.h. */
#include "template/value.h"

#include "base/checked.h"
#include "base/keyed_hash.h"
#include "template/pychar.h"

#include <math.h>
#include <string.h>

enum { INDEX_FROM = 9 }; /* a dict with fewer keys is not hashed, because a scan is as fast */

void *heap_alloc(heap *heap, size_t count, size_t size)
{
    size_t bytes;
    if (!checked_mul(count, size, &bytes)) return NULL;
    if (heap->arena.total > heap->limit || bytes > heap->limit - heap->arena.total) return NULL;
    return arena_alloc(&heap->arena, count, size);
}

bool heap_spend(heap *heap, uint64_t work)
{
    heap->steps += work;
    return heap->steps <= heap->max_steps;
}

/* The work of reading `bytes` bytes of text: one step for each 64 bytes. */
static uint64_t text_work(size_t bytes)
{
    return 1 + bytes / 64;
}

const string *string_view(heap *heap, const char *data, size_t length)
{
    string *text = heap_alloc(heap, 1, sizeof *text);
    if (text) *text = (string){data, length, pychar_count(data, length)};
    return text;
}

const string *string_copy(heap *heap, const char *data, size_t length)
{
    char *copy = heap_alloc(heap, length, 1);
    if (!copy) return NULL;
    if (length) memcpy(copy, data, length);
    return string_view(heap, copy, length);
}

bool string_equal(const string *a, const string *b)
{
    return a == b || (a->length == b->length && memcmp(a->data, b->data, a->length) == 0);
}

bool string_is(const string *text, const char *other)
{
    return text->length == strlen(other) && memcmp(text->data, other, text->length) == 0;
}

list *list_new(heap *heap, list_kind kind, size_t count)
{
    list *items = heap_alloc(heap, 1, sizeof *items);
    if (!items) return NULL;
    items->kind = kind;
    items->count = count;
    items->items = heap_alloc(heap, count, sizeof *items->items);
    if (!items->items) return NULL;
    for (size_t i = 0; i < count; i++)
        items->items[i] = value_none();
    return items;
}

value value_none(void)
{
    return (value){.kind = VALUE_NONE};
}

value value_bool(bool boolean)
{
    return (value){.kind = VALUE_BOOL, .as.boolean = boolean};
}

value value_int(int64_t integer)
{
    return (value){.kind = VALUE_INT, .as.integer = integer};
}

value value_float(double number)
{
    return (value){.kind = VALUE_FLOAT, .as.number = number};
}

value value_text(const string *text)
{
    return (value){.kind = VALUE_STRING, .as.text = text};
}

value value_list(list *items)
{
    return (value){.kind = VALUE_LIST, .as.items = items};
}

const char *value_type(value value)
{
    static const char *const names[] = {
        [VALUE_MISSING] = "missing", [VALUE_UNDEFINED] = "Undefined",
        [VALUE_NONE] = "NoneType",   [VALUE_BOOL] = "bool",
        [VALUE_INT] = "int",         [VALUE_FLOAT] = "float",
        [VALUE_STRING] = "str",      [VALUE_DICT] = "dict",
        [VALUE_LOOP] = "loop",       [VALUE_NAMESPACE] = "Namespace",
        [VALUE_MACRO] = "Macro",     [VALUE_BUILTIN] = "builtin_function_or_method",
    };
    static const char *const lists[] = {
        [LIST_LIST] = "list",          [LIST_TUPLE] = "tuple",        [LIST_RANGE] = "range",
        [LIST_BYTES] = "bytes",        [LIST_ITERATOR] = "generator", [LIST_KEYS] = "dict_keys",
        [LIST_VALUES] = "dict_values", [LIST_ITEMS] = "dict_items",
    };
    return value.kind == VALUE_LIST ? lists[value.as.items->kind] : names[value.kind];
}

bool value_is_number(value value)
{
    return value.kind == VALUE_BOOL || value.kind == VALUE_INT || value.kind == VALUE_FLOAT;
}

bool value_is_list(value value, list_kind kind)
{
    return value.kind == VALUE_LIST && value.as.items->kind == kind;
}

int64_t value_as_int(value value)
{
    return value.kind == VALUE_BOOL ? value.as.boolean : value.as.integer;
}

double value_as_float(value value)
{
    return value.kind == VALUE_FLOAT ? value.as.number : (double)value_as_int(value);
}

bool value_truth(value value)
{
    switch (value.kind) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
    case VALUE_INT:
        return value_as_int(value) != 0;
    case VALUE_FLOAT:
        return value.as.number != 0;
    case VALUE_STRING:
        return value.as.text->length > 0;
    case VALUE_LIST:
        return value.as.items->kind == LIST_ITERATOR || value.as.items->count > 0;
    case VALUE_DICT:
        return value.as.members->count > 0;
    default:
        return true;
    }
}

/* The order of an int and a float, exactly: no rounding to either type. */
static int compare_int_float(int64_t a, double b)
{
    if (b >= 0x1p63) return -1;
    if (b < -0x1p63) return 1;
    int64_t whole = (int64_t)b; /* towards zero */
    if (a != whole) return a < whole ? -1 : 1;
    double rest = b - (double)whole;
    return rest > 0 ? -1 : rest < 0;
}

static int compare_numbers(value a, value b)
{
    bool a_float = a.kind == VALUE_FLOAT, b_float = b.kind == VALUE_FLOAT;
    if (a_float && b_float) return a.as.number < b.as.number ? -1 : a.as.number > b.as.number;
    if (a_float) return -compare_int_float(value_as_int(b), a.as.number);
    if (b_float) return compare_int_float(value_as_int(a), b.as.number);
    int64_t x = value_as_int(a), y = value_as_int(b);
    return x < y ? -1 : x > y;
}

static bool is_nan(value value)
{
    return value.kind == VALUE_FLOAT && isnan(value.as.number);
}

static bool equal_at(heap *heap, value a, value b, int depth);

static bool equal_lists(heap *heap, const list *a, const list *b, int depth)
{
    if (a == b) return true;
    if (a->kind != b->kind || a->count != b->count || a->kind == LIST_ITERATOR) return false;
    for (size_t i = 0; i < a->count; i++) {
        if (!equal_at(heap, a->items[i], b->items[i], depth + 1)) return false;
    }
    return true;
}

static bool equal_dicts(heap *heap, const dict *a, const dict *b, int depth)
{
    if (a == b) return true;
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++) {
        const value *other = dict_get(heap, b, a->keys[i]);
        if (!other || !equal_at(heap, a->values[i], *other, depth + 1)) return false;
    }
    return true;
}

static bool equal_at(heap *heap, value a, value b, int depth)
{
    if (depth > VALUE_MAX_DEPTH || !heap_spend(heap, 1)) return false;
    if (value_is_number(a) && value_is_number(b))
        return !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case VALUE_STRING:
        return heap_spend(heap, text_work(a.as.text->length)) && string_equal(a.as.text, b.as.text);
    case VALUE_LIST:
        return equal_lists(heap, a.as.items, b.as.items, depth);
    case VALUE_DICT:
        return equal_dicts(heap, a.as.members, b.as.members, depth);
    case VALUE_NAMESPACE:
        return a.as.members == b.as.members;
    case VALUE_LOOP:
        return a.as.loop == b.as.loop;
    case VALUE_MACRO:
        return a.as.macro == b.as.macro;
    case VALUE_BUILTIN:
        return a.as.callable->builtin == b.as.callable->builtin &&
               equal_at(heap, a.as.callable->self, b.as.callable->self, depth + 1);
    default: /* None equals None, and undefined any other undefined */
        return true;
    }
}

bool value_equal(heap *heap, value a, value b)
{
    return equal_at(heap, a, b, 0);
}

static bool compare_at(heap *heap, value a, value b, int *order, bool *unordered, int depth)
{
    *order = 0;
    *unordered = is_nan(a) || is_nan(b);
    if (depth > VALUE_MAX_DEPTH || !heap_spend(heap, 1)) return false;
    if (value_is_number(a) && value_is_number(b)) {
        if (!*unordered) *order = compare_numbers(a, b);
        return true;
    }
    if (a.kind != b.kind) return false;
    if (a.kind == VALUE_STRING) {
        const string *x = a.as.text, *y = b.as.text;
        if (!heap_spend(heap, text_work(x->length))) return false;
        int bytes = memcmp(x->data, y->data, x->length < y->length ? x->length : y->length);
        *order = bytes ? bytes : x->length < y->length ? -1 : x->length > y->length;
        return true;
    }
    if (a.kind != VALUE_LIST || a.as.items->kind != b.as.items->kind ||
        a.as.items->kind > LIST_BYTES)
        return false;
    const list *x = a.as.items, *y = b.as.items;
    for (size_t i = 0; i < x->count && i < y->count; i++) {
        if (!equal_at(heap, x->items[i], y->items[i], depth + 1))
            return compare_at(heap, x->items[i], y->items[i], order, unordered, depth + 1);
    }
    *order = x->count < y->count ? -1 : x->count > y->count;
    return true;
}

bool value_compare(heap *heap, value a, value b, int *order, bool *unordered)
{
    return compare_at(heap, a, b, order, unordered, 0);
}

static bool hashable_at(heap *heap, value value, int depth)
{
    if (depth > VALUE_MAX_DEPTH || !heap_spend(heap, 1)) return false;
    if (value.kind == VALUE_DICT || value.kind == VALUE_NAMESPACE) return false;
    if (value.kind != VALUE_LIST) return true;
    if (value.as.items->kind != LIST_TUPLE)
        return value.as.items->kind == LIST_RANGE || value.as.items->kind == LIST_BYTES;
    for (size_t i = 0; i < value.as.items->count; i++) {
        if (!hashable_at(heap, value.as.items->items[i], depth + 1)) return false;
    }
    return true;
}

bool value_hashable(heap *heap, value value)
{
    return hashable_at(heap, value, 0);
}

/* Hashes what == compares: equal values have equal hashes, so 1, 1.0 and True do. */
static uint64_t hash_value(heap *heap, hash_key secret, value key)
{
    if (key.kind == VALUE_STRING) {
        heap_spend(heap, text_work(key.as.text->length));
        return keyed_hash(secret, key.as.text->data, key.as.text->length);
    }
    if (value_is_number(key)) {
        double number = value_as_float(key) + 0.0; /* -0.0 to 0.0 */
        return keyed_hash(secret, &number, sizeof number);
    }
    uint64_t hash = (uint64_t)key.kind;
    if (key.kind != VALUE_LIST) return keyed_hash_number(secret, hash);
    for (size_t i = 0; i < key.as.items->count && heap_spend(heap, 1); i++)
        hash =
            keyed_hash_number(secret, hash * 31 + hash_value(heap, secret, key.as.items->items[i]));
    return hash;
}

/* The slot with `key`, or the empty slot where it belongs. */
static uint32_t *find_slot(heap *heap, const dict *dict, value key)
{
    uint64_t hash = hash_value(heap, hash_key_get(), key);
    for (size_t at = (hash ^ hash >> 32) & (dict->slots - 1);; at = (at + 1) & (dict->slots - 1)) {
        uint32_t *slot = &dict->index[at];
        if (*slot == 0 || value_equal(heap, dict->keys[*slot - 1], key)) return slot;
    }
}

dict *dict_new(heap *heap)
{
    return heap_alloc(heap, 1, sizeof(dict));
}

static bool dict_grow(heap *heap, dict *dict)
{
    size_t capacity = dict->capacity ? dict->capacity * 2 : 4;
    value *keys = heap_alloc(heap, capacity, sizeof *keys);
    value *values = heap_alloc(heap, capacity, sizeof *values);
    if (!keys || !values || capacity > UINT32_MAX / 4) return false;
    if (dict->count) {
        memcpy(keys, dict->keys, dict->count * sizeof *keys);
        memcpy(values, dict->values, dict->count * sizeof *values);
    }
    dict->keys = keys;
    dict->values = values;
    dict->capacity = capacity;
    if (capacity < INDEX_FROM) return true;
    dict->slots = capacity * 2;
    dict->index = heap_alloc(heap, dict->slots, sizeof *dict->index);
    if (!dict->index) return false;
    for (size_t i = 0; i < dict->count; i++)
        *find_slot(heap, dict, keys[i]) = (uint32_t)i + 1;
    return true;
}

static size_t dict_find(heap *heap, const dict *dict, value key)
{
    if (dict->index) {
        uint32_t slot = *find_slot(heap, dict, key);
        return slot ? slot - 1 : dict->count;
    }
    size_t i = 0;
    while (i < dict->count && !value_equal(heap, dict->keys[i], key))
        i++;
    return i;
}

bool dict_set(heap *heap, dict *dict, value key, value item)
{
    if (!value_hashable(heap, key)) return false;
    size_t at = dict_find(heap, dict, key);
    if (at == dict->count) {
        if (dict->count == dict->capacity && !dict_grow(heap, dict)) return false;
        if (dict->index) *find_slot(heap, dict, key) = (uint32_t)dict->count + 1;
        dict->keys[dict->count++] = key;
    }
    dict->values[at] = item;
    return true;
}

const value *dict_get(heap *heap, const dict *dict, value key)
{
    if (!value_hashable(heap, key)) return NULL;
    size_t at = dict_find(heap, dict, key);
    return at < dict->count ? &dict->values[at] : NULL;
}
