/* Traces are recorded in memory taken beforehand: see trace.h, and quipu.h. */
#include "engine/trace.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/checked.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "op/bench/hardware.h"
#include "schedule/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool allocate_indices(qp_trace *t, trace_indices *out)
{
    size_t sequences = (size_t)t->engine->plan.options.max_sequences;
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

static qp_status allocate(qp_trace *t, size_t max_passes, qp_error *error)
{
    const schedule *s = t->schedule;
    size_t instructions = (size_t)s->options.workers * (size_t)s->longest, bytes;
    if (!checked_mul(instructions * sizeof(instruction_timing), max_passes, &bytes))
        return error_set(error, QP_NO_MEMORY, "a trace of %zu passes is too large: trace fewer",
                         max_passes);
    t->passes = arena_alloc(&t->memory, max_passes, sizeof *t->passes);
    t->samplings = arena_alloc(&t->memory, max_passes + 1, sizeof *t->samplings);
    if (!t->passes || !t->samplings) return error_no_memory(error, "the trace", bytes);
    bool serial = t->engine->scheduled.serial != NULL;
    if (!serial) TRY(buffer_alloc(&t->timings, bytes, "the trace", error));
    /* Touched now, so that no page is taken while the clock runs. */
    if (t->timings.bytes > 0) memset(t->timings.data, 0, bytes);
    t->max_passes = max_passes;
    for (size_t i = 0; i < max_passes; i++) {
        if (!serial)
            t->passes[i].timings = (instruction_timing *)t->timings.data + i * instructions;
        if (!allocate_indices(t, &t->passes[i].indices))
            return error_no_memory(error, "the trace", bytes);
    }
    return QP_OK;
}

/* How fast this machine reads as much as a pass does, and multiplies: the best of a few samples. */
static qp_status measure_limits(qp_trace *t, double weight_bytes, qp_error *error)
{
    enum { TIMES = 5, LEAST = 16 << 20, MOST = 1 << 30 };
    size_t bytes = weight_bytes < LEAST ? LEAST : weight_bytes > MOST ? MOST : (size_t)weight_bytes;
    while (bytes > LEAST && bytes > buffer_available() / 4)
        bytes /= 2;
    buffer memory = {0};
    hardware *hardware = NULL;
    thread_pool *alone = NULL;
    TRY(thread_pool_create(1, &alone, error));
    thread_pool *pool = t->runner ? alone : t->engine->pool;
    qp_status status = hardware_create(1, t->engine->executor.cpu_features, pool, &hardware, error);
    if (status == QP_OK) status = buffer_alloc(&memory, bytes, "memory to read", error);
    if (status == QP_OK) memset(memory.data, 1, bytes);
    for (int i = 0; i < TIMES && status == QP_OK; i++) {
        double read = hardware_read(hardware, memory.data, bytes);
        double multiply = hardware_sample(hardware, HARDWARE_FLOAT);
        t->limits.bytes_per_second = fmax(t->limits.bytes_per_second, read);
        t->limits.flops_per_second = fmax(t->limits.flops_per_second, multiply);
    }
    buffer_free(&memory);
    hardware_destroy(hardware);
    thread_pool_destroy(alone);
    return status;
}

/* Those of the file of costs, or measured now. */
static qp_status find_limits(qp_trace *t, qp_error *error)
{
    if (t->engine->device.context) return trace_cuda_limits(t, error);
    double weights = (double)model_read_bytes(t->engine->model);
    int workers = t->runner ? 1 : thread_pool_size(t->engine->pool);
    const cost_origin origin = {.workers = workers};
    cost_table *costs = malloc(sizeof *costs);
    bool found = costs && t->costs && cost_load(t->costs, &origin, costs, NULL) == QP_OK;
    if (found) {
        t->limits = costs->limits;
        t->limits.bytes_per_second = cost_read_rate(costs, weights);
    }
    free(costs);
    return found ? QP_OK : measure_limits(t, weights, error);
}

qp_status qp_trace_open(qp_engine *engine, const qp_trace_options *options, qp_trace **out,
                        qp_error *error)
{
    *out = NULL;
    if (!engine->scheduled.machine && !engine->device.context)
        return error_set(error, QP_UNSUPPORTED,
                         "a trace is of a schedule's instructions, but the engine runs operator by "
                         "operator; open it with exec threads or serial");
    if (engine->trace)
        return error_set(error, QP_INVALID, "the engine has a trace already; close that first");
    qp_trace *t = calloc(1, sizeof *t);
    if (!t) return error_no_memory(error, "the trace", sizeof *t);
    t->engine = engine;
    t->schedule = &engine->scheduled.schedule;
    t->costs = options->costs;
    qp_status status = QP_OK;
    if (engine->device.context) status = trace_cuda_open(t, options->max_passes, error);
    if (status == QP_OK) status = allocate(t, options->max_passes, error);
    if (status == QP_OK && engine->scheduled.serial)
        status = parts_create(&engine->scheduled.schedule, engine->executor.cpu_features, keep_part,
                              t, &t->runner, error);
    if (status == QP_OK) status = find_limits(t, error);
    if (status != QP_OK) {
        qp_trace_close(t);
        return status;
    }
    t->begin = clock_ns();
    *out = engine->trace = t;
    return QP_OK;
}

void qp_trace_close(qp_trace *t)
{
    if (!t) return;
    if (t->engine->trace == t) t->engine->trace = NULL;
    if (t->engine->device.context) trace_cuda_close(t);
    parts_destroy(t->runner);
    free(t->parts);
    buffer_free(&t->timings);
    arena_free(&t->memory);
    free(t);
}

trace_pass *trace_take_pass(qp_trace *t, const batch *batch)
{
    if (!t || t->n_passes == t->max_passes) return NULL;
    trace_pass *pass = &t->passes[t->n_passes];
    memcpy(pass->sizes, batch->sizes.of, sizeof pass->sizes);
    size_t ends = (size_t)pass->sizes[AXIS_SEQUENCE_ENDS] * sizeof(int32_t);
    memcpy(pass->indices.qo_indptr, batch->of[PLAN_QO_INDPTR], ends);
    memcpy(pass->indices.kv_indptr, batch->of[PLAN_KV_INDPTR], ends);
    memcpy(pass->indices.kv_last_page_len, batch->of[PLAN_KV_LAST_PAGE_LEN],
           ends - sizeof(int32_t));
    pass->first_part = t->n_parts;
    pass->begin = clock_ns();
    return pass;
}

scheduled_record trace_begin_pass(qp_trace *t, const batch *batch)
{
    const trace_pass *pass = trace_take_pass(t, batch);
    return pass ? (scheduled_record){pass->timings, t->runner} : (scheduled_record){0};
}

void trace_end_pass(qp_trace *t)
{
    if (!t || t->n_passes == t->max_passes) return;
    trace_pass *pass = &t->passes[t->n_passes++];
    pass->end = clock_ns();
    pass->n_parts = t->n_parts - pass->first_part;
}

uint64_t trace_begin_sampling(const qp_trace *t)
{
    return t ? clock_ns() : 0;
}

void trace_end_sampling(qp_trace *t, uint64_t begin)
{
    if (!t || t->n_samplings > t->max_passes) return;
    t->samplings[t->n_samplings++] = (trace_span){begin, clock_ns()};
}
