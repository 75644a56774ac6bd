/* Traces of passes on a GPU: launches by the stream's events, the megakernel's entries by the slots
 * that its blocks stamp. Both are turned to this machine's clock by when the GPU was done.
 */
#include "generate/trace.h"

#include "base/clock.h"
#include "generate/engine.h"
#include "schedule/build.h"

#include <stdlib.h>
#include <string.h>

enum {
    FLOPS_OF_CLOCK = 4096,
    CLOCK_RATE = 13
}; /* Hopper's products of BF16; a CUdevice_attribute */

static const char reading[] = "reading when operators ran";

/* ---- before and after ---------------------------------------------------------------------- */

/* One queue of all nodes: launches follow one another as in the plan. */
static qp_status make_operators(qp_trace *t, qp_error *error)
{
    const qp_engine *e = t->engine;
    const schedule_options options = {
        .workers = 1, .setting = SCHEDULE_LATENCY, .last_step = e->logits_end};
    TRY(schedule_build(&e->plan, e->model, &options, &t->cuda.operators, error));
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
    if (!m->events || !m->nodes) return error_no_memory(error, "the trace", (size_t)most);
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
    if (t->cuda.mega)
        return error_set(error, QP_UNSUPPORTED, "the megakernel is not traced; --exec ops is");
    (void)max_passes;
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
    const cuda_device *d = &t->engine->device;
    int kilohertz = 0;
    if (d->driver->device_attribute(&kilohertz, CLOCK_RATE, d->ordinal) == CUDA_SUCCESS)
        t->limits.flops_per_second = 1e3 * kilohertz * FLOPS_OF_CLOCK * d->n_multiprocessors;
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
    const plan *p = &t->engine->plan;
    instruction_timing *timings = t->passes[t->n_passes].timings;
    for (int node = from; node < to && *place < s->length[0]; node++) {
        const instruction *queue = schedule_queue(s, 0);
        const uint32_t number = queue[*place].node;
        if (s->nodes[number].op != p->nodes[node].op ||
            s->nodes[number].layer != p->nodes[node].layer)
            continue; /* it has nothing to do, and no place in the schedule */
        for (; *place < s->length[0] && queue[*place].node == number; ++*place) {
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
    t->cuda.began = clock_ns();
}

/* The batch's one sequence with `more` tokens more. */
static void lengthen(const qp_trace *t, trace_pass *pass, int32_t more)
{
    const int32_t page = (int32_t)t->engine->plan.options.page_size;
    trace_indices *i = &pass->indices;
    int32_t positions = (i->kv_indptr[1] - 1) * page + i->kv_last_page_len[0] + more;
    i->kv_indptr[1] = (positions + page - 1) / page;
    i->kv_last_page_len[0] = positions - (i->kv_indptr[1] - 1) * page;
    pass->sizes[SCHEDULE_PAGE_REFS] = i->kv_indptr[1];
}

/* Passes of a launch meet where the first block has the token: what is beyond is cut off, so that
 * each has its time for itself. */
static void cut(instruction_timing *timings, size_t count, uint64_t begin, uint64_t end)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t *moments[] = {&timings[i].wait, &timings[i].work, &timings[i].signal,
                               &timings[i].end};
        for (int m = 0; m < 4; m++) {
            if (*moments[m] < begin) *moments[m] = begin;
            if (*moments[m] > end) *moments[m] = end;
        }
    }
}

/* When the first block of a pass had the token; of the first pass when it began to wait. */
static uint64_t begin_of(const schedule *s, const trace_pass *pass, bool first)
{
    uint64_t least = UINT64_MAX;
    for (int w = 0; w < s->options.workers; w++) {
        const instruction_timing *t = &pass->timings[(size_t)w * (size_t)s->longest];
        uint64_t at = first ? t->wait : t->work;
        if (at < least) least = at;
    }
    return least;
}

static uint64_t end_of(const schedule *s, const trace_pass *pass)
{
    uint64_t most = 0;
    for (int w = 0; w < s->options.workers; w++) {
        const instruction_timing *queue = &pass->timings[(size_t)w * (size_t)s->longest];
        uint64_t at = queue[s->length[w] - 1].end;
        if (at > most) most = at;
    }
    return most;
}

void trace_place_passes(const schedule *s, trace_pass *passes, int n, uint64_t now)
{
    const size_t slots = (size_t)s->options.workers * (size_t)s->longest;
    for (int i = 0; i < n; i++) {
        passes[i].begin = begin_of(s, &passes[i], i == 0);
        if (i > 0) passes[i - 1].end = passes[i].begin;
    }
    passes[n - 1].end = end_of(s, &passes[n - 1]);
    const uint64_t shift = now - passes[n - 1].end;
    for (int i = 0; i < n; i++) {
        cut(passes[i].timings, slots, passes[i].begin, passes[i].end);
        passes[i].begin += shift;
        passes[i].end += shift;
        for (size_t k = 0; k < slots; k++) {
            instruction_timing *t = &passes[i].timings[k];
            *t = (instruction_timing){t->wait + shift, t->work + shift, t->signal + shift,
                                      t->end + shift};
        }
    }
}

static void add_fetching(const schedule *s, trace_pass *pass, const mega_fetching *fetching)
{
    const double blocks = s->options.workers;
    pass->room_ns = pass->memory_ns = 0;
    for (size_t i = 0; i < (size_t)s->options.workers * (size_t)s->longest; i++) {
        pass->room_ns += fetching[i].room_ns / blocks;
        pass->memory_ns += fetching[i].memory_ns / blocks;
    }
}

static qp_status take_launches(qp_trace *t, const batch *batch, int ran, mega_fetching *fetching,
                               qp_error *error)
{
    trace_pass *first = &t->passes[t->n_passes];
    const uint64_t now = clock_ns();
    int n = 0;
    for (; n < ran && trace_take_pass(t, batch); n++, t->n_passes++) {
        trace_pass *pass = &t->passes[t->n_passes];
        TRY(cuda_mega_read_timings(&t->engine->mega, t->cuda.launched + (size_t)n, pass->timings,
                                   fetching, error));
        add_fetching(t->schedule, pass, fetching);
        lengthen(t, pass, n);
    }
    if (n > 0) trace_place_passes(t->schedule, first, n, now);
    return QP_OK;
}

qp_status trace_end_launch(qp_trace *t, const batch *batch, int ran, qp_error *error)
{
    if (!t || !t->cuda.mega || t->engine->mega.n_timed == t->cuda.launched) return QP_OK;
    size_t slots = (size_t)t->schedule->options.workers * (size_t)t->schedule->longest;
    mega_fetching *fetching = malloc(slots * sizeof *fetching);
    if (!fetching) return error_no_memory(error, "the trace", slots * sizeof *fetching);
    qp_status status = take_launches(t, batch, ran, fetching, error);
    free(fetching);
    return status;
}
