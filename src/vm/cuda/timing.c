/* Times of launches: see timing.h. Events give times relative to the first one. They are converted
 * to the host's clock by the moment at which the host saw the last event. */
#include "vm/cuda/timing.h"

#include "base/clock.h"
#include "schedule/build.h"
#include "vm/machine_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char reading[] = "reading when operators ran";

qp_status cuda_timing_schedule(const cuda_executor *x, const schedule_options *options,
                               schedule *out, qp_error *error)
{
    schedule_options chosen = *options;
    chosen.workers = 1;
    chosen.setting = SCHEDULE_LATENCY;
    chosen.last_step = x->program->logits_end;
    return schedule_build(x->program, &chosen, out, error);
}

qp_status cuda_timing_open(cuda_timing *t, const cuda_executor *x, machine_part_sink *sink,
                           void *context, qp_error *error)
{
    t->sink = sink;
    t->context = context;
    const schedule_options usual = {0};
    cuda_marks *m = &t->marks;
    const cuda_device *d = x->device;
    const int most = x->program->n_nodes + 1;
    TRY(cuda_device_enter(d, error));
    TRY(cuda_timing_schedule(x, &usual, &t->operators, error));
    m->events = calloc((size_t)most, sizeof *m->events);
    m->entries = calloc((size_t)most, sizeof *m->entries);
    if (!m->events || !m->entries)
        return error_no_memory(error, "the trace's events", (size_t)most * sizeof *m->events);
    for (; m->capacity < most; m->capacity++)
        TRY(cuda_check(d->driver->event_create(&m->events[m->capacity], 0), "making an event",
                       error));
    return QP_OK;
}

void cuda_timing_free(cuda_timing *t, const cuda_device *d)
{
    for (int i = 0; i < t->marks.capacity; i++)
        d->driver->event_destroy(t->marks.events[i]);
    free(t->marks.events);
    free(t->marks.entries);
    schedule_free(&t->operators);
    *t = (cuda_timing){0};
}

/* Records that the program's nodes [from, to) were one launch from `begin` to `end`. The time is
 * recorded at the first of these nodes that the schedule contains. *place: the schedule's next
 * instruction. */
static void take_launch(const schedule *s, int from, int to, uint64_t begin, uint64_t end,
                        int *place, instruction_timing *timings)
{
    const instruction *queue = schedule_queue(s, 0);
    for (int node = from; node < to; node++) {
        for (; *place < s->length[0] && queue[*place].node == (uint32_t)node; ++*place) {
            timings[*place] =
                (instruction_timing){.wait = begin, .work = begin, .signal = end, .end = end};
            begin = end;
        }
    }
}

/* A copy of a launch's description that lasts. */
static const char *kind_of(cuda_timing *t, const launch_entry *entry)
{
    char name[sizeof t->kinds[0]];
    const char *kernel = entry->chain ? "chain" : op_get(entry->kernel->op)->name;
    int i = 0;
    snprintf(name, sizeof name, "%s%s%s", kernel, entry->epilogue ? " + " : "",
             entry->epilogue ? entry->epilogue : "");
    while (i < t->n_kinds && strcmp(t->kinds[i], name) != 0)
        i++;
    if (i == t->n_kinds) strcpy(t->kinds[t->n_kinds++], name);
    return t->kinds[i];
}

/* The cost of a launch's nodes. */
static op_cost cost_of(const cuda_timing *t, const cuda_executor *x, const launch_entry *entry)
{
    static const plan_tensor_id indices[] = {PLAN_QO_INDPTR, PLAN_KV_INDPTR, PLAN_KV_LAST_PAGE_LEN};
    program_memory memory = {0};
    op_cost sum = {0};
    for (size_t i = 0; i < sizeof indices / sizeof *indices; i++)
        memory.data[indices[i]] = t->batch->of[indices[i]];
    for (int n = entry->node; n < entry->node + entry->n_nodes; n++) {
        op_call call;
        program_bind(x->program, n, &memory, t->batch->sizes.of, &call);
        const op_cost cost = op_cost_of(op_get(x->program->nodes[n].op), &call);
        sum.flops += cost.flops;
        sum.bytes += cost.bytes;
    }
    return sum;
}

/* The first instruction of a node, or of one after it; NULL: the schedule has none. */
static const instruction *instruction_at(const schedule *s, int node)
{
    const instruction *queue = schedule_queue(s, 0);
    for (int i = 0; i < s->length[0]; i++)
        if (queue[i].node >= (uint32_t)node) return &queue[i];
    return NULL;
}

static void hand_launch(cuda_timing *t, const cuda_executor *x, const launch_entry *entry,
                        uint64_t begin, uint64_t end)
{
    const instruction *in = instruction_at(&t->operators, entry->node);
    if (entry->n_records == 0 || entry->n_nodes == 0 || !in) return;
    timeline_part part = {
        .node = (int32_t)in->node, .type = DTYPE_F32, .wait = begin, .begin = begin, .end = end};
    const program_node *first = &x->program->nodes[entry->node], *last = first + entry->n_nodes - 1;
    const op_cost cost = cost_of(t, x, entry);
    part.kind = kind_of(t, entry);
    part.flops = cost.flops;
    part.bytes = cost.bytes;
    if (first->step != last->step)
        snprintf(part.outputs, sizeof part.outputs, "to %s %lld", last->name,
                 (long long)last->layer);
    t->sink(t->context, &part);
}

/* `now`: when the host saw the last event. */
static qp_status take_marks(cuda_timing *t, const cuda_executor *x, uint64_t now,
                            instruction_timing *timings, qp_error *error)
{
    const cuda_marks *m = &t->marks;
    const cuda_driver *driver = x->device->driver;
    uint64_t last = 0;
    float total, since;
    int place = 0;
    TRY(cuda_check(driver->event_elapsed(&total, m->events[0], m->events[m->count - 1]), reading,
                   error));
    uint64_t first = now - (uint64_t)((double)total * 1e6);
    for (int i = 0; i + 1 < m->count; i++) {
        TRY(cuda_check(driver->event_elapsed(&since, m->events[0], m->events[i + 1]), reading,
                       error));
        uint64_t end = first + (uint64_t)((double)since * 1e6);
        const launch_entry *entry = m->entries[i];
        const uint64_t begin = i ? last : first;
        if (timings)
            take_launch(&t->operators, entry->node, entry->node + entry->n_nodes, begin, end,
                        &place, timings);
        if (t->sink) hand_launch(t, x, entry, begin, end);
        last = end;
    }
    return QP_OK;
}

void cuda_timing_begin(cuda_timing *t, cuda_executor *x, const batch *batch, machine_record *record)
{
    record->begin = clock_ns();
    t->batch = batch;
    if (t->marks.capacity == 0 || (!record->timings && !t->sink)) return;
    t->marks.count = 0;
    x->marks = &t->marks;
}

qp_status cuda_timing_end(cuda_timing *t, cuda_executor *x, machine_record *record,
                          qp_status status, qp_error *error)
{
    const bool marked = x->marks && t->marks.count > 1;
    x->marks = NULL; /* also after a failure: the next pass may not be a timed one */
    TRY(status);
    TRY(cuda_device_wait(x->device, reading, error));
    record->end = clock_ns();
    if (marked) TRY(take_marks(t, x, record->end, record->timings, error));
    record->timed = marked;
    return QP_OK;
}
