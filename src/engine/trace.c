/* Traces are recorded in memory taken beforehand: see trace.h, and quipu.h. */
#include "engine/trace.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/sized.h"
#include "engine/engine.h"
#include "schedule/cost.h"

#include <stdlib.h>
#include <string.h>

static bool allocate_indices(qp_trace *t, trace_indices *out)
{
    size_t sequences = (size_t)t->engine->program.options.max_sequences;
    int32_t *memory = arena_alloc(&t->memory, 3 * (sequences + 1), sizeof *memory);
    if (!memory) return false;
    *out = (trace_indices){memory, memory + sequences + 1, memory + 2 * (sequences + 1)};
    return true;
}

static void keep_part(void *context, const timeline_part *part)
{
    qp_trace *t = context;
    if (t->n_parts == t->parts_capacity) {
        size_t capacity = t->parts_capacity ? 2 * t->parts_capacity : 4096;
        timeline_part *larger = realloc(t->parts, capacity * sizeof *larger);
        if (!larger) {
            t->lost = true;
            return;
        }
        t->parts = larger;
        t->parts_capacity = capacity;
    }
    t->parts[t->n_parts++] = *part;
}

size_t trace_places(const qp_trace *t, int ranks)
{
    size_t places = 0;
    for (int r = 0; r < ranks; r++)
        places += (size_t)t->of_ranks[r]->options.workers * (size_t)t->of_ranks[r]->longest;
    return places;
}

static qp_status find_schedules(qp_trace *t, qp_error *error)
{
    while (machine_schedule_of_rank(t->machine, t->n_ranks))
        t->n_ranks++;
    t->of_ranks = arena_alloc(&t->memory, (size_t)t->n_ranks + 1, sizeof *t->of_ranks);
    if (!t->of_ranks) return error_no_memory(error, "the trace", sizeof *t->of_ranks);
    for (int r = 0; r < t->n_ranks; r++)
        t->of_ranks[r] = machine_schedule_of_rank(t->machine, r);
    t->schedule = t->of_ranks[0];
    return QP_OK;
}

static qp_status allocate(qp_trace *t, size_t max_passes, qp_error *error)
{
    const size_t instructions = trace_places(t, t->n_ranks);
    size_t bytes;
    if (!checked_mul(instructions * sizeof(instruction_timing), max_passes, &bytes))
        return error_set(error, QP_NO_MEMORY, "a trace of %zu passes is too large: trace fewer",
                         max_passes);
    t->passes = arena_alloc(&t->memory, max_passes, sizeof *t->passes);
    t->records = arena_alloc(&t->memory, max_passes, sizeof *t->records);
    t->samplings = arena_alloc(&t->memory, max_passes + 1, sizeof *t->samplings);
    if (!t->passes || !t->records || !t->samplings)
        return error_no_memory(error, "the trace", bytes);
    if (!machine_inner_type(t->machine)->in_parts)
        TRY(buffer_alloc(&t->timings, bytes, "the trace", error));
    /* Touched now, so that no page is taken while the clock runs. */
    if (t->timings.bytes > 0) memset(t->timings.data, 0, bytes);
    t->max_passes = max_passes;
    for (size_t i = 0; i < max_passes; i++)
        if (!allocate_indices(t, &t->passes[i].indices))
            return error_no_memory(error, "the trace", bytes);
    return QP_OK;
}

/* Measured for the first trace of the engine. */
static qp_status measure_limits(qp_trace *t, qp_error *error)
{
    qp_engine *e = t->engine;
    if (e->limits.bytes_per_second <= 0) TRY(machine_limits(t->machine, &e->limits, error));
    t->limits = e->limits;
    return QP_OK;
}

/* Those of the file of costs, or measured. */
static qp_status find_limits(qp_trace *t, qp_error *error)
{
    double weights = (double)t->engine->info.read_bytes;
    const bool alone = machine_inner_type(t->machine)->in_parts; /* one operator after the other */
    const cost_origin origin = {.workers = alone ? 1 : t->schedule->options.workers};
    if (machine_inner_type(t->machine)->on_gpu) return measure_limits(t, error);
    cost_table *costs = malloc(sizeof *costs);
    bool found =
        costs && t->costs && t->n_ranks == 1 && cost_load(t->costs, &origin, costs, NULL) == QP_OK;
    if (found) {
        t->limits = costs->limits;
        t->limits.bytes_per_second = cost_read_rate(costs, weights);
    }
    free(costs);
    return found ? QP_OK : measure_limits(t, error);
}

enum { USUAL_TRACKS = 4, MOST_TRACKS = 64 };

static qp_status check_options(const machine *m, const qp_trace_options *o, qp_error *error)
{
    if (o->tracks < 0 || o->tracks > MOST_TRACKS)
        return error_set(error, QP_INVALID, "a trace has 1 to %d tracks, not %d", MOST_TRACKS,
                         o->tracks);
    if (o->parts && machine_inner_type(m)->on_gpu)
        return error_set(error, QP_UNSUPPORTED,
                         "a GPU's operators are not run in parts; trace with --device cpu");
    return QP_OK;
}

static int count_tracks(const qp_trace *t, const qp_trace_options *o)
{
    if (machine_inner_type(t->machine)->on_gpu) return t->engine->ranks.size;
    if (!machine_inner_type(t->machine)->in_parts) return t->schedule->options.workers;
    return o->tracks ? o->tracks : USUAL_TRACKS;
}

static qp_status open(qp_trace *t, const qp_trace_options *o, qp_error *error)
{
    TRY(check_options(t->machine, o, error));
    t->in_parts = machine_inner_type(t->machine)->in_parts || o->parts;
    const machine_timing timing = {.max_passes = o->max_passes,
                                   .sink = t->in_parts ? keep_part : NULL,
                                   .context = t,
                                   .n_tracks = o->tracks ? o->tracks : USUAL_TRACKS};
    TRY(machine_time(t->machine, &timing, error));
    TRY(find_schedules(t, error));
    t->n_tracks = count_tracks(t, o);
    TRY(allocate(t, o->max_passes, error));
    return find_limits(t, error);
}

void trace_stop(qp_trace *t)
{
    if (t->engine->owner.closed) return;
    if (t->engine->trace == t) t->engine->trace = NULL;
    machine_time(t->machine, NULL, NULL);
}

static void free_trace(engine_object *object)
{
    qp_trace *t = (qp_trace *)object;
    trace_stop(t);
    free(t->parts);
    buffer_free(&t->timings);
    arena_free(&t->memory);
    free(t);
}

static qp_status open_trace(qp_engine *engine, const qp_trace_options *given, qp_trace **out,
                            qp_error *error)
{
    qp_trace_options options;
    TRY(SIZED_READ(qp_trace_options, given, &options, error));
    if (engine->trace)
        return error_set(error, QP_INVALID, "the engine has a trace already; close that first");
    if (engine->observer.receive)
        return error_set(
            error, QP_INVALID,
            "an engine that hands out tensors (on_tensor) stops between steps, and has "
            "no trace");
    step_drop(engine);
    qp_trace *t = calloc(1, sizeof *t);
    if (!t) return error_no_memory(error, "the trace", sizeof *t);
    engine_add_object(engine, &t->object, free_trace);
    t->engine = engine;
    t->machine = engine_machine(engine, 0);
    t->costs = options.costs;
    t->prompt_passes = options.prompt_passes;
    qp_status status = open(t, &options, error);
    if (status != QP_OK) {
        qp_trace_close(t);
        return status;
    }
    t->begin = clock_ns();
    *out = engine->trace = t;
    return QP_OK;
}

qp_status qp_trace_open(qp_engine *engine, const qp_trace_options *options, qp_trace **out,
                        qp_error *error)
{
    *out = NULL;
    TRY(engine_enter(engine, error));
    const qp_status status = open_trace(engine, options, out, error);
    engine_leave(engine);
    return status;
}

void qp_trace_close(qp_trace *t)
{
    if (t) engine_close_object(t->engine, &t->object);
}

/* The sizes and indices of the pass that comes `later` passes after that of the batch. */
static void take_batch(const qp_trace *t, const batch *b, int later, trace_pass *pass)
{
    const int32_t page = (int32_t)t->engine->program.options.page_size;
    const int32_t *ends = batch_i32(b, PLAN_QO_INDPTR),
                  *positions = batch_i32(b, PLAN_POSITION_IDS);
    const int64_t n = b->sizes.of[AXIS_SEQUENCES];
    trace_indices *x = &pass->indices;
    memcpy(pass->sizes, b->sizes.of, sizeof pass->sizes);
    memcpy(x->qo_indptr, ends, (size_t)(n + 1) * sizeof *ends);
    x->kv_indptr[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t length = positions[ends[i + 1] - 1] + 1 + later;
        int32_t pages = (length + page - 1) / page;
        x->kv_indptr[i + 1] = x->kv_indptr[i] + pages;
        x->kv_last_page_len[i] = length - (pages - 1) * page;
    }
    pass->sizes[AXIS_PAGE_REFS] = x->kv_indptr[n];
}

void trace_begin_run(qp_trace *t, const machine *machine, machine_request *request)
{
    if (!t) return;
    const size_t room = t->max_passes - t->n_passes;
    const size_t passes = request->passes > 0 ? (size_t)request->passes : 1;
    const size_t instructions = trace_places(t, t->n_ranks);
    instruction_timing *timings = machine == t->machine ? t->timings.data : NULL;
    request->records = t->records + t->n_passes;
    request->n_records = (int)(passes < room ? passes : room);
    for (int i = 0; i < request->n_records; i++) {
        const size_t at = t->n_passes + (size_t)i;
        t->records[at] = (machine_record){.timings = timings ? timings + at * instructions : NULL};
        take_batch(t, request->batch, i, &t->passes[at]);
        t->passes[at].first_part = t->n_parts;
    }
}

void trace_end_run(qp_trace *t, const machine_request *request)
{
    for (int i = 0; t && i < request->n_records && request->records[i].end; i++) {
        const machine_record *record = &request->records[i];
        trace_pass *pass = &t->passes[t->n_passes++];
        pass->n_parts = t->n_parts - pass->first_part;
        if (record->chosen)
            t->samplings[t->n_samplings++] = (trace_span){record->end, record->chosen};
    }
    if (t && t->n_passes == t->max_passes) atomic_store(&t->full, true);
}
