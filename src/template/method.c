/* Methods of dicts, lists and loops: see run.h.
 *
 * The sandbox for chat templates forbids the methods that change a list or a dict. They are known
 * by name, so that `messages.pop` is refused instead of looked up as a key.
 */
#include "template/run.h"

#include <string.h>

static qp_status dict_get_default(run *run, call *call, value *out)
{
    TRY(need_key(run, call->bound[0]));
    const value *found = dict_get(&run->heap, call->self.as.members, call->bound[0]);
    *out = found ? *found : call->bound[1].kind == VALUE_MISSING ? value_none() : call->bound[1];
    return run_step(run, 1);
}

/* items, keys, values */
static qp_status dict_view(run *run, call *call, value *out)
{
    const dict *members = call->self.as.members;
    list_kind kind = (list_kind)call->builtin->detail;
    TRY(run_list(run, kind, kind == LIST_ITEMS ? members->count : 0, out));
    list *view = out->as.items;
    view->count = members->count;
    if (kind != LIST_ITEMS) {
        view->items = kind == LIST_KEYS ? members->keys : members->values;
        return QP_OK;
    }
    for (size_t i = 0; i < members->count; i++) {
        TRY(run_list(run, LIST_TUPLE, 2, &view->items[i]));
        view->items[i].as.items->items[0] = members->keys[i];
        view->items[i].as.items->items[1] = members->values[i];
    }
    return QP_OK;
}

/* Values do not change, so a value is its own copy. */
static qp_status copy_value(run *run, call *call, value *out)
{
    (void)run;
    *out = call->self;
    return QP_OK;
}

static qp_status list_count(run *run, call *call, value *out)
{
    const list *items = call->self.as.items;
    int64_t count = 0;
    for (size_t i = 0; i < items->count; i++)
        count += value_equal(&run->heap, items->items[i], call->bound[0]);
    *out = value_int(count);
    return run_step(run, 1);
}

static qp_status list_index(run *run, call *call, value *out)
{
    const list *items = call->self.as.items;
    size_t i = 0;
    while (i < items->count && !value_equal(&run->heap, items->items[i], call->bound[0]))
        i++;
    TRY(run_step(run, 1));
    *out = value_int((int64_t)i);
    return i < items->count ? QP_OK : run_fail(run, "the value is not in the list");
}

static qp_status loop_cycle(run *run, call *call, value *out)
{
    if (call->n_positional == 0) return run_fail(run, "loop.cycle() needs items to cycle through");
    *out = call->positional[loop_index(call->self.as.loop) % call->n_positional];
    return QP_OK;
}

static qp_status loop_has_changed(run *run, call *call, value *out)
{
    value now;
    TRY(run_list(run, LIST_TUPLE, call->n_positional, &now));
    for (size_t i = 0; i < call->n_positional; i++)
        now.as.items->items[i] = call->positional[i];
    return loop_changed(run, call->self.as.loop, now, out);
}

/* A parameter named . cannot be given by name, as in Python. */
static const builtin dict_methods[] = {
    {"copy", "", 0, copy_value, 0},
    {"get", ". .", 1, dict_get_default, 0},
    {"items", "", 0, dict_view, LIST_ITEMS},
    {"keys", "", 0, dict_view, LIST_KEYS},
    {"values", "", 0, dict_view, LIST_VALUES},
};

static const builtin list_methods[] = {
    {"count", ".", 1, list_count, 0},
    {"index", ".", 1, list_index, 0},
    {"copy", "", 0, copy_value, 0}, /* last: tuples have none */
};

static const builtin bytes_methods[] = {
    {"count", ".", 1, list_count, 0},
    {"decode", "encoding", 0, method_decode, 0},
    {"index", ".", 1, list_index, 0},
};

static const builtin loop_methods[] = {
    {"changed", NULL, 0, loop_has_changed, 0},
    {"cycle", NULL, 0, loop_cycle, 0},
};

static const char *const dict_forbidden[] = {"clear", "pop", "popitem", "setdefault", "update"};
static const char *const list_forbidden[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static bool is_any(const string *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (string_is(name, names[i])) return true;
    }
    return false;
}

const builtin *find_method(value object, const string *name, bool *forbidden)
{
    bool is_list = value_is_list(object, LIST_LIST);
    *forbidden =
        (object.kind == VALUE_DICT && is_any(name, dict_forbidden, COUNT(dict_forbidden))) ||
        (is_list && is_any(name, list_forbidden, COUNT(list_forbidden)));
    if (*forbidden) return NULL;
    if (object.kind == VALUE_STRING) return find_string_method(name);
    if (object.kind == VALUE_DICT) return find_in(dict_methods, COUNT(dict_methods), name);
    if (object.kind == VALUE_LOOP) return find_in(loop_methods, COUNT(loop_methods), name);
    if (value_is_list(object, LIST_BYTES))
        return find_in(bytes_methods, COUNT(bytes_methods), name);
    if (object.kind == VALUE_LIST && object.as.items->kind <= LIST_RANGE)
        return find_in(list_methods, COUNT(list_methods) - !is_list, name);
    return NULL;
}
