/* Global functions of chat templates: see run.h. */
#include "template/run.h"

#include <string.h>

/* range(stop), range(start, stop), range(start, stop, step) */
static qp_status function_range(run *run, call *call, value *out)
{
    int64_t part[3] = {0, 0, 1};
    TRY(need_int(run, call->bound[0], &part[0]));
    if (call->bound[1].kind == VALUE_MISSING) {
        part[1] = part[0];
        part[0] = 0;
    } else {
        TRY(need_int(run, call->bound[1], &part[1]));
    }
    if (call->bound[2].kind != VALUE_MISSING) TRY(need_int(run, call->bound[2], &part[2]));
    int64_t start = part[0], stop = part[1], step = part[2];
    if (step == 0) return run_fail(run, "range() needs a step other than zero");
    uint64_t width = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t stride = step > 0 ? (uint64_t)step : -(uint64_t)step, count = 0;
    if (step > 0 ? start < stop : start > stop) count = (width - 1) / stride + 1;
    if (count > RUN_MAX_RANGE) return run_fail(run, "a range of more than %d items", RUN_MAX_RANGE);
    TRY(run_list(run, LIST_RANGE, count, out));
    list *made = out->as.items;
    made->start = start;
    made->stop = stop;
    made->step = step;
    for (size_t i = 0; i < count; i++)
        made->items[i] = value_int((int64_t)((uint64_t)start + i * (uint64_t)step));
    return QP_OK;
}

static qp_status set_pair(run *run, dict *members, value key, value item)
{
    TRY(need_key(run, key));
    return run_check(run, dict_set(&run->heap, members, key, item) ? members : NULL);
}

/* Adds the entries of dict()'s argument: a dict or pairs. */
static qp_status add_members(run *run, dict *members, value from)
{
    list *pairs, *pair;
    if (from.kind == VALUE_DICT || from.kind == VALUE_NAMESPACE) {
        const dict *other = from.as.members;
        for (size_t i = 0; i < other->count; i++)
            TRY(set_pair(run, members, other->keys[i], other->values[i]));
        return run_step(run, other->count);
    }
    TRY(run_iterate(run, from, &pairs));
    for (size_t i = 0; i < pairs->count; i++) {
        TRY(run_iterate(run, pairs->items[i], &pair));
        if (pair->count != 2)
            return run_fail(run, "a dict is made of pairs, found %zu items", pair->count);
        TRY(set_pair(run, members, pair->items[0], pair->items[1]));
        TRY(run_step(run, 1));
    }
    return QP_OK;
}

/* dict() and namespace() */
static qp_status function_dict(run *run, call *call, value *out)
{
    dict *members = dict_new(&run->heap);
    TRY(run_check(run, members));
    if (call->n_positional > 1)
        return run_fail(run, "%s() takes at most one positional argument", call->builtin->name);
    if (call->n_positional) TRY(add_members(run, members, call->positional[0]));
    for (size_t i = 0; i < call->n_named; i++)
        TRY(set_pair(run, members, value_text(call->named[i].name), call->named[i].item));
    *out = (value){.kind = (value_kind)call->builtin->detail, .as.members = members};
    for (size_t i = 0; i < members->count && out->kind == VALUE_NAMESPACE; i++) {
        value key = members->keys[i];
        if (key.kind == VALUE_STRING && key.as.text->length && key.as.text->data[0] == '_')
            return run_fail(run, "a namespace's members cannot begin with an underscore");
    }
    return QP_OK;
}

/* raise_exception(): the template's author wrote the message, so the user sees only that. */
static qp_status function_raise(run *run, call *call, value *out)
{
    value message;
    (void)out;
    TRY(run_str(run, call->bound[0], &message));
    size_t shown =
        message.as.text->length < QP_ERROR_SIZE ? message.as.text->length : QP_ERROR_SIZE;
    return template_error_at(run->error, QP_INVALID, run->at->line, run->at->column,
                             "the template refuses the conversation: %.*s", (int)shown,
                             message.as.text->data);
}

static qp_status function_strftime(run *run, call *call, value *out)
{
    const string *format;
    TRY(need_text(run, call->bound[0], &format));
    return format_time(run, format, out);
}

static const builtin functions[] = {
    {"dict", NULL, 0, function_dict, VALUE_DICT},
    {"namespace", NULL, 0, function_dict, VALUE_NAMESPACE},
    {"raise_exception", "message", 1, function_raise, 0},
    {"range", "start stop step", 1, function_range, 0},
    {"strftime_now", "format", 1, function_strftime, 0},
};

const builtin *find_function(const string *name)
{
    return find_in(functions, sizeof functions / sizeof functions[0], name);
}
