/* A plan that runs as a schedule: see scheduled.h. */
#include "vm/scheduled.h"

#include "base/checked.h"
#include "schedule/build.h"
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

static void take_kernels(scheduled *r)
{
    for (int n = 0; n < r->schedule.n_nodes; n++) {
        const executor_node *chosen = &r->executor->nodes[n];
        const op_info *op = op_get(r->schedule.program->nodes[n].op);
        r->kernels[n].kernel = chosen->variant ? chosen->variant->kernel : op->reference;
        r->kernels[n].packed = chosen->packed;
        if (chosen->packed) r->kernels[n].packed_unit_bytes = unit_bytes(r, n, chosen->variant);
    }
}

qp_status scheduled_init(scheduled *r, const executor *executor, int workers,
                         const schedule_options *options, qp_error *error)
{
    assert(workers <= thread_pool_size(executor->pool));
    *r = (scheduled){.executor = executor};
    schedule_options chosen = {0};
    if (options) chosen = *options;
    chosen.workers = workers;
    TRY(schedule_build(executor->program, &chosen, &r->schedule, error));
    TRY(schedule_verify(&r->schedule, error));
    size_t nodes = (size_t)r->schedule.n_nodes;
    r->kernels = calloc(nodes, sizeof *r->kernels);
    if (!r->kernels) return error_no_memory(error, "the machine", nodes * sizeof *r->kernels);
    take_kernels(r);
    r->bound = (bound_schedule){.schedule = &r->schedule,
                                .memory = &executor->memory,
                                .kernels = r->kernels,
                                .scratch = executor->scratch.data,
                                .scratch_bytes = executor->scratch_bytes};
    return QP_OK;
}

void scheduled_free(scheduled *r)
{
    schedule_free(&r->schedule);
    free(r->kernels);
    *r = (scheduled){0};
}
