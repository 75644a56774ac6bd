/* Times of launches: see timing.h. Events give times since the first one; they are converted to
 * this computer's clock by the moment at which the host saw the last one. */
#include "vm/cuda/timing.h"

#include "base/clock.h"
#include "schedule/build.h"
#include "vm/machine_run.h"

#include <stdlib.h>

static const char reading[] = "reading when operators ran";

qp_status cuda_timing_schedule(const cuda_executor *x, const schedule_options *options,
                               schedule *out, qp_error *error)
{
    schedule_options chosen = *options;
    chosen.workers = 1;
    chosen.setting = SCHEDULE_LATENCY;
    chosen.last_step = machine_logits_end(x->plan);
    return schedule_build(x->plan, &chosen, out, error);
}

qp_status cuda_timing_open(cuda_timing *t, const cuda_executor *x, qp_error *error)
{
    const schedule_options usual = {0};
    cuda_marks *m = &t->marks;
    const cuda_device *d = x->device;
    const int most = x->plan->n_nodes + 1;
    TRY(cuda_device_enter(d, error));
    TRY(cuda_timing_schedule(x, &usual, &t->operators, error));
    m->events = calloc((size_t)most, sizeof *m->events);
    m->nodes = calloc((size_t)most, sizeof *m->nodes);
    if (!m->events || !m->nodes)
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
    free(t->marks.nodes);
    schedule_free(&t->operators);
    *t = (cuda_timing){0};
}

/* The plan's nodes [from, to) were one launch from `begin` to `end`; the time is recorded at the
 * first of them that the schedule has. *place: of its next instruction. */
static void take_launch(const schedule *s, int from, int to, uint64_t begin, uint64_t end,
                        int *place, instruction_timing *timings)
{
    const instruction *queue = schedule_queue(s, 0);
    for (int node = from; node < to; node++) {
        for (; *place < s->length[0] && queue[*place].node == (uint32_t)node; ++*place) {
            timings[*place] = (instruction_timing){begin, begin, end, end};
            begin = end;
        }
    }
}

/* `now`: when the host saw the last event. */
static qp_status take_marks(const cuda_timing *t, const cuda_executor *x, uint64_t now,
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
        take_launch(&t->operators, m->nodes[i], m->nodes[i + 1], i ? last : first, end, &place,
                    timings);
        last = end;
    }
    return QP_OK;
}

void cuda_timing_begin(cuda_timing *t, cuda_executor *x, machine_record *record)
{
    record->begin = clock_ns();
    if (t->marks.capacity == 0 || !record->timings) return;
    t->marks.count = 0;
    x->marks = &t->marks;
}

qp_status cuda_timing_end(cuda_timing *t, cuda_executor *x, machine_record *record, qp_error *error)
{
    const bool marked = x->marks && t->marks.count > 1;
    x->marks = NULL;
    TRY(cuda_device_wait(x->device, reading, error));
    record->end = clock_ns();
    if (marked) TRY(take_marks(t, x, record->end, record->timings, error));
    record->timed = marked;
    return QP_OK;
}
