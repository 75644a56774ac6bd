/* A plan run as a schedule: see scheduled.h. */
#include "vm/scheduled.h"

#include "base/checked.h"
#include "schedule/build.h"
#include "schedule/verify.h"

#include <assert.h>
#include <stdlib.h>

/* The plan's step that a node of the plan belongs to. */
static int step_of(const plan *p, int node)
{
    int step = 0;
    while (node >= p->steps[step].first_node + p->steps[step].n_nodes)
        step++;
    return step;
}

/* Packed weights lie in the order of units, in whole groups; of several, the first is read first.
 */
static size_t unit_bytes(const scheduled *r, int node, const op_variant *variant)
{
    op_call call;
    schedule_bind_node(&r->schedule, node, NULL, r->schedule.capacity, &call);
    size_t units = round_up((size_t)call.end, (size_t)variant->pack_units);
    size_t bytes =
        variant->packed_first ? variant->packed_first(&call) : variant->packed_bytes(&call);
    return bytes / units;
}

/* A schedule's nodes are the plan's in their order, less those that have nothing to do. */
static void take_kernels(scheduled *r)
{
    const plan *p = r->executor->plan;
    int from = 0;
    for (int n = 0; n < r->schedule.n_nodes; n++, from++) {
        const schedule_node *node = &r->schedule.nodes[n];
        while (p->nodes[from].op != node->op || step_of(p, from) != node->step)
            from++;
        assert(from < p->n_nodes);
        const executor_node *chosen = &r->executor->nodes[from];
        r->kernels[n].kernel =
            chosen->variant ? chosen->variant->kernel : op_get(node->op)->reference;
        r->kernels[n].packed = chosen->packed;
        if (chosen->packed) r->kernels[n].packed_unit_bytes = unit_bytes(r, n, chosen->variant);
    }
}

static void take_weights(scheduled *r, const model *model)
{
    for (int i = 0; i < r->schedule.n_weights; i++) {
        const schedule_weight *from = &r->schedule.weights[i];
        const model_weight *weight = model_get_weight(model, (weight_slot)from->slot, from->layer);
        r->weights[i] = from->bias ? weight->bias.data : weight->weight.data;
        if (from->slot == WEIGHT_TOKEN_EMBD && r->executor->memory.rows)
            r->weights[i] = r->executor->memory.rows;
    }
}

static void fill_setup(scheduled *r)
{
    const executor *x = r->executor;
    r->setup = (bound_schedule){.schedule = &r->schedule,
                                .memory = {.arena = x->arena.data,
                                           .inputs = x->memory.data,
                                           .rope_table = x->rope_table.data,
                                           .k_cache = x->k_cache.data,
                                           .v_cache = x->v_cache.data,
                                           .weights = r->weights},
                                .kernels = r->kernels,
                                .scratch = x->scratch.data,
                                .scratch_bytes = x->scratch_bytes};
}

qp_status scheduled_init(scheduled *r, const executor *executor, const model *model,
                         const schedule_options *options, qp_error *error)
{
    *r = (scheduled){.executor = executor};
    schedule_options chosen = {0};
    if (options) chosen = *options;
    chosen.workers = thread_pool_size(executor->pool);
    TRY(schedule_build(executor->plan, model, &chosen, &r->schedule, error));
    TRY(schedule_verify(&r->schedule, error));
    size_t nodes = (size_t)r->schedule.n_nodes, weights = (size_t)r->schedule.n_weights;
    r->kernels = calloc(nodes, sizeof *r->kernels);
    r->weights = calloc(weights, sizeof *r->weights);
    if (!r->kernels || !r->weights) return error_no_memory(error, "the machine", nodes);
    take_kernels(r);
    take_weights(r, model);
    fill_setup(r);
    return threads_machine_create(&r->setup, executor->pool, 0, &r->machine, error);
}

void scheduled_free(scheduled *r)
{
    threads_machine_destroy(r->machine);
    serial_destroy(r->serial);
    schedule_free(&r->schedule);
    free(r->kernels);
    free(r->weights);
    *r = (scheduled){0};
}

qp_status scheduled_make_serial(scheduled *r, qp_error *error)
{
    return serial_create(&r->schedule, &r->serial, error);
}

qp_status scheduled_run(scheduled *r, const batch *batch, scheduled_record record, qp_error *error)
{
    if (!r->serial) return threads_machine_run(r->machine, batch->sizes.of, record.timings, error);
    const serial_options options = {.nodes = r->kernels,
                                    .scratch = r->setup.scratch,
                                    .hook = record.parts ? parts_run : NULL,
                                    .context = record.parts};
    return serial_run(r->serial, &r->setup.memory, batch->sizes.of, &options, error);
}
