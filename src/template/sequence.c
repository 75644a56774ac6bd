/* Filters on sequences, as jinja2 defines them: see run.h. */
#include "template/run.h"

#include "template/pychar.h"

#include <stdlib.h>
#include <string.h>

static bool given(value item)
{
    return item.kind != VALUE_MISSING && item.kind != VALUE_NONE;
}

/* Strings in lower case unless `exact`; other values unchanged. */
static qp_status fold_case(run *run, value item, bool exact, value *out)
{
    *out = item;
    if (exact || item.kind != VALUE_STRING) return QP_OK;
    return text_case(run, item.as.text, PYCHAR_LOWER, out);
}

/* item["a"]["b"][0] for "a.b.0"; `absent`, unless it is missing, replaces absent values. */
static qp_status get_path(run *run, value item, const char *path, size_t length, value absent,
                          value *out)
{
    *out = item;
    for (size_t from = 0; from <= length;) {
        const char *dot = memchr(path + from, '.', length - from);
        size_t end = dot ? (size_t)(dot - path) : length;
        bool digits = end > from && end - from < 18;
        for (size_t i = from; i < end; i++)
            digits = digits && path[i] >= '0' && path[i] <= '9';
        value key;
        TRY(run_view(run, path + from, end - from, &key));
        if (digits) {
            int64_t number = 0;
            for (size_t i = from; i < end; i++)
                number = number * 10 + (path[i] - '0');
            key = value_int(number);
        }
        TRY(run_item(run, *out, key, out));
        if (out->kind == VALUE_UNDEFINED && given(absent)) *out = absent;
        from = end + 1;
    }
    return QP_OK;
}

/* The attribute that a filter's argument names: a path, an index, or none. */
static qp_status get_by(run *run, value item, value attribute, value absent, value *out)
{
    *out = item;
    if (!given(attribute)) return QP_OK;
    if (attribute.kind == VALUE_STRING)
        return get_path(run, item, attribute.as.text->data, attribute.as.text->length, absent, out);
    TRY(run_item(run, item, attribute, out));
    if (out->kind == VALUE_UNDEFINED && given(absent)) *out = absent;
    return QP_OK;
}

static qp_status filter_first(run *run, call *call, value *out)
{
    list *items;
    if (value_is_list(call->self, LIST_ITERATOR)) {
        items = call->self.as.items;
        if (items->cursor == items->count)
            return run_undefined(run, "no first item: the sequence is empty", out);
        *out = items->items[items->cursor++];
        return QP_OK;
    }
    TRY(run_iterate(run, call->self, &items));
    if (items->count == 0) return run_undefined(run, "no first item: the sequence is empty", out);
    *out = items->items[0];
    return QP_OK;
}

static qp_status filter_last(run *run, call *call, value *out)
{
    list *items;
    if (value_is_list(call->self, LIST_ITERATOR))
        return run_fail(run, "'generator' object is not reversible");
    TRY(run_iterate(run, call->self, &items));
    if (items->count == 0) return run_undefined(run, "no last item: the sequence is empty", out);
    *out = items->items[items->count - 1];
    return QP_OK;
}

static qp_status copy_items(run *run, const list *items, list_kind kind, bool backwards, value *out)
{
    TRY(run_list(run, kind, items->count, out));
    for (size_t i = 0; i < items->count; i++)
        out->as.items->items[i] = items->items[backwards ? items->count - 1 - i : i];
    return QP_OK;
}

static qp_status filter_list(run *run, call *call, value *out)
{
    list *items;
    TRY(run_iterate(run, call->self, &items));
    return copy_items(run, items, LIST_LIST, false, out);
}

static qp_status filter_reverse(run *run, call *call, value *out)
{
    list *items;
    if (call->self.kind == VALUE_STRING)
        return op_slice(run, call->self, value_none(), value_none(), value_int(-1), out);
    bool iterator = value_is_list(call->self, LIST_ITERATOR);
    TRY(run_iterate(run, call->self, &items));
    return copy_items(run, items, iterator ? LIST_LIST : LIST_ITERATOR, true, out);
}

static qp_status filter_join(run *run, call *call, value *out)
{
    list *items;
    builder made = {.run = run};
    value separator;
    TRY(run_view(run, "", 0, &separator));
    if (call->bound[0].kind != VALUE_MISSING) TRY(run_str(run, call->bound[0], &separator));
    TRY(run_iterate(run, call->self, &items));
    for (size_t i = 0; i < items->count; i++) {
        value item;
        if (i) TRY(print_str(&made, separator));
        TRY(get_by(run, items->items[i], call->bound[1], value_none(), &item));
        TRY(print_str(&made, item));
    }
    return builder_finish(&made, out);
}

static qp_status pair_of(run *run, value a, value b, value *out)
{
    TRY(run_list(run, LIST_TUPLE, 2, out));
    out->as.items->items[0] = a;
    out->as.items->items[1] = b;
    return QP_OK;
}

static qp_status filter_items(run *run, call *call, value *out)
{
    if (call->self.kind == VALUE_UNDEFINED) return run_list(run, LIST_ITERATOR, 0, out);
    if (call->self.kind != VALUE_DICT)
        return run_fail(run, "items needs a dict, found '%s'", value_type(call->self));
    const dict *members = call->self.as.members;
    TRY(run_list(run, LIST_ITERATOR, members->count, out));
    for (size_t i = 0; i < members->count; i++)
        TRY(pair_of(run, members->keys[i], members->values[i], &out->as.items->items[i]));
    return QP_OK;
}

/* Merges [from, middle) and [middle, to) of `order`; equal keys keep their order. */
static qp_status merge(run *run, const value *keys, size_t *order, size_t *spare, size_t from,
                       size_t middle, size_t to, bool reverse)
{
    size_t left = from, right = middle;
    for (size_t at = from; at < to; at++) {
        int compared = 0;
        bool unordered, known = true;
        if (left < middle && right < to)
            known = value_compare(&run->heap, keys[order[right]], keys[order[left]], &compared,
                                  &unordered);
        TRY(run_step(run, 1));
        if (!known)
            return run_fail(run, "'<' not supported between instances of '%s' and '%s'",
                            value_type(keys[order[right]]), value_type(keys[order[left]]));
        bool take_right = left == middle || (right < to && (reverse ? compared > 0 : compared < 0));
        spare[at] = order[take_right ? right++ : left++];
    }
    memcpy(order + from, spare + from, (to - from) * sizeof *order);
    return QP_OK;
}

qp_status sort_by(run *run, value *items, const value *keys, size_t count, bool reverse)
{
    size_t *order = heap_alloc(&run->heap, count, 2 * sizeof *order);
    value *sorted = heap_alloc(&run->heap, count, sizeof *sorted);
    TRY(run_check(run, order));
    TRY(run_check(run, sorted));
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t from = 0; from + width < count; from += 2 * width) {
            size_t to = from + 2 * width < count ? from + 2 * width : count;
            TRY(merge(run, keys, order, order + count, from, from + width, to, reverse));
        }
    }
    for (size_t i = 0; i < count; i++)
        sorted[i] = items[order[i]];
    if (count) memcpy(items, sorted, count * sizeof *items);
    return QP_OK;
}

/* The list of the values of "a,b.c", by which sort compares. */
static qp_status sort_key(run *run, value item, value attribute, bool exact, value *out)
{
    const char *path = attribute.kind == VALUE_STRING ? attribute.as.text->data : "";
    size_t length = attribute.kind == VALUE_STRING ? attribute.as.text->length : 0, count = 1;
    for (size_t i = 0; i < length; i++)
        count += path[i] == ',';
    TRY(run_list(run, LIST_LIST, count, out));
    for (size_t i = 0, from = 0; i < count; i++) {
        const char *comma = length ? memchr(path + from, ',', length - from) : NULL;
        size_t end = comma ? (size_t)(comma - path) : length;
        value got;
        if (attribute.kind == VALUE_STRING)
            TRY(get_path(run, item, path + from, end - from, value_none(), &got));
        else
            TRY(get_by(run, item, attribute, value_none(), &got));
        TRY(fold_case(run, got, exact, &out->as.items->items[i]));
        from = end + 1;
    }
    return QP_OK;
}

static qp_status filter_sort(run *run, call *call, value *out)
{
    list *items;
    value keys;
    TRY(run_iterate(run, call->self, &items));
    TRY(copy_items(run, items, LIST_LIST, false, out));
    TRY(run_list(run, LIST_LIST, items->count, &keys));
    for (size_t i = 0; i < items->count; i++)
        TRY(sort_key(run, items->items[i], call->bound[2], value_truth(call->bound[1]),
                     &keys.as.items->items[i]));
    return sort_by(run, out->as.items->items, keys.as.items->items, items->count,
                   value_truth(call->bound[0]));
}

/* Pairs of an attribute's value and the items that have it, in the order of the values. */
static qp_status filter_groupby(run *run, call *call, value *out)
{
    value sorted, keys;
    list *items;
    bool exact = value_truth(call->bound[2]);
    TRY(run_iterate(run, call->self, &items));
    TRY(run_list(run, LIST_LIST, items->count, &keys));
    TRY(run_list(run, LIST_LIST, items->count, &sorted));
    for (size_t i = 0; i < items->count; i++) {
        value *key = &keys.as.items->items[i];
        TRY(get_by(run, items->items[i], call->bound[0], call->bound[1], key));
        TRY(fold_case(run, *key, exact, key));
        sorted.as.items->items[i] = value_int((int64_t)i);
    }
    const value *order = sorted.as.items->items, *key = keys.as.items->items;
    TRY(sort_by(run, sorted.as.items->items, key, items->count, false));
    TRY(run_list(run, LIST_LIST, items->count, out));
    list *groups = out->as.items;
    groups->count = 0;
    for (size_t from = 0, to; from < items->count; from = to) {
        value members, name;
        const value *first = &key[order[from].as.integer];
        for (to = from + 1; to < items->count; to++)
            if (!value_equal(&run->heap, *first, key[order[to].as.integer])) break;
        TRY(run_list(run, LIST_LIST, to - from, &members));
        for (size_t i = from; i < to; i++)
            members.as.items->items[i - from] = items->items[order[i].as.integer];
        TRY(get_by(run, members.as.items->items[0], call->bound[0], call->bound[1], &name));
        TRY(pair_of(run, name, members, &groups->items[groups->count]));
        groups->items[groups->count++].as.items->is_group = true;
        TRY(run_step(run, to - from));
    }
    return QP_OK;
}

static qp_status filter_dictsort(run *run, call *call, value *out)
{
    static const string by_key = {"key", 3, 3};
    const string *by = &by_key;
    struct call items = {.self = call->self};
    value keys;
    if (call->self.kind != VALUE_DICT)
        return run_fail(run, "dictsort needs a dict, found '%s'", value_type(call->self));
    if (given(call->bound[1])) TRY(need_text(run, call->bound[1], &by));
    if (!string_is(by, "key") && !string_is(by, "value"))
        return run_fail(run, "dictsort sorts by 'key' or 'value'");
    const dict *members = call->self.as.members;
    const value *sorted = string_is(by, "key") ? members->keys : members->values;
    TRY(filter_items(run, &items, out));
    out->as.items->kind = LIST_LIST;
    TRY(run_list(run, LIST_LIST, members->count, &keys));
    for (size_t i = 0; i < members->count; i++)
        TRY(fold_case(run, sorted[i], value_truth(call->bound[0]), &keys.as.items->items[i]));
    return sort_by(run, out->as.items->items, keys.as.items->items, members->count,
                   value_truth(call->bound[2]));
}

static qp_status filter_unique(run *run, call *call, value *out)
{
    list *items;
    dict *seen = dict_new(&run->heap);
    TRY(run_check(run, seen));
    TRY(run_iterate(run, call->self, &items));
    TRY(run_list(run, LIST_ITERATOR, items->count, out));
    list *made = out->as.items;
    made->count = 0;
    for (size_t i = 0; i < items->count; i++) {
        value key;
        TRY(get_by(run, items->items[i], call->bound[1], value_none(), &key));
        TRY(fold_case(run, key, value_truth(call->bound[0]), &key));
        TRY(need_key(run, key));
        size_t before = seen->count;
        TRY(run_check(run, dict_set(&run->heap, seen, key, key) ? seen : NULL));
        TRY(run_step(run, 1));
        if (seen->count > before) made->items[made->count++] = items->items[i];
    }
    return QP_OK;
}

/* min and max: the first of the extreme items. */
static qp_status filter_extreme(run *run, call *call, value *out)
{
    list *items;
    value best = value_none();
    TRY(run_iterate(run, call->self, &items));
    if (items->count == 0) return run_undefined(run, "no item: the sequence is empty", out);
    for (size_t i = 0; i < items->count; i++) {
        value key;
        bool better = true;
        TRY(get_by(run, items->items[i], call->bound[1], value_none(), &key));
        TRY(fold_case(run, key, value_truth(call->bound[0]), &key));
        if (i) TRY(op_compare(run, (compare_kind)call->builtin->detail, key, best, &better));
        if (!better) continue;
        best = key;
        *out = items->items[i];
    }
    return QP_OK;
}

static qp_status filter_sum(run *run, call *call, value *out)
{
    list *items;
    *out = call->bound[1].kind == VALUE_MISSING ? value_int(0) : call->bound[1];
    TRY(run_iterate(run, call->self, &items));
    for (size_t i = 0; i < items->count; i++) {
        value item;
        TRY(get_by(run, items->items[i], call->bound[0], value_none(), &item));
        TRY(op_binary(run, TOKEN_ADD, *out, item, out));
        TRY(run_step(run, 1));
    }
    return QP_OK;
}

/* map(attribute=..., default=...) */
static qp_status map_attribute(run *run, call *call, const list *items, value *out)
{
    value attribute = value_none(), absent = value_none();
    for (size_t i = 0; i < call->n_named; i++) {
        if (string_is(call->named[i].name, "attribute"))
            attribute = call->named[i].item;
        else if (string_is(call->named[i].name, "default"))
            absent = call->named[i].item;
        else
            return run_fail(run, "map() got an unexpected keyword argument");
    }
    if (!given(attribute)) return run_fail(run, "map needs a filter or an attribute");
    for (size_t i = 0; i < items->count; i++)
        TRY(get_by(run, items->items[i], attribute, absent, &out->as.items->items[i]));
    return QP_OK;
}

static qp_status filter_map(run *run, call *call, value *out)
{
    list *items;
    const string *name;
    if (!value_truth(call->self)) return run_list(run, LIST_ITERATOR, 0, out);
    TRY(run_iterate(run, call->self, &items));
    TRY(run_list(run, LIST_ITERATOR, items->count, out));
    if (call->n_positional == 0) return map_attribute(run, call, items, out);
    TRY(need_text(run, call->positional[0], &name));
    for (size_t i = 0; i < items->count; i++) {
        struct call each = *call;
        each.self = items->items[i];
        each.positional++;
        each.n_positional--;
        TRY(run_enter(run));
        TRY(run_filter(run, name, &each, &out->as.items->items[i]));
        run_leave(run);
    }
    return QP_OK;
}

/* select, reject, selectattr, rejectattr share a function; these bits distinguish them. */
enum { SELECT_REJECT = 1, SELECT_ATTRIBUTE = 2 };

/* Whether an item passes: by a named test with arguments, or by its truth. */
static qp_status select_test(run *run, const call *call, size_t used, value item, bool *passes)
{
    const string *name;
    struct call each = *call;
    *passes = value_truth(item);
    if (call->n_positional <= used) return QP_OK;
    TRY(need_text(run, call->positional[used], &name));
    each.self = item;
    each.positional += used + 1;
    each.n_positional -= used + 1;
    TRY(run_enter(run));
    TRY(run_test(run, name, &each, passes));
    run_leave(run);
    return QP_OK;
}

static qp_status filter_select(run *run, call *call, value *out)
{
    list *items;
    int bits = call->builtin->detail;
    bool by_attribute = bits & SELECT_ATTRIBUTE;
    if (!value_truth(call->self)) return run_list(run, LIST_ITERATOR, 0, out);
    if (by_attribute && call->n_positional == 0)
        return run_fail(run, "%s() needs the name of an attribute", call->builtin->name);
    TRY(run_iterate(run, call->self, &items));
    TRY(run_list(run, LIST_ITERATOR, items->count, out));
    list *made = out->as.items;
    made->count = 0;
    for (size_t i = 0; i < items->count; i++) {
        value item = items->items[i];
        bool passes;
        TRY(run_step(run, 1));
        if (by_attribute) TRY(get_by(run, item, call->positional[0], value_none(), &item));
        TRY(select_test(run, call, by_attribute, item, &passes));
        if (passes != (bool)(bits & SELECT_REJECT)) made->items[made->count++] = items->items[i];
    }
    return QP_OK;
}

/* Items [from, to), and then `fill` times `with`. */
static qp_status take_part(run *run, const list *items, size_t from, size_t to, size_t fill,
                           value with, value *out)
{
    TRY(run_list(run, LIST_LIST, to - from + fill, out));
    for (size_t i = 0; i < to - from + fill; i++)
        out->as.items->items[i] = i < to - from ? items->items[from + i] : with;
    return QP_OK;
}

static qp_status filter_batch(run *run, call *call, value *out)
{
    list *items;
    int64_t size;
    TRY(need_int(run, call->bound[0], &size));
    TRY(run_iterate(run, call->self, &items));
    if (size < 1) return run_fail(run, "batch needs a size of 1 or more");
    size_t step = (uint64_t)size > items->count ? (items->count ? items->count : 1) : (size_t)size;
    size_t parts = (items->count + step - 1) / step;
    TRY(run_list(run, LIST_ITERATOR, parts, out));
    for (size_t i = 0; i < parts; i++) {
        size_t from = i * step, to = from + step < items->count ? from + step : items->count;
        size_t fill = given(call->bound[1]) ? (size_t)size - (to - from) : 0;
        TRY(take_part(run, items, from, to, fill, call->bound[1], &out->as.items->items[i]));
    }
    return QP_OK;
}

static qp_status filter_slice(run *run, call *call, value *out)
{
    list *items;
    int64_t slices;
    TRY(need_int(run, call->bound[0], &slices));
    TRY(run_iterate(run, call->self, &items));
    if (slices < 1) return run_fail(run, "slice needs a number of 1 or more");
    TRY(run_list(run, LIST_ITERATOR, (size_t)slices, out));
    size_t each = items->count / (size_t)slices, longer = items->count % (size_t)slices, from = 0;
    for (size_t i = 0; i < (size_t)slices; i++) {
        size_t to = from + each + (i < longer);
        size_t fill = given(call->bound[1]) && i >= longer;
        TRY(take_part(run, items, from, to, fill, call->bound[1], &out->as.items->items[i]));
        from = to;
    }
    return QP_OK;
}

static const builtin sequences[] = {
    {"batch", "linecount fill_with", 1, filter_batch, 0},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort, 0},
    {"first", "", 0, filter_first, 0},
    {"groupby", "attribute default case_sensitive", 1, filter_groupby, 0},
    {"items", "", 0, filter_items, 0},
    {"join", "d attribute", 0, filter_join, 0},
    {"last", "", 0, filter_last, 0},
    {"list", "", 0, filter_list, 0},
    {"map", NULL, 0, filter_map, 0},
    {"max", "case_sensitive attribute", 0, filter_extreme, COMPARE_GT},
    {"min", "case_sensitive attribute", 0, filter_extreme, COMPARE_LT},
    {"reject", NULL, 0, filter_select, SELECT_REJECT},
    {"rejectattr", NULL, 0, filter_select, SELECT_REJECT | SELECT_ATTRIBUTE},
    {"reverse", "", 0, filter_reverse, 0},
    {"select", NULL, 0, filter_select, 0},
    {"selectattr", NULL, 0, filter_select, SELECT_ATTRIBUTE},
    {"slice", "slices fill_with", 1, filter_slice, 0},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort, 0},
    {"sum", "attribute start", 0, filter_sum, 0},
    {"unique", "case_sensitive attribute", 0, filter_unique, 0},
};

const builtin *find_sequence(const string *name)
{
    return find_in(sequences, sizeof sequences / sizeof sequences[0], name);
}
