/* Macros of templates, and {% call %}, which gives one to another as its `caller`. A macro takes
 * the calls that jinja2 takes: see macro_names. */
#include "template/run.h"

#include <stdio.h>
#include <string.h>

struct macro {
    const string *name; /* NULL: of {% call %} */
    const node *parameters, *body;
    int names;    /* macro_names that the body uses */
    scope *scope; /* the scope in which it was defined */
};

const string *macro_name(const macro *macro)
{
    return macro->name;
}

static const string caller_name = {"caller", 6, 6};

/* `of`: its statement. */
static qp_status macro_new(run *run, const string *name, const node *of, const node *parameters,
                           const node *body, value *out)
{
    macro *made = heap_alloc(&run->heap, 1, sizeof *made);
    TRY(run_check(run, made));
    *made = (macro){name, parameters, body, of->detail, run->scope};
    *out = (value){.kind = VALUE_MACRO, .as.macro = made};
    return QP_OK;
}

/* Removes the keyword argument `name` from the call and returns it. */
static bool take_named(run *run, call *call, const string *name, value *out)
{
    for (size_t i = 0; i < call->n_named; i++) {
        heap_spend(&run->heap, 1);
        if (!string_equal(call->named[i].name, name)) continue;
        *out = call->named[i].item;
        call->n_named--;
        memmove(&call->named[i], &call->named[i + 1], (call->n_named - i) * sizeof *call->named);
        return true;
    }
    return false;
}

static qp_status bind_parameter(run *run, scope *scope, const node *parameter, call *call,
                                size_t *used)
{
    value item;
    bool given = *used < call->n_positional;
    if (given)
        item = call->positional[(*used)++];
    else
        given = take_named(run, call, parameter->text, &item);
    if (!given && parameter->a) TRY(run_eval(run, parameter->a, &item));
    if (!given && !parameter->a)
        TRY(run_undefined(run, "a parameter of a macro was not given", &item));
    return scope_set(run, scope, parameter->text, item);
}

static qp_status bind_caller(run *run, scope *scope, const macro *macro, call *call)
{
    value caller;
    if (!(macro->names & MACRO_CALLER)) return QP_OK;
    if (!take_named(run, call, &caller_name, &caller))
        TRY(run_undefined(run, "no caller defined", &caller));
    return scope_set(run, scope, &caller_name, caller);
}

/* For messages. */
static const char *describe(const macro *macro, char *text, size_t size)
{
    const string *name = macro->name;
    if (name)
        snprintf(text, size, "macro '%.*s'", (int)(name->length % 100), name->data);
    else
        snprintf(text, size, "the caller");
    return text;
}

/* The other keyword arguments; as in jinja2 an error, unless the body uses `kwargs`. */
static qp_status bind_kwargs(run *run, scope *scope, const macro *macro, const call *call)
{
    char about[128];
    if (!(macro->names & MACRO_KWARGS)) {
        if (call->n_named == 0) return QP_OK;
        return run_fail(run, "%s takes no keyword argument '%.*s', or has it already",
                        describe(macro, about, sizeof about),
                        (int)(call->named->name->length % 100), call->named->name->data);
    }
    dict *kwargs = dict_new(&run->heap);
    TRY(run_check(run, kwargs));
    for (size_t i = 0; i < call->n_named; i++) {
        bool set =
            dict_set(&run->heap, kwargs, value_text(call->named[i].name), call->named[i].item);
        TRY(run_check(run, set ? kwargs : NULL));
    }
    return scope_set_text(run, scope, "kwargs", (value){.kind = VALUE_DICT, .as.members = kwargs});
}

/* The positional arguments after the first `used`; an error, unless the body uses `varargs`. */
static qp_status bind_varargs(run *run, scope *scope, const macro *macro, const call *call,
                              size_t used)
{
    value varargs;
    char about[128];
    if (!(macro->names & MACRO_VARARGS)) {
        if (call->n_positional == used) return QP_OK;
        return run_fail(run, "%s takes not more than %zu arguments, found %zu",
                        describe(macro, about, sizeof about), used, call->n_positional);
    }
    TRY(run_list(run, LIST_TUPLE, call->n_positional - used, &varargs));
    for (size_t i = used; i < call->n_positional; i++)
        varargs.as.items->items[i - used] = call->positional[i];
    return scope_set_text(run, scope, "varargs", varargs);
}

qp_status call_macro(run *run, const macro *macro, call *call, value *out)
{
    scope *scope, *outer = run->scope;
    size_t used = 0;
    TRY(run_enter(run));
    TRY(scope_new(run, macro->scope, &scope));
    TRY(bind_caller(run, scope, macro, call));
    run->scope = scope; /* defaults may use the parameters before them */
    for (const node *parameter = macro->parameters; parameter; parameter = parameter->next)
        TRY(bind_parameter(run, scope, parameter, call, &used));
    TRY(bind_kwargs(run, scope, macro, call));
    TRY(bind_varargs(run, scope, macro, call, used));
    TRY(run_capture(run, scope, macro->body, out));
    run->scope = outer;
    run_leave(run);
    return QP_OK;
}

qp_status exec_macro(run *run, const node *node)
{
    value made;
    TRY(macro_new(run, node->text, node, node->a, node->b, &made));
    return scope_set(run, run->scope, node->text, made);
}

/* Adds the `caller` to a call, after the keyword arguments and before those of "**". */
static qp_status add_caller(run *run, const node *arguments, value caller, call *call)
{
    size_t at = 0;
    for (const node *argument = arguments; argument; argument = argument->next)
        at += argument->detail == ARGUMENT_KEYWORD;
    for (size_t i = 0; i < call->n_named; i++)
        if (string_equal(call->named[i].name, &caller_name))
            return run_fail(run, "the call has another argument 'caller'");
    named *all = heap_alloc(&run->heap, call->n_named + 1, sizeof *all);
    TRY(run_check(run, all));
    for (size_t i = 0; i < call->n_named; i++)
        all[i + (i >= at)] = call->named[i];
    all[at] = (named){&caller_name, caller};
    call->named = all;
    call->n_named++;
    return QP_OK;
}

qp_status exec_call_block(run *run, const node *node)
{
    value callee, caller, result;
    call call = {0};
    TRY(run_eval(run, node->a->a, &callee));
    TRY(run_arguments(run, node->a->b, &call));
    TRY(macro_new(run, NULL, node, node->b, node->c, &caller));
    TRY(add_caller(run, node->a->b, caller, &call));
    run->at = node;
    TRY(run_call(run, callee, &call, &result));
    return print_str(run->out, result);
}
