/* The schedule that a caller chooses: see schedule.h. */
#include "engine/schedule.h"

#include "base/sized.h"
#include "engine/engine.h"
#include "schedule/build.h"
#include "schedule/cost.h"

#include <stdlib.h>
#include <string.h>

/* The number of a name among those that `name_at` gives; QP_INVALID lists them. */
static qp_status find_name(const char *what, const char *name, const char *(*name_at)(int),
                           int *out, qp_error *error)
{
    char list[64] = "";
    *out = 0;
    if (!name) return QP_OK;
    for (int i = 0; name_at(i); i++) {
        if (strcmp(name_at(i), name) == 0) {
            *out = i;
            return QP_OK;
        }
        strcat(strcat(list, i ? ", " : ""), name_at(i));
    }
    return error_set(error, QP_INVALID, "a schedule's %s is one of %s, found \"%s\"", what, list,
                     name);
}

qp_status engine_schedule_read(const qp_schedule_options *given, engine_schedule *out,
                               qp_error *error)
{
    qp_schedule_options o;
    int setting, assignment;
    *out = (engine_schedule){0};
    if (!given) return QP_OK;
    TRY(SIZED_READ(qp_schedule_options, given, &o, error));
    TRY(find_name("setting", o.setting, schedule_setting_name, &setting, error));
    TRY(find_name("assignment", o.assignment, schedule_assignment_name, &assignment, error));
    if (o.file && (setting || assignment || o.memory_fraction != 0))
        return error_set(
            error, QP_INVALID,
            "%s: a schedule in a file has its setting and assignment in it: leave them "
            "out, or the file",
            o.file);
    if (o.memory_fraction != 0 && assignment != SCHEDULE_POOL)
        return error_set(error, QP_INVALID,
                         "a memory fraction is for the assignment pool, found %s",
                         schedule_assignment_name(assignment));
    out->options = (schedule_options){.setting = (schedule_setting)setting,
                                      .assignment = (schedule_assignment)assignment,
                                      .memory_fraction = o.memory_fraction};
    if (!o.file) return QP_OK;
    out->file = strdup(o.file);
    return out->file ? QP_OK : error_no_memory(error, "the schedule's path", strlen(o.file));
}

void engine_schedule_free(engine_schedule *s)
{
    free(s->file);
    *s = (engine_schedule){0};
}

bool engine_schedule_leaves_out(const engine_schedule *s)
{
    return s->skip.kinds || s->skip.start_after || s->skip.stop_after;
}

static bool is_usual(const engine_schedule *s)
{
    return !s->file && !s->options.setting && !s->options.assignment &&
           !engine_schedule_leaves_out(s);
}

qp_status engine_schedule_check_ranks(const engine_schedule *s, int n_ranks, qp_error *error)
{
    if (n_ranks <= 1 || !engine_schedule_leaves_out(s)) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "%d ranks wait for each other's rows, so that --skip, --start-after and "
                     "--stop-after would stop them: leave --ranks out",
                     n_ranks);
}

qp_status engine_schedule_check(const engine_schedule *s, const machine_type *type, bool fuse,
                                qp_error *error)
{
    if (is_usual(s)) return QP_OK;
    const bool blocks = type == &machine_megakernel;
    if (!type->reschedule && !blocks)
        return error_set(error, QP_INVALID,
                         "a schedule was chosen, or parts of it left out, but the machine %s runs "
                         "none; threads, serial and megakernel do",
                         type->name);
    if (blocks && (s->file || s->options.setting || s->options.memory_fraction != 0))
        return error_set(error, QP_INVALID,
                         "the megakernel's schedule is made for its blocks, for few tokens: only "
                         "its assignment can be chosen");
    if (blocks && engine_schedule_leaves_out(s))
        return error_set(error, QP_INVALID,
                         "the megakernel's blocks wait for the data of others, so that nothing can "
                         "be left out of its schedule: use --device cpu");
    if (fuse && s->options.setting)
        return error_set(error, QP_INVALID,
                         "fused operators are for few tokens: they have no throughput schedule");
    return QP_OK;
}

qp_status engine_schedule_workers(const engine_schedule *s, int *workers, qp_error *error)
{
    schedule_options found;
    *workers = 0;
    if (!s->file) return QP_OK;
    TRY(schedule_peek(s->file, &found, error));
    *workers = found.workers;
    return QP_OK;
}

void engine_load_costs(qp_engine *e, const char *path)
{
    const cost_origin origin = {.workers = thread_pool_size(e->pool)};
    if (!path || e->device.context) return;
    e->costs = malloc(sizeof *e->costs);
    if (e->costs && cost_load(path, &origin, e->costs, NULL) == QP_OK) return;
    free(e->costs);
    e->costs = NULL;
}

schedule_options engine_schedule_options(const qp_engine *e, const engine_schedule *s)
{
    schedule_options options = schedule_run_options(&e->program);
    options.costs = e->costs;
    options.setting = s->options.setting;
    options.assignment = s->options.assignment;
    options.memory_fraction = s->options.memory_fraction;
    if (engine_schedule_leaves_out(s)) options.skip = &s->skip;
    return options;
}

qp_status engine_reschedule_part(qp_engine *e, const qp_schedule_options *given,
                                 const engine_part *part, qp_error *error)
{
    engine_schedule chosen;
    const machine *m = engine_memory(e);
    qp_status status = engine_schedule_read(given, &chosen, error);
    chosen.skip = part->skip;
    if (status == QP_OK) status = engine_schedule_check_ranks(&chosen, e->ranks.size, error);
    if (status == QP_OK)
        status = engine_schedule_check(&chosen, m->type, e->program.options.fuse, error);
    if (status == QP_OK && e->trace)
        status = error_set(error, QP_INVALID, "a schedule stays while its passes are traced");
    if (status == QP_OK) {
        const schedule_options options = engine_schedule_options(e, &chosen);
        step_drop(e); /* ends the passes that are under way */
        status = machine_reschedule(m, &options, chosen.file, error);
        if (status == QP_OK) e->partial = engine_schedule_leaves_out(&chosen);
    }
    engine_schedule_free(&chosen);
    return status;
}

static qp_status write_schedule(const qp_engine *e, strbuf *out, qp_error *error)
{
    const machine *m = engine_machine(e, 0);
    const schedule *s = m->type->schedule ? machine_schedule(m) : NULL;
    if (!s || m->type->in_parts)
        return error_set(error, QP_UNSUPPORTED,
                         "the machine %s runs no schedule; threads, serial and megakernel do",
                         m->type->name);
    schedule_write(s, out);
    return QP_OK;
}

qp_status qp_engine_schedule(qp_engine *e, char **bytes, size_t *length, qp_error *error)
{
    strbuf out = {0};
    *bytes = NULL;
    TRY(engine_enter_within(e, error));
    qp_status status = write_schedule(e, &out, error);
    *length = out.length;
    if (status == QP_OK && !(*bytes = strbuf_take(&out)))
        status = error_no_memory(error, "the schedule", *length);
    strbuf_free(&out);
    engine_leave(e);
    return status;
}

qp_status qp_engine_reschedule(qp_engine *e, const qp_schedule_options *given, qp_error *error)
{
    const engine_part all = {.layers = 0};
    TRY(engine_enter(e, error));
    const qp_status status = engine_reschedule_part(e, given, &all, error);
    engine_leave(e);
    return status;
}
