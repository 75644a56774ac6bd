/* Traces: recorded in memory taken beforehand, told afterwards. See trace.h, and quipu.h. */
#include "generate/trace.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/checked.h"
#include "base/clock.h"
#include "generate/engine.h"
#include "schedule/timeline.h"
#include "schedule/timeline_chrome.h"
#include "schedule/timeline_page.h"
#include "schedule/timeline_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What decides the cost of a pass: [sequences + 1] or [sequences] each. */
typedef struct trace_indices {
    int32_t *qo_indptr, *kv_indptr, *kv_last_page_len;
} trace_indices;

typedef struct trace_pass {
    uint64_t begin, end; /* clock_ns(); end 0: not done */
    int64_t sizes[SCHEDULE_AXES];
    trace_indices indices;
    instruction_timing *timings; /* [workers][longest] */
} trace_pass;

typedef struct trace_span {
    uint64_t begin, end;
} trace_span;

struct qp_trace {
    qp_engine *engine;
    uint64_t begin;
    trace_pass *passes;
    size_t n_passes, max_passes;
    trace_span *samplings; /* [max_passes + 1] */
    size_t n_samplings;
    arena memory;
    buffer timings; /* of all passes */
};

static bool allocate_indices(qp_trace *t, trace_indices *out)
{
    size_t sequences = (size_t)t->engine->plan.options.max_sequences;
    int32_t *memory = arena_alloc(&t->memory, 3 * (sequences + 1), sizeof *memory);
    if (!memory) return false;
    *out = (trace_indices){memory, memory + sequences + 1, memory + 2 * (sequences + 1)};
    return true;
}

static qp_status allocate(qp_trace *t, size_t max_passes, qp_error *error)
{
    const schedule *s = &t->engine->scheduled.schedule;
    size_t instructions = (size_t)s->options.workers * (size_t)s->longest, bytes;
    if (!checked_mul(instructions * sizeof(instruction_timing), max_passes, &bytes))
        return error_set(error, QP_NO_MEMORY, "a trace of %zu passes is too large", max_passes);
    t->passes = arena_alloc(&t->memory, max_passes, sizeof *t->passes);
    t->samplings = arena_alloc(&t->memory, max_passes + 1, sizeof *t->samplings);
    if (!t->passes || !t->samplings) return error_no_memory(error, "the trace", bytes);
    TRY(buffer_alloc(&t->timings, bytes, "the trace", error));
    /* Touched now, so that no page is taken while the clock runs. */
    if (bytes > 0) memset(t->timings.data, 0, bytes);
    t->max_passes = max_passes;
    for (size_t i = 0; i < max_passes; i++) {
        t->passes[i].timings = (instruction_timing *)t->timings.data + i * instructions;
        if (!allocate_indices(t, &t->passes[i].indices))
            return error_no_memory(error, "the trace", bytes);
    }
    return QP_OK;
}

qp_status qp_trace_open(qp_engine *engine, size_t max_passes, qp_trace **out, qp_error *error)
{
    *out = NULL;
    if (!engine->scheduled.machine)
        return error_set(error, QP_UNSUPPORTED,
                         "a trace is of a schedule's instructions, but the engine runs operator by "
                         "operator; open it with exec threads");
    if (engine->trace)
        return error_set(error, QP_INVALID, "the engine has a trace already; close that first");
    qp_trace *t = calloc(1, sizeof *t);
    if (!t) return error_no_memory(error, "the trace", sizeof *t);
    t->engine = engine;
    qp_status status = allocate(t, max_passes, error);
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
    buffer_free(&t->timings);
    arena_free(&t->memory);
    free(t);
}

instruction_timing *trace_begin_pass(qp_trace *t, const batch *batch)
{
    if (!t || t->n_passes == t->max_passes) return NULL;
    trace_pass *pass = &t->passes[t->n_passes];
    memcpy(pass->sizes, batch->sizes.of, sizeof pass->sizes);
    size_t ends = (size_t)pass->sizes[SCHEDULE_SEQUENCE_ENDS] * sizeof(int32_t);
    memcpy(pass->indices.qo_indptr, batch->of[PLAN_QO_INDPTR], ends);
    memcpy(pass->indices.kv_indptr, batch->of[PLAN_KV_INDPTR], ends);
    memcpy(pass->indices.kv_last_page_len, batch->of[PLAN_KV_LAST_PAGE_LEN],
           ends - sizeof(int32_t));
    pass->begin = clock_ns();
    return pass->timings;
}

void trace_end_pass(qp_trace *t)
{
    if (!t || t->n_passes == t->max_passes) return;
    t->passes[t->n_passes++].end = clock_ns();
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

/* ---- Telling ------------------------------------------------------------------------------- */

/* Positions of all sequences after the pass. */
static int64_t positions_of(const qp_trace *t, const trace_pass *pass)
{
    int64_t total = 0, page_size = t->engine->plan.options.page_size;
    for (int64_t i = 0; i < pass->sizes[SCHEDULE_SEQUENCES]; i++) {
        int64_t pages = pass->indices.kv_indptr[i + 1] - pass->indices.kv_indptr[i];
        if (pages > 0) total += (pages - 1) * page_size + pass->indices.kv_last_page_len[i];
    }
    return total;
}

static qp_status measure_pass(const qp_trace *t, size_t number, timeline_panel *out,
                              qp_error *error)
{
    const trace_pass *pass = &t->passes[number];
    const schedule *s = &t->engine->scheduled.schedule;
    void *inputs[PLAN_TENSOR_COUNT] = {
        [PLAN_QO_INDPTR] = pass->indices.qo_indptr,
        [PLAN_KV_INDPTR] = pass->indices.kv_indptr,
        [PLAN_KV_LAST_PAGE_LEN] = pass->indices.kv_last_page_len,
    };
    schedule_memory memory = {.inputs = inputs, .weights = t->engine->scheduled.weights};
    TRY(timeline_measured(s, pass->timings, pass->begin, pass->end, &memory, pass->sizes, out,
                          error));
    int64_t positions = positions_of(t, pass);
    snprintf(out->title, sizeof out->title, "pass %zu: %lld token%s, then %lld positions", number,
             (long long)out->tokens, out->tokens == 1 ? "" : "s", (long long)positions);
    return QP_OK;
}

/* A pass that brings no more than a token for each sequence generates. */
static bool is_generation(const trace_pass *pass)
{
    return pass->sizes[SCHEDULE_TOKENS] <= pass->sizes[SCHEDULE_SEQUENCES];
}

static void print_sampling(const qp_trace *t, strbuf *out)
{
    double ns = 0;
    for (size_t i = 0; i < t->n_samplings; i++)
        ns += (double)(t->samplings[i].end - t->samplings[i].begin);
    if (t->n_samplings)
        strbuf_printf(out, "\nsampling, between the passes: %.1f us a token\n",
                      ns / (double)t->n_samplings / 1e3);
}

static qp_status print_table(const qp_trace *t, const timeline *line, strbuf *out, qp_error *error)
{
    timeline_table tables[2] = {{.passes = 0}, {.passes = 0}}; /* prompt, generation */
    for (size_t i = 0; i < t->n_passes; i++) {
        timeline_panel panel = {0};
        qp_status status = measure_pass(t, i, &panel, error);
        if (status == QP_OK)
            timeline_table_add(&tables[is_generation(&t->passes[i])], line, &panel);
        timeline_panel_free(&panel);
        TRY(status);
    }
    strbuf_printf(out, "%s, %s; limits %.1f GB/s, %.1f GFLOP/s\n\n", line->title, line->about,
                  line->limits.bytes_per_second / 1e9, line->limits.flops_per_second / 1e9);
    timeline_table_print(&tables[0], line, "prompt", out);
    if (tables[0].passes && tables[1].passes) strbuf_putc(out, '\n');
    timeline_table_print(&tables[1], line, "generation", out);
    print_sampling(t, out);
    return QP_OK;
}

static qp_status print_chrome(const qp_trace *t, const timeline *line, strbuf *out, qp_error *error)
{
    timeline_chrome_begin(line, out);
    for (size_t i = 0; i < t->n_passes; i++) {
        timeline_panel panel = {0};
        qp_status status = measure_pass(t, i, &panel, error);
        if (status == QP_OK)
            timeline_chrome_panel(line, &panel, t->passes[i].begin - t->begin, out);
        timeline_panel_free(&panel);
        TRY(status);
    }
    for (size_t i = 0; i < t->n_samplings; i++)
        timeline_chrome_between("sampling", t->samplings[i].begin - t->begin,
                                t->samplings[i].end - t->begin, out);
    timeline_chrome_end(out);
    return QP_OK;
}

enum { PAGE_SLICES = 200000 }; /* a page with more takes a browser long to open */

/* Passes from the first on, as many as the page bears, and the last. */
static qp_status print_passes(const qp_trace *t, const timeline *line, int32_t in_each, strbuf *out,
                              qp_error *error)
{
    size_t most = in_each > 0 ? PAGE_SLICES / (size_t)in_each : 1;
    for (size_t i = 0; i < t->n_passes; i++) {
        if (i + 1 >= most && i + 1 < t->n_passes) continue;
        timeline_panel panel = {0};
        qp_status status = measure_pass(t, i, &panel, error);
        if (status == QP_OK) timeline_page_panel(line, &panel, i == 0, out);
        timeline_panel_free(&panel);
        TRY(status);
    }
    return QP_OK;
}

static qp_status print_page(const qp_trace *t, const timeline *line, strbuf *out, qp_error *error)
{
    const schedule *s = &t->engine->scheduled.schedule;
    schedule_prediction predicted;
    timeline_panel planned = {0};
    qp_status status = schedule_predict(s, &predicted, error);
    if (status == QP_OK) status = timeline_predicted(s, &predicted, &planned, error);
    if (status == QP_OK) {
        timeline_page_begin(line, &planned, out);
        status = print_passes(t, line, planned.count, out, error);
        timeline_page_end(out);
    }
    timeline_panel_free(&planned);
    prediction_free(&predicted);
    return status;
}

static qp_status print_form(const qp_trace *t, const timeline *line, qp_trace_form form,
                            strbuf *out, qp_error *error)
{
    switch (form) {
    case QP_TRACE_TABLE:
        return print_table(t, line, out, error);
    case QP_TRACE_CHROME:
        return print_chrome(t, line, out, error);
    case QP_TRACE_HTML:
        return print_page(t, line, out, error);
    }
    return error_set(error, QP_INVALID, "a trace has no form %d", (int)form);
}

qp_status qp_trace_print(const qp_trace *t, qp_trace_form form, char **text, size_t *length,
                         qp_error *error)
{
    *text = NULL;
    if (t->n_passes == 0)
        return error_set(error, QP_INVALID, "nothing has been traced: no pass has been run");
    timeline line;
    strbuf out = {0};
    qp_status status =
        timeline_create(&t->engine->scheduled.schedule, model_path(t->engine->model), &line, error);
    if (status == QP_OK) status = print_form(t, &line, form, &out, error);
    timeline_free(&line);
    *length = out.length;
    if (status == QP_OK && !(*text = strbuf_take(&out)))
        status = error_no_memory(error, "the trace's text", out.length);
    strbuf_free(&out);
    return status;
}
