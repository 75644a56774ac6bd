/* A program that runs as a schedule: see scheduled.h. */
#include "vm/scheduled.h"

#include "base/checked.h"
#include "schedule/build.h"
#include "schedule/skip.h"
#include "schedule/verify.h"

#include <assert.h>
#include <stdlib.h>

/* Packed weights lie in the order of units, in whole groups. A node with several weights reads the
 * first one first.
 */
static size_t unit_bytes(const scheduled *r, int node, const op_variant *variant)
{
    op_call call;
    program_bind(r->schedule.program, node, NULL, r->schedule.program->capacity.of, &call);
    size_t units = round_up((size_t)call.end, (size_t)variant->pack_units);
    size_t bytes =
        variant->packed_first ? variant->packed_first(&call) : variant->packed_bytes(&call);
    return bytes / units;
}

void scheduled_take_kernels(scheduled *r)
{
    for (int n = 0; n < r->schedule.n_nodes; n++) {
        const executor_node *chosen = &r->executor->nodes[n];
        const unpacked *left = r->executor->unpacked ? &r->executor->unpacked[n] : NULL;
        if (left && left->variant) {
            r->kernels[n] = (bound_kernel){.kernel = unpacked_kernel, .packed = left};
            continue;
        }
        const op_info *op = op_get(r->schedule.program->nodes[n].op);
        r->kernels[n].kernel = chosen->variant ? chosen->variant->kernel : op->reference;
        r->kernels[n].packed = chosen->packed;
        if (chosen->packed && chosen->variant)
            r->kernels[n].packed_unit_bytes = unit_bytes(r, n, chosen->variant);
    }
}

/* schedule_load() has verified what it returns. */
static qp_status load(const program *p, int workers, const char *file, schedule *out,
                      qp_error *error)
{
    TRY(schedule_load(file, p, out, error));
    const int found = out->options.workers, last = out->options.last_step;
    if (found != workers)
        return error_set(
            error, QP_INVALID,
            "%s: a schedule of %d worker%s, but this runs with %d thread%s: give it -t %d", file,
            found, found == 1 ? "" : "s", workers, workers == 1 ? "" : "s", found);
    if (last > 0 && last < p->logits_end)
        return error_set(error, QP_INVALID,
                         "%s: the schedule ends before the logits, after %s: it cannot make tokens",
                         file, p->steps[last - 1].name);
    return QP_OK;
}

static qp_status build(const program *p, int workers, const schedule_options *options,
                       schedule *out, qp_error *error)
{
    schedule_options chosen = {0};
    if (options) chosen = *options;
    chosen.workers = workers;
    TRY(schedule_build(p, &chosen, out, error));
    return schedule_verify(out, error);
}

/* As schedule_options.unshared, of a schedule that was saved. */
static void unshare(schedule *s)
{
    for (int w = 0; w < s->options.workers; w++)
        for (int i = 0; i < s->length[w]; i++)
            s->instructions[(size_t)w * (size_t)s->longest + (size_t)i].flags &=
                (uint16_t)~INSTRUCTION_SHARED;
}

qp_status scheduled_make(const program *p, int workers, const schedule_options *options,
                         const char *file, schedule *out, qp_error *error)
{
    TRY(file ? load(p, workers, file, out, error) : build(p, workers, options, out, error));
    if (file && options && options->unshared) unshare(out);
    return options && options->skip ? schedule_leave_out(out, options->skip, error) : QP_OK;
}

qp_status scheduled_init(scheduled *r, const executor *executor, int workers,
                         const schedule_options *options, const char *file, qp_error *error)
{
    assert(workers <= thread_pool_size(executor->pool));
    *r = (scheduled){.executor = executor};
    TRY(scheduled_make(executor->program, workers, options, file, &r->schedule, error));
    size_t nodes = (size_t)r->schedule.n_nodes;
    r->kernels = calloc(nodes, sizeof *r->kernels);
    if (!r->kernels) return error_no_memory(error, "the machine", nodes * sizeof *r->kernels);
    scheduled_take_kernels(r);
    r->bound = (bound_schedule){.schedule = &r->schedule,
                                .memory = &executor->memory,
                                .kernels = r->kernels,
                                .scratch = executor->scratch.data,
                                .scratch_bytes = executor->scratch_bytes,
                                .crew = executor->crew};
    return QP_OK;
}

void scheduled_free(scheduled *r)
{
    schedule_free(&r->schedule);
    free(r->kernels);
    *r = (scheduled){0};
}
