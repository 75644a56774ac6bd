/* Leaves instructions and waits out: see skip.h. */
#include "schedule/skip.h"

#include "base/names.h"

#include <string.h>

/* What is left out, by number. */
typedef struct left_out {
    bool ops[OP_COUNT];
    bool *steps; /* [n_steps] */
    bool waits;
    int first, last; /* the steps that stay */
} left_out;

void schedule_print_kinds(const schedule *s, strbuf *out)
{
    bool seen[OP_COUNT] = {false};
    const char *comma = "";
    for (int n = 0; n < s->n_nodes; n++) {
        const op_code op = s->program->nodes[n].op;
        if (program_is_noop(s->program, n)) continue;
        if (!seen[op]) {
            strbuf_printf(out, "%s%s", comma, op_get(op)->name);
            comma = ",";
        }
        seen[op] = true;
    }
}

/* Marks the operators and steps of a name. */
static bool take_name(const schedule *s, const char *name, left_out *out)
{
    bool found = strcmp(name, "waits") == 0;
    out->waits |= found;
    for (int n = 0; n < s->n_nodes; n++) {
        const program_node *node = &s->program->nodes[n];
        if (program_is_noop(s->program, n)) continue;
        const bool op = strcmp(op_get(node->op)->name, name) == 0;
        const bool step = strcmp(s->program->steps[node->step].name, name) == 0;
        out->ops[node->op] |= op;
        out->steps[node->step] |= step;
        found |= op || step;
    }
    return found;
}

static qp_status take_kinds(const schedule *s, const char *kinds, left_out *out, qp_error *error)
{
    char name[NAME_SIZE];
    while (names_next(&kinds, name)) {
        if (take_name(s, name, out)) continue;
        strbuf known = {0};
        schedule_print_kinds(s, &known);
        error_set(
            error, QP_INVALID,
            "the schedule has no \"%s\" to skip: expected \"waits\", a step such as ffn_down, "
            "or one of its operators: %s",
            name, strbuf_text(&known));
        strbuf_free(&known);
        return QP_INVALID;
    }
    return QP_OK;
}

static qp_status take_steps(const schedule *s, const schedule_skip *skip, left_out *out,
                            qp_error *error)
{
    const program *p = s->program;
    const int ends = s->options.last_step > 0 ? s->options.last_step : p->n_steps;
    int after = -1, stop = ends - 1;
    char label[64];
    if (skip->start_after) TRY(program_parse_step(p, skip->start_after, &after, error));
    if (skip->stop_after) TRY(program_parse_step(p, skip->stop_after, &stop, error));
    if (stop >= ends) stop = ends - 1;
    if (stop <= after)
        return error_set(error, QP_INVALID,
                         "nothing would run: no step of the schedule lies after %s and up to %s",
                         skip->start_after, program_step_label(p, stop, label, sizeof label));
    out->first = after + 1;
    out->last = stop + 1;
    return QP_OK;
}

static void make_noop(instruction *in)
{
    in->opcode = INSTRUCTION_NOOP;
    in->flags &= (uint16_t) ~(INSTRUCTION_SHARED | INSTRUCTION_ROW_SLICES);
    in->cost_ns = 0;
}

static void leave_out_of(instruction *in, const left_out *what)
{
    const bool outside = in->step < what->first || in->step >= what->last;
    if (in->opcode != INSTRUCTION_NOOP &&
        (outside || what->ops[in->opcode] || what->steps[in->step]))
        make_noop(in);
    for (int w = 0; (outside || what->waits) && w < INSTRUCTION_WAITS; w++)
        in->waits[w] = (instruction_wait){0};
}

/* The schedule's own copy, with which a prediction of it can be made again. */
static qp_status keep(schedule *s, const schedule_skip *skip, qp_error *error)
{
    const char *from[] = {skip->kinds, skip->start_after, skip->stop_after};
    const char *to[3] = {NULL};
    schedule_skip *copy = arena_alloc(&s->memory, 1, sizeof *copy);
    bool enough = copy != NULL;
    for (int i = 0; i < 3; i++) {
        if (from[i]) to[i] = arena_strdup(&s->memory, from[i]);
        enough = enough && (!from[i] || to[i]);
    }
    if (!enough) return error_no_memory(error, "the schedule", sizeof *copy);
    *copy = (schedule_skip){.kinds = to[0], .start_after = to[1], .stop_after = to[2]};
    s->options.skip = copy;
    return QP_OK;
}

qp_status schedule_leave_out(schedule *s, const schedule_skip *skip, qp_error *error)
{
    left_out what = {.steps = arena_alloc(&s->memory, (size_t)s->program->n_steps, sizeof(bool))};
    if (!what.steps) return error_no_memory(error, "the schedule", (size_t)s->program->n_steps);
    TRY(take_kinds(s, skip->kinds, &what, error));
    TRY(take_steps(s, skip, &what, error));
    for (int w = 0; w < s->options.workers; w++)
        for (int i = 0; i < s->length[w]; i++)
            leave_out_of(&s->instructions[(size_t)w * (size_t)s->longest + (size_t)i], &what);
    return keep(s, skip, error);
}
