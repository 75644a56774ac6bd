/* Traces of passes on a GPU: launches by the stream's events, the megakernel's entries by the slots
 * that its blocks stamp. Both are turned to this machine's clock by when the GPU was done.
 */
#include "engine/trace.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "schedule/build.h"

#include <stdlib.h>
#include <string.h>

static const char reading[] = "reading when operators ran";

/* ---- before and after ---------------------------------------------------------------------- */

/* One queue of all nodes: launches follow one another as in the plan. */
static qp_status make_operators(qp_trace *t, qp_error *error)
{
    const qp_engine *e = t->engine;
    const schedule_options options = {
        .workers = 1, .setting = SCHEDULE_LATENCY, .last_step = e->logits_end};
    TRY(schedule_build(&e->plan, &options, &t->cuda.operators, error));
    t->schedule = &t->cuda.operators;
    return QP_OK;
}

static qp_status make_marks(qp_trace *t, qp_error *error)
{
    cuda_marks *m = &t->cuda.marks;
    const cuda_device *d = &t->engine->device;
    int most = t->engine->plan.n_nodes + 1;
    m->events = calloc((size_t)most, sizeof *m->events);
    m->nodes = calloc((size_t)most, sizeof *m->nodes);
    if (!m->events || !m->nodes)
        return error_no_memory(error, "the trace's events", (size_t)most * sizeof *m->events);
    for (; m->capacity < most; m->capacity++)
        TRY(cuda_check(d->driver->event_create(&m->events[m->capacity], 0), "making an event",
                       error));
    return QP_OK;
}

qp_status trace_cuda_open(qp_trace *t, size_t max_passes, qp_error *error)
{
    qp_engine *e = t->engine;
    TRY(cuda_device_enter(&e->device, error));
    t->cuda.mega = e->mega.kernel != NULL;
    if (t->cuda.mega) {
        t->schedule = &e->mega.schedule;
        return cuda_mega_time(&e->mega, max_passes, error);
    }
    TRY(make_operators(t, error));
    return make_marks(t, error);
}

void trace_cuda_close(qp_trace *t)
{
    const cuda_device *d = &t->engine->device;
    cuda_marks *m = &t->cuda.marks;
    if (t->engine->mega.kernel) cuda_mega_time_no_more(&t->engine->mega);
    for (int i = 0; i < m->capacity; i++)
        d->driver->event_destroy(m->events[i]);
    free(m->events);
    free(m->nodes);
    t->engine->cuda.marks = NULL;
    schedule_free(&t->cuda.operators);
}

/* What the GPU reads, and what its units for products could do by their number and clock. */
qp_status trace_cuda_limits(qp_trace *t, qp_error *error)
{
    t->limits.flops_per_second = cuda_device_flops(&t->engine->device);
    return qp_measure_read(t->engine, &t->limits.bytes_per_second, error);
}

/* ---- operator by operator ------------------------------------------------------------------ */

void trace_begin_operators(qp_trace *t, const batch *batch)
{
    if (!trace_take_pass(t, batch) || t->cuda.mega) return;
    t->cuda.marks.count = 0;
    t->engine->cuda.marks = &t->cuda.marks;
}

/* The plan's nodes [from, to) were one launch from `begin` to `end`: the time is the first's that
 * the schedule has. *place: of its next instruction. */
static void take_launch(qp_trace *t, int from, int to, uint64_t begin, uint64_t end, int *place)
{
    const schedule *s = t->schedule;
    instruction_timing *timings = t->passes[t->n_passes].timings;
    const instruction *queue = schedule_queue(s, 0);
    for (int node = from; node < to; node++) {
        for (; *place < s->length[0] && queue[*place].node == (uint32_t)node; ++*place) {
            timings[*place] = (instruction_timing){begin, begin, end, end};
            begin = end;
        }
    }
}

/* Events say how long ago the first was; `now`: when the last was seen. */
static qp_status take_marks(qp_trace *t, uint64_t now, qp_error *error)
{
    const cuda_marks *m = &t->cuda.marks;
    const cuda_driver *driver = t->engine->device.driver;
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
        take_launch(t, m->nodes[i], m->nodes[i + 1], i ? last : first, end, &place);
        last = end;
    }
    return QP_OK;
}

qp_status trace_end_operators(qp_trace *t, qp_error *error)
{
    if (!t || t->n_passes == t->max_passes) return QP_OK;
    trace_pass *pass = &t->passes[t->n_passes];
    t->engine->cuda.marks = NULL;
    TRY(cuda_device_wait(&t->engine->device, reading, error));
    pass->end = clock_ns();
    pass->bare = t->cuda.mega || t->cuda.marks.count < 2;
    if (!pass->bare) TRY(take_marks(t, pass->end, error));
    t->n_passes++;
    return QP_OK;
}

/* ---- the megakernel ------------------------------------------------------------------------ */

void trace_begin_launch(qp_trace *t)
{
    if (!t) return;
    t->cuda.launched = t->engine->mega.n_timed;
}

/* The batch's sequences with `more` tokens more. */
static void lengthen(const qp_trace *t, trace_pass *pass, int32_t more)
{
    const int32_t page = (int32_t)t->engine->plan.options.page_size;
    const trace_indices *x = &pass->indices;
    int32_t before = 0, after = 0; /* pages of the sequences so far */
    for (int64_t i = 0; i < pass->sizes[AXIS_SEQUENCES]; i++) {
        int32_t pages = x->kv_indptr[i + 1] - before;
        int32_t positions = (pages - 1) * page + x->kv_last_page_len[i] + more;
        before = x->kv_indptr[i + 1];
        pages = (positions + page - 1) / page;
        x->kv_indptr[i + 1] = after += pages;
        x->kv_last_page_len[i] = positions - (pages - 1) * page;
    }
    pass->sizes[AXIS_PAGE_REFS] = after;
}

qp_status trace_place_passes(const schedule *s, trace_pass *passes, int n, uint64_t now,
                             qp_error *error)
{
    const size_t places = (size_t)s->options.workers * (size_t)s->longest;
    instruction_timing **timings = calloc((size_t)n, sizeof *timings);
    uint64_t *begins = calloc((size_t)n + 1, sizeof *begins);
    bool enough = timings && begins;
    for (int i = 0; enough && i < n; i++)
        timings[i] = passes[i].timings;
    if (enough) cuda_mega_part_passes(s, timings, n, begins);
    const uint64_t shift = enough ? now - begins[n] : 0;
    for (int i = 0; enough && i < n; i++) {
        passes[i].begin = begins[i] + shift;
        passes[i].end = begins[i + 1] + shift;
        for (size_t k = 0; k < places; k++) {
            instruction_timing *t = &timings[i][k];
            *t = (instruction_timing){t->wait + shift, t->work + shift, t->signal + shift,
                                      t->end + shift};
        }
    }
    free(timings);
    free(begins);
    return enough ? QP_OK
                  : error_no_memory(error, "the trace's passes", (size_t)n * sizeof *begins);
}

qp_status trace_end_launch(qp_trace *t, const batch *batch, int ran, qp_error *error)
{
    if (!t || !t->cuda.mega || t->engine->mega.n_timed == t->cuda.launched) return QP_OK;
    trace_pass *first = &t->passes[t->n_passes];
    const uint64_t now = clock_ns();
    int n = 0;
    for (; n < ran && trace_take_pass(t, batch); n++, t->n_passes++) {
        trace_pass *pass = &t->passes[t->n_passes];
        TRY(cuda_mega_read_timings(&t->engine->mega, t->cuda.launched + (size_t)n, pass->timings,
                                   &pass->fetching, error));
        lengthen(t, pass, n);
    }
    return n > 0 ? trace_place_passes(t->schedule, first, n, now, error) : QP_OK;
}
