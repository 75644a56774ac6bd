/* Tensors of passes for the caller: see observer.h. */
#include "engine/observer.h"

#include "engine/engine.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void observer_name_tensor(const program *p, int step, plan_tensor_id id,
                          char text[OBSERVER_NAME_SIZE])
{
    const program_step *s = &p->steps[step];
    const char *tensor = p->tensors[id].name;
    if (s->layer < 0)
        snprintf(text, OBSERVER_NAME_SIZE, "%s.%s", s->name, tensor);
    else
        snprintf(text, OBSERVER_NAME_SIZE, "layers.%lld.%s.%s", (long long)s->layer, s->name,
                 tensor);
}

static bool matches(const char *patterns, const char *name)
{
    char pattern[128];
    for (const char *at = patterns; at && *at; at += strspn(at, ", ")) {
        const size_t length = strcspn(at, ", ");
        snprintf(pattern, sizeof pattern, "%.*s", (int)length, at);
        if (fnmatch(pattern, name, 0) == 0) return true;
        at += length;
    }
    return !patterns;
}

/* Whether the step makes the tensor, and it is asked for under this name. */
static bool is_wanted(const program *p, const observer *o, int step, plan_tensor_id id,
                      char name[OBSERVER_NAME_SIZE])
{
    const plan_kind kind = p->tensors[id].kind;
    if (kind != PLAN_ACTIVATION && kind != PLAN_OUTPUT && kind != PLAN_CARRIED) return false;
    if (!program_step_access(p, step, id).write) return false;
    observer_name_tensor(p, step, id, name);
    return matches(o->patterns, name);
}

static qp_status find_steps(const program *p, observer *o, qp_error *error)
{
    char name[OBSERVER_NAME_SIZE], example[OBSERVER_NAME_SIZE] = "";
    bool any = false;
    o->wanted = calloc((size_t)p->n_steps, sizeof *o->wanted);
    if (!o->wanted) return error_no_memory(error, "the steps to look at", (size_t)p->n_steps);
    for (int step = 0; step < p->logits_end; step++)
        for (int id = 0; id < p->n_tensors; id++) {
            if (is_wanted(p, o, step, (plan_tensor_id)id, name)) {
                any = o->wanted[step] = true;
                if (p->tensors[id].bytes > o->capacity) o->capacity = p->tensors[id].bytes;
            } else if (p->steps[step].layer == 0 && !*example &&
                       program_step_access(p, step, (plan_tensor_id)id).write) {
                observer_name_tensor(p, step, (plan_tensor_id)id, example);
            }
        }
    if (any) return QP_OK;
    return error_set(
        error, QP_INVALID,
        "no tensor of the pass is called %s; names are LAYER, step and tensor, such as "
        "%s, and * stands for any text",
        o->patterns, example);
}

qp_status observer_open(const qp_engine *e, const qp_engine_options *options, observer *o,
                        qp_error *error)
{
    if (!options->on_tensor) return QP_OK;
    *o = (observer){.receive = options->on_tensor, .context = options->tensor_context};
    if (options->tensors && !(o->patterns = strdup(options->tensors)))
        return error_no_memory(error, "the names of tensors", strlen(options->tensors));
    TRY(find_steps(&e->program, o, error));
    o->data = malloc(o->capacity + 1);
    return o->data ? QP_OK : error_no_memory(error, "a tensor", o->capacity);
}

void observer_free(observer *o)
{
    free(o->patterns);
    free(o->wanted);
    free(o->data);
    *o = (observer){0};
}

static qp_status hand_out(qp_engine *e, const machine *m, int step, plan_tensor_id id,
                          const char *name, qp_error *error)
{
    observer *o = &e->observer;
    const plan_tensor *t = &e->program.tensors[id];
    qp_tensor out = {.size = sizeof out,
                     .name = name,
                     .type = dtype_name(t->type),
                     .rank = t->rank,
                     .data = o->data,
                     .bytes = program_tensor_bytes(&e->program, id, &e->batch.sizes),
                     .pass = o->passes};
    for (int d = 0; d < t->rank; d++)
        out.dims[d] = t->dims[d].size < 0 ? e->batch.sizes.of[-t->dims[d].size] : t->dims[d].size;
    TRY(machine_read(m, id, e->program.steps[step].layer, o->data, out.bytes, error));
    const qp_status status = o->receive(o->context, &out);
    return status == QP_OK ? QP_OK : error_of_callback(status, error);
}

static qp_status hand_out_step(qp_engine *e, const machine *m, int step, qp_error *error)
{
    char name[OBSERVER_NAME_SIZE];
    const program *p = &e->program;
    for (int id = 0; id < p->n_tensors && e->observer.wanted[step]; id++)
        if (is_wanted(p, &e->observer, step, (plan_tensor_id)id, name))
            TRY(hand_out(e, m, step, (plan_tensor_id)id, name, error));
    return QP_OK;
}

static int last_step(const qp_engine *e, const machine_request *r)
{
    return (r->last > 0 ? r->last : e->program.logits_end) - 1;
}

qp_status observer_begin_run(qp_engine *e, engine_run *run, qp_error *error)
{
    machine_request part = run->request, *last = &run->request;
    const int end = last_step(e, last);
    part.choice = MACHINE_LOGITS;
    part.logits = false;
    for (int step = last->first; step < end; step++) {
        if (!e->observer.wanted[step]) continue;
        part.last = step + 1;
        TRY(machine_pass(run->machine, &part, error));
        TRY(hand_out_step(e, run->machine, step, error));
        part.first = step + 1;
    }
    last->first = part.first;
    last->last = end + 1;
    return machine_run(run->machine, last, error);
}

qp_status observer_end_run(qp_engine *e, const engine_run *run, qp_error *error)
{
    const qp_status status = hand_out_step(e, run->machine, last_step(e, &run->request), error);
    e->observer.passes++;
    return status;
}
