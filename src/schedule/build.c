/* Program to schedule: instructions, dependencies, workers, queues. */
#include "schedule/build.h"

#include "schedule/draft.h"

#include <stdlib.h>

static qp_status check_options(const schedule_options *o, qp_error *error)
{
    if (o->workers < 1 || o->workers > SCHEDULE_MAX_WORKERS)
        return error_set(error, QP_INVALID, "a schedule has 1 to %d workers, found %d",
                         SCHEDULE_MAX_WORKERS, o->workers);
    if (!schedule_setting_name(o->setting) || !schedule_assignment_name(o->assignment))
        return error_set(error, QP_INVALID, "there is no setting %d with assignment %d",
                         (int)o->setting, (int)o->assignment);
    if (!(o->memory_fraction >= 0 && o->memory_fraction <= 1))
        return error_set(error, QP_INVALID, "the memory fraction must be 0 to 1, found %g",
                         o->memory_fraction);
    if (o->tile < 0 || o->tile > SCHEDULE_MAX_TILE || o->group < 0 || o->group > SCHEDULE_MAX_TILE)
        return error_set(error, QP_INVALID,
                         "a tile and a group have 1 to %d rows, found %lld and %lld",
                         SCHEDULE_MAX_TILE, (long long)o->tile, (long long)o->group);
    return QP_OK;
}

schedule_options schedule_run_options(const program *p)
{
    return (schedule_options){.setting = SCHEDULE_LATENCY, .last_step = p->logits_end};
}

int64_t schedule_kv_partitions(int workers, int64_t n_kv_heads)
{
    enum { MOST = 64 };
    int64_t parts = n_kv_heads > 0 ? workers / n_kv_heads : 1;
    return parts < 1 ? 1 : parts > MOST ? MOST : parts;
}

static int64_t within(int64_t value, int64_t fallback, int64_t most)
{
    if (value <= 0) value = fallback;
    return value < most ? value : most;
}

static void fill_options(schedule_options *o, const program *p)
{
    int64_t tokens = p->capacity.of[AXIS_TOKENS];
    o->tokens = within(o->tokens, o->setting == SCHEDULE_LATENCY ? 1 : tokens, tokens);
    o->context = within(o->context, USUAL_CONTEXT, p->options.context);
    if (o->context < o->tokens) o->context = within(o->tokens, o->tokens, p->options.context);
    o->tile = within(o->tile, USUAL_TILE, SCHEDULE_MAX_TILE);
    if (o->costs && o->costs->workers != o->workers) o->costs = NULL;
    if (o->costs) o->profile = o->costs->limits;
    if (!(o->profile.bytes_per_second > 0)) o->profile.bytes_per_second = 20e9;
    if (!(o->profile.flops_per_second > 0)) o->profile.flops_per_second = 100e9;
    if (!(o->profile.signal_ns > 0)) o->profile.signal_ns = 200;
}

static qp_status check_limits(const program *p, qp_error *error)
{
    if (p->options.form == PLAN_PADDED)
        return error_set(error, QP_UNSUPPORTED,
                         "the plan padded has no schedule: rows of its tensors have other sizes in "
                         "each batch; use the machine operators or reference");
    if (p->n_steps <= UINT16_MAX && p->config.n_layers <= INT16_MAX) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "a schedule has room for %d steps and %d layers, the program has %d and %lld",
                     UINT16_MAX, INT16_MAX, p->n_steps, (long long)p->config.n_layers);
}

qp_status draft_take_program(const program *p, schedule *s, qp_error *error)
{
    const int last = s->options.last_step;
    TRY(check_limits(p, error));
    s->program = p;
    s->n_nodes = last > 0 && last < p->n_steps ? p->steps[last].first_node : p->n_nodes;
    if (s->n_nodes == 0)
        return error_set(error, QP_INVALID, "steps 0 to %d of the program have no operators", last);
    s->costs = arena_alloc(&s->memory, (size_t)s->n_nodes, sizeof *s->costs);
    return s->costs ? QP_OK : error_no_memory(error, "the schedule", (size_t)s->n_nodes);
}

qp_status schedule_build(const program *p, const schedule_options *options, schedule *out,
                         qp_error *error)
{
    *out = (schedule){.options = *options};
    TRY(check_options(options, error));
    fill_options(&out->options, p);
    draft d = {.out = out};
    qp_status status = draft_take_program(p, out, error);
    if (status == QP_OK) status = segment_nodes(&d, error);
    if (status == QP_OK) status = lower_nodes(&d, error);
    if (status == QP_OK) status = dag_build(&d, error);
    if (status == QP_OK) status = assign_workers(&d, error);
    if (status == QP_OK) status = tensorize_queues(&d, error);
    for (int i = 0; d.segments && i < out->n_nodes; i++)
        free(d.segments[i].borders);
    free(d.segments);
    free(d.items);
    free(d.lanes);
    free(d.groups);
    free(d.counters);
    free(d.memory_bound);
    free(d.worker);
    free(d.queue);
    out->options.costs = NULL;
    out->options.together = NULL;
    return status;
}
