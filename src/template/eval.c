/* Evaluates expressions of templates: see run.h. */
#include "template/run.h"

#include <string.h>

static qp_status eval_name(run *run, const node *node, value *out)
{
    const value *found = scope_find(run, node->text);
    TRY(run_step(run, 0));
    if (found) {
        *out = *found;
        return QP_OK;
    }
    const builtin *function = find_function(node->text);
    if (function) {
        bound *callable = heap_alloc(&run->heap, 1, sizeof *callable);
        TRY(run_check(run, callable));
        *callable = (bound){function, value_none()};
        *out = (value){.kind = VALUE_BUILTIN, .as.callable = callable};
        return QP_OK;
    }
    undefined *reason = heap_alloc(&run->heap, 1, sizeof *reason);
    TRY(run_check(run, reason));
    reason->name = value_text(node->text);
    *out = (value){.kind = VALUE_UNDEFINED, .as.reason = reason};
    return QP_OK;
}

static qp_status eval_items(run *run, const node *node, list_kind kind, value *out)
{
    size_t count = 0;
    for (const struct node *item = node->a; item; item = item->next)
        count++;
    TRY(run_list(run, kind, count, out));
    value *items = out->as.items->items;
    for (const struct node *item = node->a; item; item = item->next)
        TRY(run_eval(run, item, items++));
    return QP_OK;
}

static qp_status eval_dict(run *run, const node *node, value *out)
{
    dict *members = dict_new(&run->heap);
    TRY(run_check(run, members));
    for (const struct node *item = node->a; item; item = item->next->next) {
        value key, member;
        TRY(run_eval(run, item, &key));
        TRY(run_eval(run, item->next, &member));
        run->at = item;
        TRY(need_key(run, key));
        TRY(run_check(run, dict_set(&run->heap, members, key, member) ? members : NULL));
    }
    *out = (value){.kind = VALUE_DICT, .as.members = members};
    return QP_OK;
}

/* Undefined, with the message "'dict object' has no attribute 'x'" for when it is used. */
static qp_status lacking(run *run, value object, value name, value *out)
{
    undefined *reason = heap_alloc(&run->heap, 1, sizeof *reason);
    TRY(run_check(run, reason));
    reason->owner = value_type(object);
    reason->name = name;
    *out = (value){.kind = VALUE_UNDEFINED, .as.reason = reason};
    return QP_OK;
}

/* Looks up a method of the object; *out is left missing if there is none. The sandbox hides methods
 * that change a list or a dict. */
static qp_status find_bound(run *run, value object, const string *name, value *out)
{
    bool forbidden = false;
    const builtin *method = find_method(object, name, &forbidden);
    *out = (value){.kind = VALUE_MISSING};
    if (forbidden)
        return run_undefined(
            run, "the template tries to change a list or a dict; that is not allowed", out);
    if (!method) return QP_OK;
    bound *callable = heap_alloc(&run->heap, 1, sizeof *callable);
    TRY(run_check(run, callable));
    *callable = (bound){method, object};
    *out = (value){.kind = VALUE_BUILTIN, .as.callable = callable};
    return QP_OK;
}

qp_status run_attribute(run *run, value object, const string *name, value *out)
{
    if (object.kind == VALUE_UNDEFINED) return run_fail_undefined(run, object);
    TRY(find_bound(run, object, name, out));
    if (out->kind != VALUE_MISSING) return QP_OK;
    if (object.kind == VALUE_DICT || object.kind == VALUE_NAMESPACE) {
        const value *member = dict_get(&run->heap, object.as.members, value_text(name));
        TRY(run_step(run, 0));
        if (member) {
            *out = *member;
            return QP_OK;
        }
    }
    if (object.kind == VALUE_LOOP) {
        TRY(loop_attribute(run, object.as.loop, name, out));
        if (out->kind != VALUE_MISSING) return QP_OK;
    }
    if (object.kind == VALUE_LIST && object.as.items->is_group) {
        bool grouper = string_is(name, "grouper");
        if (grouper || string_is(name, "list")) {
            *out = object.as.items->items[!grouper];
            return QP_OK;
        }
    }
    if (object.kind == VALUE_MACRO && string_is(name, "name")) {
        const string *given = macro_name(object.as.macro);
        *out = given ? value_text(given) : (value){.kind = VALUE_NONE};
        return QP_OK;
    }
    return lacking(run, object, value_text(name), out);
}

/* object[key] for a whole number; *out stays missing when it is out of range. */
static qp_status item_at(run *run, value object, int64_t at, value *out)
{
    const list *items = object.kind == VALUE_LIST ? object.as.items : NULL;
    size_t count = items ? items->count : object.as.text->points;
    if (at < 0) at += (int64_t)count;
    if (at < 0 || (uint64_t)at >= count) return QP_OK;
    if (!items) return text_part(run, object.as.text, (size_t)at, (size_t)at + 1, out);
    *out = items->items[at];
    return QP_OK;
}

qp_status run_item(run *run, value object, value key, value *out)
{
    bool indexed = object.kind == VALUE_STRING ||
                   (object.kind == VALUE_LIST && object.as.items->kind <= LIST_RANGE);
    *out = (value){.kind = VALUE_MISSING};
    if (object.kind == VALUE_UNDEFINED) return run_fail_undefined(run, object);
    if (indexed && (key.kind == VALUE_INT || key.kind == VALUE_BOOL))
        TRY(item_at(run, object, value_as_int(key), out));
    if (object.kind == VALUE_DICT) {
        const value *member = dict_get(&run->heap, object.as.members, key);
        TRY(run_step(run, 0));
        if (member) *out = *member;
    }
    if (out->kind != VALUE_MISSING) return QP_OK;
    if (key.kind != VALUE_STRING) return lacking(run, object, key, out);
    if (object.kind != VALUE_DICT) return run_attribute(run, object, key.as.text, out);
    TRY(find_bound(run, object, key.as.text, out));
    return out->kind != VALUE_MISSING ? QP_OK : lacking(run, object, key, out);
}

/* Grows the positional or named arguments of a call that contains stars. */
static qp_status grow(run *run, void **items, size_t used, size_t more, size_t size)
{
    void *grown = heap_alloc(&run->heap, used + more, size);
    TRY(run_check(run, grown));
    if (used) memcpy(grown, *items, used * size);
    *items = grown;
    return QP_OK;
}

static qp_status add_star(run *run, value from, size_t left, call *call)
{
    list *items;
    void *grown = call->positional;
    TRY(run_iterate(run, from, &items));
    TRY(run_step(run, items->count / 8));
    TRY(grow(run, &grown, call->n_positional, items->count + left, sizeof(value)));
    call->positional = grown;
    for (size_t i = 0; i < items->count; i++)
        call->positional[call->n_positional++] = items->items[i];
    return QP_OK;
}

/* Adds a keyword argument, for which there is room; none of the first `n_others` may have its name.
 */
static qp_status add_named(run *run, const string *name, value item, size_t n_others, call *call)
{
    TRY(run_step(run, n_others));
    for (size_t i = 0; i < n_others; i++)
        if (string_equal(call->named[i].name, name))
            return run_fail(run, "there are several values for the argument '%.*s'",
                            (int)(name->length % 100), name->data);
    call->named[call->n_named++] = (named){name, item};
    return QP_OK;
}

static qp_status add_star_star(run *run, value from, size_t left, call *call)
{
    void *grown = call->named;
    if (from.kind != VALUE_DICT)
        return run_fail(run, "the argument after ** must be a dict, found '%s'", value_type(from));
    const dict *members = from.as.members;
    TRY(run_step(run, members->count / 8));
    TRY(grow(run, &grown, call->n_named, members->count + left, sizeof(named)));
    call->named = grown;
    const size_t before = call->n_named;
    for (size_t i = 0; i < members->count; i++) {
        const string *name;
        TRY(need_text(run, members->keys[i], &name));
        TRY(add_named(run, name, members->values[i], before, call));
    }
    return QP_OK;
}

qp_status run_arguments(run *run, const node *arguments, call *call)
{
    size_t left = 0; /* arguments still to come: there is always room for them */
    void *positional = NULL, *names = NULL;
    for (const node *argument = arguments; argument; argument = argument->next)
        left++;
    if (left == 0) return QP_OK;
    TRY(grow(run, &positional, 0, left, sizeof(value)));
    TRY(grow(run, &names, 0, left, sizeof(named)));
    call->positional = positional;
    call->named = names;
    for (const node *argument = arguments; argument; argument = argument->next) {
        value item;
        TRY(run_eval(run, argument->a, &item));
        run->at = argument;
        left--;
        if (argument->detail == ARGUMENT_STAR)
            TRY(add_star(run, item, left, call));
        else if (argument->detail == ARGUMENT_STAR_STAR)
            TRY(add_star_star(run, item, left, call));
        else if (argument->detail == ARGUMENT_KEYWORD)
            TRY(add_named(run, argument->text, item, call->n_named, call));
        else
            call->positional[call->n_positional++] = item;
    }
    return QP_OK;
}

/* The index of the parameter `name` in a list of names separated by blanks, or -1. If `name` is
 * NULL, the number of parameters. */
static int find_parameter(const char *parameters, const string *name)
{
    int count = 0;
    for (const char *at = parameters; *at; count++) {
        size_t length = strcspn(at, " ");
        if (name && name->length == length && memcmp(at, name->data, length) == 0) return count;
        at += length + (at[length] == ' ');
    }
    return name ? -1 : count;
}

/* Binds the arguments to the builtin's parameters and runs it. */
static qp_status run_builtin(run *run, const builtin *builtin, call *call, value *out)
{
    call->builtin = builtin;
    if (!builtin->parameters) return builtin->run(run, call, out);
    int count = find_parameter(builtin->parameters, NULL);
    memset(call->bound, 0, sizeof call->bound); /* VALUE_MISSING */
    if (call->n_positional > (size_t)count)
        return run_fail(run, "%s() takes at most %d arguments, found %zu", builtin->name, count,
                        call->n_positional);
    for (size_t i = 0; i < call->n_positional; i++)
        call->bound[i] = call->positional[i];
    for (size_t i = 0; i < call->n_named; i++) {
        const string *name = call->named[i].name;
        int at = find_parameter(builtin->parameters, name);
        if (at < 0 || call->bound[at].kind != VALUE_MISSING)
            return run_fail(run, "%s() got %s argument '%.*s'", builtin->name,
                            at < 0 ? "an unexpected keyword" : "multiple values for",
                            (int)(name->length % 100), name->data);
        call->bound[at] = call->named[i].item;
    }
    for (int i = 0; i < builtin->required; i++) {
        if (call->bound[i].kind == VALUE_MISSING)
            return run_fail(run, "%s() needs at least %d arguments, found %zu", builtin->name,
                            builtin->required, call->n_positional + call->n_named);
    }
    return builtin->run(run, call, out);
}

/* The result of an operation on markup is markup. */
static void keep_markup(value from, value *out)
{
    out->markup |= from.kind == VALUE_STRING && from.markup && out->kind == VALUE_STRING;
}

qp_status run_call(run *run, value callee, call *call, value *out)
{
    switch (callee.kind) {
    case VALUE_BUILTIN:
        call->self = callee.as.callable->self;
        TRY(run_builtin(run, callee.as.callable->builtin, call, out));
        keep_markup(callee.as.callable->self, out);
        return QP_OK;
    case VALUE_MACRO:
        return call_macro(run, callee.as.macro, call, out);
    case VALUE_LOOP:
        if (call->n_positional != 1) return run_fail(run, "loop() takes one argument");
        return loop_recurse(run, callee.as.loop, call->positional[0], out);
    case VALUE_UNDEFINED:
        return run_fail_undefined(run, callee);
    default:
        return run_fail(run, "'%s' object is not callable", value_type(callee));
    }
}

qp_status run_filter(run *run, const string *name, call *call, value *out)
{
    static const char *const keep[] = {"capitalize", "center", "indent",   "lower", "reverse",
                                       "string",     "trim",   "truncate", "upper"};
    const builtin *filter = find_filter(name);
    if (!filter) filter = find_sequence(name);
    if (!filter) filter = find_markup(name);
    if (!filter)
        return run_fail(run, "no filter named '%.*s'", (int)(name->length % 100), name->data);
    bool keeps = false;
    for (size_t i = 0; i < sizeof keep / sizeof keep[0]; i++)
        keeps |= string_is(name, keep[i]);
    TRY(run_builtin(run, filter, call, out));
    if (keeps) keep_markup(call->self, out);
    return QP_OK;
}

qp_status run_test(run *run, const string *name, call *call, bool *out)
{
    const builtin *test = find_test(name);
    value result;
    if (!test) return run_fail(run, "no test named '%.*s'", (int)(name->length % 100), name->data);
    TRY(run_builtin(run, test, call, &result));
    *out = value_truth(result);
    return QP_OK;
}

static qp_status eval_call(run *run, const node *node, value *out)
{
    value callee;
    call call = {0};
    TRY(run_eval(run, node->a, &callee));
    TRY(run_arguments(run, node->b, &call));
    run->at = node;
    return run_call(run, callee, &call, out);
}

static qp_status apply_filter(run *run, const node *filter, value input, value *out)
{
    call call = {.self = input};
    TRY(run_arguments(run, filter->b, &call));
    run->at = filter;
    return run_filter(run, filter->text, &call, out);
}

qp_status run_filters(run *run, const node *filter, value input, value *out)
{
    TRY(run_enter(run));
    if (filter->a) TRY(run_filters(run, filter->a, input, &input));
    run_leave(run);
    return apply_filter(run, filter, input, out);
}

static qp_status eval_test(run *run, const node *node, value *out)
{
    bool passed = false;
    call call = {0};
    TRY(run_eval(run, node->a, &call.self));
    TRY(run_arguments(run, node->b, &call));
    run->at = node;
    TRY(run_test(run, node->text, &call, &passed));
    *out = value_bool(passed);
    return QP_OK;
}

/* a < b < c holds if all its pairs hold; operands after a pair that fails are not evaluated. */
static qp_status eval_compare(run *run, const node *node, value *out)
{
    value left, right;
    bool holds = true;
    TRY(run_eval(run, node->a, &left));
    for (const struct node *operand = node->b; operand && holds; operand = operand->next) {
        TRY(run_eval(run, operand->a, &right));
        run->at = operand;
        TRY(op_compare(run, (compare_kind)operand->detail, left, right, &holds));
        left = right;
    }
    *out = value_bool(holds);
    return QP_OK;
}

static qp_status eval_concat(run *run, const node *node, value *out)
{
    builder text = {.run = run};
    for (const struct node *operand = node->a; operand; operand = operand->next) {
        value item;
        TRY(run_eval(run, operand, &item));
        run->at = operand;
        TRY(print_str(&text, item));
    }
    return builder_finish(&text, out);
}

static qp_status eval_slice(run *run, const node *node, value *out)
{
    const struct node *parts[] = {node->b, node->c, node->d};
    value object, bounds[3];
    TRY(run_eval(run, node->a, &object));
    for (int i = 0; i < 3; i++) {
        bounds[i] = value_none();
        if (parts[i]) TRY(run_eval(run, parts[i], &bounds[i]));
    }
    run->at = node;
    return op_slice(run, object, bounds[0], bounds[1], bounds[2], out);
}

static qp_status eval_choice(run *run, const node *node, value *out)
{
    value test;
    TRY(run_eval(run, node->b, &test));
    if (value_truth(test)) return run_eval(run, node->a, out);
    if (node->c) return run_eval(run, node->c, out);
    return run_undefined(run, "an inline if was false and has no else", out);
}

/* Operators with one or two operands that evaluate all of them. */
static qp_status eval_operator(run *run, const node *node, value *out)
{
    value a, b;
    TRY(run_eval(run, node->a, &a));
    if (node->kind == NODE_BINARY || node->kind == NODE_ITEM) TRY(run_eval(run, node->b, &b));
    run->at = node;
    switch (node->kind) {
    case NODE_BINARY:
        return op_binary(run, (token_kind)node->detail, a, b, out);
    case NODE_ITEM:
        return run_item(run, a, b, out);
    case NODE_ATTRIBUTE:
        return run_attribute(run, a, node->text, out);
    case NODE_NOT:
        *out = value_bool(!value_truth(a));
        return QP_OK;
    case NODE_NEGATE:
        return op_negate(run, a, out);
    default: /* NODE_PLUS: the number is unchanged */
        TRY(op_negate(run, a, out));
        return op_negate(run, *out, out);
    }
}

static qp_status eval_node(run *run, const node *node, value *out)
{
    value input;
    switch (node->kind) {
    case NODE_CONSTANT:
        *out = node->constant;
        return QP_OK;
    case NODE_NAME:
        return eval_name(run, node, out);
    case NODE_LIST:
        return eval_items(run, node, LIST_LIST, out);
    case NODE_TUPLE:
        return eval_items(run, node, LIST_TUPLE, out);
    case NODE_DICT:
        return eval_dict(run, node, out);
    case NODE_SLICE:
        return eval_slice(run, node, out);
    case NODE_CALL:
        return eval_call(run, node, out);
    case NODE_FILTER:
        TRY(run_eval(run, node->a, &input));
        return apply_filter(run, node, input, out);
    case NODE_TEST:
        return eval_test(run, node, out);
    case NODE_CONCAT:
        return eval_concat(run, node, out);
    case NODE_COMPARE:
        return eval_compare(run, node, out);
    case NODE_AND:
    case NODE_OR:
        TRY(run_eval(run, node->a, out));
        return value_truth(*out) == (node->kind == NODE_OR) ? QP_OK : run_eval(run, node->b, out);
    case NODE_CHOICE:
        return eval_choice(run, node, out);
    default:
        return eval_operator(run, node, out);
    }
}

qp_status run_eval(run *run, const node *node, value *out)
{
    run->at = node;
    TRY(run_enter(run));
    TRY(eval_node(run, node, out));
    run_leave(run);
    run->at = node;
    return QP_OK;
}
