/* Executes statements of templates: scopes, loops. See run.h.
 *
 * A scope is a list of names. `if` uses the scope around it. A pass of a loop, a macro, a set block
 * and `with` have a scope of their own, so that names set inside are forgotten outside. Loops fetch
 * their items one by one, as in jinja2, because a filter may read what the body has put into a
 * namespace.
 */
#include "template/run.h"

#include <string.h>

struct loop {
    const node *node;
    scope *outer; /* in which the loop stands */
    list *items;
    size_t next;    /* the next item */
    bool filtered;  /* whether the loop's `if` must still be evaluated for the next items */
    bool has_ahead; /* whether `ahead` was fetched: loop.last and loop.nextitem look ahead */
    value current, before, ahead, changed;
    int64_t index; /* from 0 */
    int64_t depth;
};

const value *scope_find(run *run, const string *name)
{
    for (const scope *scope = run->scope; scope; scope = scope->parent) {
        for (const binding *binding = scope->first; binding; binding = binding->next) {
            heap_spend(&run->heap, 1);
            if (string_equal(binding->name, name)) return &binding->item;
        }
    }
    return NULL;
}

qp_status scope_set(run *run, scope *scope, const string *name, value item)
{
    binding *binding = scope->first;
    while (binding && !string_equal(binding->name, name)) {
        TRY(run_step(run, 1));
        binding = binding->next;
    }
    if (!binding) {
        binding = heap_alloc(&run->heap, 1, sizeof *binding);
        TRY(run_check(run, binding));
        binding->name = name;
        binding->next = scope->first;
        scope->first = binding;
    }
    binding->item = item;
    return QP_OK;
}

qp_status scope_new(run *run, scope *parent, scope **out)
{
    *out = heap_alloc(&run->heap, 1, sizeof **out);
    TRY(run_check(run, *out));
    (*out)->parent = parent;
    return QP_OK;
}

qp_status scope_set_text(run *run, scope *scope, const char *name, value item)
{
    value text;
    TRY(run_view(run, name, strlen(name), &text));
    return scope_set(run, scope, text.as.text, item);
}

static qp_status set_member(run *run, const node *target, value item)
{
    const string *name = target->constant.as.text;
    const value *space = scope_find(run, name);
    run->at = target;
    if (!space || space->kind != VALUE_NAMESPACE)
        return run_fail(run, "cannot set a member of '%.*s': it is not a namespace",
                        (int)(name->length % 100), name->data);
    if (target->text->data[0] == '_')
        return run_fail(run, "a namespace's members cannot begin with an underscore");
    bool set = dict_set(&run->heap, space->as.members, value_text(target->text), item);
    return run_check(run, set ? space : NULL);
}

static qp_status assign(run *run, scope *scope, const node *target, value item)
{
    if (target->kind == NODE_NAME) return scope_set(run, scope, target->text, item);
    if (target->kind == NODE_MEMBER) return set_member(run, target, item);
    list *items;
    size_t wanted = 0, at = 0;
    run->at = target;
    for (const node *part = target->a; part; part = part->next)
        wanted++;
    TRY(run_iterate(run, item, &items));
    if (items->count != wanted)
        return run_fail(run, "cannot unpack %zu values into %zu names", items->count, wanted);
    for (const node *part = target->a; part; part = part->next)
        TRY(assign(run, scope, part, items->items[at++]));
    return QP_OK;
}

/* Runs the body in `scope`; NULL is a new one inside the current scope. */
static qp_status exec_in(run *run, scope *scope, const node *body)
{
    struct scope *outer = run->scope;
    if (!scope) TRY(scope_new(run, outer, &scope));
    run->scope = scope;
    TRY(run_exec(run, body));
    run->scope = outer;
    return QP_OK;
}

qp_status run_capture(run *run, scope *scope, const node *body, value *out)
{
    builder *outer = run->out, text = {.run = run};
    run->out = &text;
    TRY(exec_in(run, scope, body));
    run->out = outer;
    return builder_finish(&text, out);
}

/* --- loops --- */

/* Fetches the next item that passes the loop's filter, if any is left. */
static qp_status loop_fetch(run *run, loop *loop, value *item, bool *found)
{
    for (*found = false; loop->next < loop->items->count;) {
        value passes = value_bool(true);
        TRY(run_step(run, 1));
        *item = loop->items->items[loop->next++];
        if (loop->filtered) {
            scope *scope, *outer = run->scope;
            TRY(scope_new(run, loop->outer, &scope));
            TRY(assign(run, scope, loop->node->a, *item));
            run->scope = scope;
            TRY(run_eval(run, loop->node->e, &passes));
            run->scope = outer;
        }
        *found = value_truth(passes);
        if (*found) break;
    }
    return QP_OK;
}

static qp_status loop_look_ahead(run *run, loop *loop)
{
    if (loop->has_ahead) return QP_OK;
    return loop_fetch(run, loop, &loop->ahead, &loop->has_ahead);
}

static qp_status loop_advance(run *run, loop *loop, bool *found)
{
    value item;
    *found = loop->has_ahead;
    item = loop->ahead;
    loop->has_ahead = false;
    if (!*found) TRY(loop_fetch(run, loop, &item, found));
    if (!*found) return QP_OK;
    loop->index++;
    loop->before = loop->current;
    loop->current = item;
    return QP_OK;
}

/* The total number of passes; the filter is evaluated for the remaining items. */
static qp_status loop_length(run *run, loop *loop, int64_t *out)
{
    if (loop->filtered) {
        value rest, item;
        bool found;
        TRY(run_list(run, LIST_LIST, loop->items->count - loop->next, &rest));
        list *passed = rest.as.items;
        passed->count = 0;
        for (;;) {
            TRY(loop_fetch(run, loop, &item, &found));
            if (!found) break;
            passed->items[passed->count++] = item;
        }
        loop->items = passed;
        loop->next = 0;
        loop->filtered = false;
    }
    *out = loop->index + 1 + loop->has_ahead + (int64_t)(loop->items->count - loop->next);
    return QP_OK;
}

static qp_status loop_neighbour(run *run, loop *loop, bool next, value *out)
{
    if (next) TRY(loop_look_ahead(run, loop));
    bool exists = next ? loop->has_ahead : loop->index > 0;
    if (!exists)
        return run_undefined(run, next ? "there is no next item" : "there is no previous item",
                             out);
    *out = next ? loop->ahead : loop->before;
    return QP_OK;
}

qp_status loop_attribute(run *run, loop *loop, const string *name, value *out)
{
    int64_t length;
    *out = (value){.kind = VALUE_MISSING};
    if (string_is(name, "previtem")) return loop_neighbour(run, loop, false, out);
    if (string_is(name, "nextitem")) return loop_neighbour(run, loop, true, out);
    if (string_is(name, "index0")) *out = value_int(loop->index);
    if (string_is(name, "index")) *out = value_int(loop->index + 1);
    if (string_is(name, "first")) *out = value_bool(loop->index == 0);
    if (string_is(name, "depth0")) *out = value_int(loop->depth);
    if (string_is(name, "depth")) *out = value_int(loop->depth + 1);
    if (string_is(name, "last")) {
        TRY(loop_look_ahead(run, loop));
        *out = value_bool(!loop->has_ahead);
    }
    bool back = string_is(name, "revindex"), back0 = string_is(name, "revindex0");
    if (!back && !back0 && !string_is(name, "length")) return QP_OK;
    TRY(loop_length(run, loop, &length));
    *out = value_int(back ? length - loop->index : back0 ? length - loop->index - 1 : length);
    return QP_OK;
}

qp_status loop_changed(run *run, loop *loop, value now, value *out)
{
    bool same = loop->changed.kind != VALUE_MISSING && value_equal(&run->heap, loop->changed, now);
    loop->changed = now;
    *out = value_bool(!same);
    return run_step(run, 1);
}

size_t loop_index(const loop *loop)
{
    return (size_t)loop->index;
}

static qp_status exec_loop(run *run, const node *node, value over, scope *outer, int64_t depth)
{
    loop *loop = heap_alloc(&run->heap, 1, sizeof *loop);
    TRY(run_check(run, loop));
    loop->node = node;
    loop->outer = outer;
    loop->index = -1;
    loop->depth = depth;
    loop->filtered = node->e != NULL;
    run->at = node->b;
    TRY(run_iterate(run, over, &loop->items));
    for (;;) {
        bool found;
        scope *scope;
        TRY(loop_advance(run, loop, &found));
        if (!found) break;
        TRY(scope_new(run, outer, &scope));
        TRY(scope_set_text(run, scope, "loop", (value){.kind = VALUE_LOOP, .as.loop = loop}));
        TRY(assign(run, scope, node->a, loop->current));
        TRY(exec_in(run, scope, node->c));
        run_flow flow = run->flow;
        run->flow = FLOW_ON;
        if (flow == FLOW_BREAK) break;
    }
    return loop->index < 0 && node->d ? exec_in(run, NULL, node->d) : QP_OK;
}

static qp_status exec_for(run *run, const node *node)
{
    value over;
    TRY(run_eval(run, node->b, &over));
    return exec_loop(run, node, over, run->scope, 0);
}

qp_status loop_recurse(run *run, loop *loop, value items, value *out)
{
    if (!loop->node->detail)
        return run_fail(run, "a loop that is called must be marked 'recursive'");
    builder *outer = run->out, text = {.run = run};
    scope *scope = run->scope;
    TRY(run_enter(run));
    run->out = &text;
    run->scope = loop->outer;
    TRY(exec_loop(run, loop->node, items, loop->outer, loop->depth + 1));
    run->scope = scope;
    run->out = outer;
    run_leave(run);
    return builder_finish(&text, out);
}

/* --- other statements --- */

static qp_status exec_if(run *run, const node *node)
{
    for (;;) {
        value test;
        TRY(run_eval(run, node->a, &test));
        if (value_truth(test)) return run_exec(run, node->b);
        bool elif = node->c && node->c->kind == NODE_IF && node->c->detail;
        if (!elif) return run_exec(run, node->c);
        node = node->c;
    }
}

static qp_status exec_set(run *run, const node *node)
{
    value item;
    TRY(run_eval(run, node->b, &item));
    return assign(run, run->scope, node->a, item);
}

static qp_status exec_set_block(run *run, const node *node)
{
    value text;
    TRY(run_capture(run, NULL, node->b, &text));
    if (run->flow != FLOW_ON) return QP_OK;
    if (node->c) TRY(run_filters(run, node->c, text, &text));
    return assign(run, run->scope, node->a, text);
}

static qp_status exec_filter_block(run *run, const node *node)
{
    value text;
    TRY(run_capture(run, NULL, node->b, &text));
    if (run->flow != FLOW_ON) return QP_OK;
    TRY(run_filters(run, node->a, text, &text));
    return print_str(run->out, text);
}

/* The values are evaluated in the scope around it. */
static qp_status exec_with(run *run, const node *node)
{
    scope *scope;
    TRY(scope_new(run, run->scope, &scope));
    for (const struct node *set = node->a; set; set = set->next) {
        value item;
        TRY(run_eval(run, set->b, &item));
        TRY(assign(run, scope, set->a, item));
    }
    return exec_in(run, scope, node->b);
}

static qp_status exec_print(run *run, const node *node)
{
    value item;
    TRY(run_eval(run, node->a, &item));
    return print_str(run->out, item);
}

static qp_status exec_node(run *run, const node *node)
{
    switch (node->kind) {
    case NODE_DATA:
        return builder_put(run->out, node->text->data, node->text->length);
    case NODE_PRINT:
        return exec_print(run, node);
    case NODE_IF:
        return exec_if(run, node);
    case NODE_FOR:
        return exec_for(run, node);
    case NODE_SET:
        return exec_set(run, node);
    case NODE_SET_BLOCK:
        return exec_set_block(run, node);
    case NODE_MACRO:
        return exec_macro(run, node);
    case NODE_CALL_BLOCK:
        return exec_call_block(run, node);
    case NODE_FILTER_BLOCK:
        return exec_filter_block(run, node);
    case NODE_WITH:
        return exec_with(run, node);
    case NODE_SCOPE:
        return exec_in(run, NULL, node->a);
    default:
        run->flow = node->kind == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
        return QP_OK;
    }
}

qp_status run_exec(run *run, const node *body)
{
    if (!body) return QP_OK;
    TRY(run_enter(run));
    for (const node *node = body; node && run->flow == FLOW_ON; node = node->next) {
        run->at = node;
        TRY(run_step(run, 1));
        TRY(exec_node(run, node));
    }
    run_leave(run);
    return QP_OK;
}
