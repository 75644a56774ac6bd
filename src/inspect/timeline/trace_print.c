/* Prints traces as sums, events and pictures: qp_trace_print() in quipu.h. */
#include "engine/engine.h"
#include "engine/trace.h"
#include "inspect/modules.h"
#include "schedule/build.h"
#include "schedule/cost.h"
#include "inspect/timeline/timeline_chrome.h"
#include "inspect/timeline/timeline_page.h"
#include "inspect/timeline/timeline_svg.h"
#include "inspect/timeline/timeline_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Positions of all sequences after the pass. */
static int64_t positions_of(const qp_trace *t, const trace_pass *pass)
{
    int64_t total = 0, page_size = t->engine->program.options.page_size;
    for (int64_t i = 0; i < pass->sizes[AXIS_SEQUENCES]; i++) {
        int64_t pages = pass->indices.kv_indptr[i + 1] - pass->indices.kv_indptr[i];
        if (pages > 0) total += (pages - 1) * page_size + pass->indices.kv_last_page_len[i];
    }
    return total;
}

/* What the tracks are, of parts of operators. */
static void name_parts(const qp_trace *t, timeline *line)
{
    const size_t used = strlen(line->about);
    if (!machine_inner_type(t->machine)->in_parts) {
        snprintf(line->about + used, sizeof line->about - used, ", in parts");
        return;
    }
    line->unit = "track";
    snprintf(line->about, sizeof line->about, "%s, operators cut in %d chunks",
             machine_inner_type(t->machine)->name, t->n_tracks);
}

static void name_device(const qp_trace *t, timeline *line)
{
    const char *device = t->engine->device.name;
    const bool whole = machine_inner_type(t->machine)->whole;
    const int gpus = t->engine->ranks.size;
    line->unit = whole ? "block" : gpus > 1 ? "GPU" : "stream";
    if (whole)
        snprintf(line->about, sizeof line->about, "%s, %d blocks on %s",
                 schedule_assignment_name(t->schedule->options.assignment), line->n_tracks, device);
    else if (gpus > 1)
        snprintf(line->about, sizeof line->about, "operator by operator on %d x %s", gpus, device);
    else
        snprintf(line->about, sizeof line->about, "operator by operator on %s", device);
}

/* Whether only the times of a pass are known, not its parts. */
static bool is_bare(const qp_trace *t, size_t number)
{
    return !t->records[number].timed;
}

static uint64_t length_of(const qp_trace *t, size_t number)
{
    return t->records[number].end - t->records[number].begin;
}

/* What ranks did, each for itself, as one panel. `panels` [n_ranks] are freed. */
static qp_status join(const timeline *line, qp_status status, timeline_panel *panels, int n,
                      timeline_panel *out, qp_error *error)
{
    if (status == QP_OK && n > 1) {
        status = timeline_join_ranks(line, panels, out, error);
    } else if (status == QP_OK) {
        *out = panels[0];
        panels[0] = (timeline_panel){0};
    }
    for (int r = 0; r < n; r++)
        timeline_panel_free(&panels[r]);
    free(panels);
    return status;
}

static qp_status measure_instructions(const qp_trace *t, const timeline *line, size_t number,
                                      const program_memory *memory, timeline_panel *out,
                                      qp_error *error)
{
    const machine_record *record = &t->records[number];
    timeline_panel *panels = calloc((size_t)t->n_ranks, sizeof *panels);
    if (!panels) return error_no_memory(error, "the timeline", sizeof *panels);
    qp_status status = QP_OK;
    for (int r = 0; status == QP_OK && r < t->n_ranks; r++)
        status =
            timeline_measured(t->of_ranks[r], record->timings + trace_places(t, r), record->begin,
                              record->end, memory, t->passes[number].sizes, &panels[r], error);
    return join(line, status, panels, t->n_ranks, out, error);
}

static qp_status measure_pass(const qp_trace *t, timeline *line, size_t number, timeline_panel *out,
                              qp_error *error)
{
    const trace_pass *pass = &t->passes[number];
    const machine_record *record = &t->records[number];
    const schedule *s = t->schedule;
    program_memory memory = {.data = {[PLAN_QO_INDPTR] = pass->indices.qo_indptr,
                                      [PLAN_KV_INDPTR] = pass->indices.kv_indptr,
                                      [PLAN_KV_LAST_PAGE_LEN] = pass->indices.kv_last_page_len}};
    if (is_bare(t, number))
        *out = (timeline_panel){.length = length_of(t, number)};
    else if (t->in_parts)
        TRY(timeline_in_parts(line, s, t->parts + pass->first_part, pass->n_parts, pass->sizes,
                              record->begin, record->end, out, error));
    else
        TRY(measure_instructions(t, line, number, &memory, out, error));
    TRY(modules_name_nodes(line, s->program, error));
    out->tokens = pass->sizes[AXIS_TOKENS];
    int64_t positions = positions_of(t, pass);
    snprintf(out->title, sizeof out->title, "pass %zu: %lld token%s, then %lld position%s", number,
             (long long)out->tokens, out->tokens == 1 ? "" : "s", (long long)positions,
             positions == 1 ? "" : "s");
    return QP_OK;
}

/* If prompt_passes is not known: a pass with at most one token for each sequence generates. */
static bool is_generation(const qp_trace *t, size_t number)
{
    const int64_t *sizes = t->passes[number].sizes;
    if (t->prompt_passes) return number >= t->prompt_passes;
    return sizes[AXIS_TOKENS] <= sizes[AXIS_SEQUENCES];
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

/* Prints what a GPU's megakernel leaves to the machine `cuda`, and what its producer warps waited
 * for. */
static void print_launches(const qp_trace *t, strbuf *out)
{
    double ns = 0, tokens = 0, room = 0, memory = 0;
    size_t bare = 0;
    for (size_t i = 0; i < t->n_passes; i++) {
        const bool is = is_bare(t, i);
        bare += is;
        tokens += is ? (double)t->passes[i].sizes[AXIS_TOKENS] : 0;
        ns += is ? (double)length_of(t, i) : 0;
        room += t->records[i].room_ns;
        memory += t->records[i].memory_ns;
    }
    double timed = (double)(t->n_passes - bare);
    if (timed > 0)
        strbuf_printf(
            out,
            "\nfetching weights, at the same time: waited %.1f us a pass for memory, %.1f us "
            "for room in the ring\n",
            memory / timed / 1e3, room / timed / 1e3);
    if (bare > 0)
        strbuf_printf(out,
                      "\nprompt: %zu pass%s of %.4g tokens, %.3f ms, operator by operator: --exec "
                      "cuda tells more\n",
                      bare, bare == 1 ? "" : "es", tokens / (double)bare, ns / (double)bare / 1e6);
}

static qp_status print_table(const qp_trace *t, timeline *line, strbuf *out, qp_error *error)
{
    timeline_table tables[2] = {{.passes = 0}, {.passes = 0}}; /* prompt, generation */
    for (size_t i = 0; i < t->n_passes; i++) {
        timeline_panel panel = {0};
        if (is_bare(t, i)) continue;
        qp_status status = measure_pass(t, line, i, &panel, error);
        if (status == QP_OK) timeline_table_add(&tables[is_generation(t, i)], line, &panel);
        timeline_panel_free(&panel);
        TRY(status);
    }
    strbuf_printf(out, "%s, %s; limits %.1f GB/s of memory, ", line->title, line->about,
                  line->limits.bytes_per_second / 1e9);
    if (line->near_limit > 0) strbuf_printf(out, "%.1f GB/s of caches, ", line->near_limit / 1e9);
    strbuf_printf(out, "%.1f GFLOP/s\n\n", line->limits.flops_per_second / 1e9);
    timeline_table_print(&tables[0], line, "prompt", out);
    if (tables[0].passes && tables[1].passes) strbuf_putc(out, '\n');
    timeline_table_print(&tables[1], line, "generation", out);
    if (machine_inner_type(t->machine)->whole) print_launches(t, out);
    print_sampling(t, out);
    return QP_OK;
}

/* Prints what the host did after the passes. A pass of ranks ends when the last of them has ended,
 * by clocks that differ by some nanoseconds, so sampling is shown to begin no sooner: slices of a
 * track do not overlap. ends: [n_passes] */
static void print_samplings(const qp_trace *t, const uint64_t *ends, strbuf *out)
{
    size_t pass = 0;
    const long long size = (long long)t->engine->program.config.vocab_size;
    char arguments[160];
    snprintf(arguments, sizeof arguments,
             "\"step\":\"sample\",\"inputs\":\"1x%lld\",\"outputs\":\"1\",\"elements\":%lld,"
             "\"type\":\"F32\",\"bytes\":%lld",
             size, size, 4 * size);
    for (size_t i = 0; i < t->n_samplings; i++) {
        uint64_t begin = t->samplings[i].begin - t->begin, end = t->samplings[i].end - t->begin;
        while (pass < t->n_passes && t->records[pass].begin <= t->samplings[i].begin)
            pass++;
        if (pass > 0 && begin < ends[pass - 1]) begin = ends[pass - 1];
        timeline_chrome_between(t->in_parts ? "Sample" : "sampling", begin,
                                end < begin ? begin : end, arguments, out);
    }
}

static qp_status print_chrome(const qp_trace *t, timeline *line, strbuf *out, qp_error *error)
{
    uint64_t *ends = calloc(t->n_passes + 1, sizeof *ends);
    if (!ends) return error_no_memory(error, "the trace", t->n_passes * sizeof *ends);
    qp_status status = QP_OK;
    timeline_chrome_begin(line, out);
    for (size_t i = 0; i < t->n_passes && status == QP_OK; i++) {
        timeline_panel panel = {0};
        status = measure_pass(t, line, i, &panel, error);
        const uint64_t begin = t->records[i].begin - t->begin;
        ends[i] = begin + panel.length;
        if (status == QP_OK) timeline_chrome_panel(line, &panel, begin, out);
        timeline_panel_free(&panel);
    }
    if (status == QP_OK) print_samplings(t, ends, out);
    free(ends);
    TRY(status);
    timeline_chrome_end(out);
    return QP_OK;
}

enum { PAGE_SLICES = 200000 }; /* a page with more passes takes a browser long to open */

/* The passes on the page: as many as fit, from the first on, and the last. */
static qp_status print_passes(const qp_trace *t, timeline *line, int32_t in_each, strbuf *out,
                              qp_error *error)
{
    size_t most = in_each > 0 ? PAGE_SLICES / (size_t)in_each : 1;
    bool first = true;
    for (size_t i = 0; i < t->n_passes; i++) {
        if ((i + 1 >= most && i + 1 < t->n_passes) || is_bare(t, i)) continue;
        timeline_panel panel = {0};
        qp_status status = measure_pass(t, line, i, &panel, error);
        if (status == QP_OK) timeline_page_panel(line, &panel, first, out);
        timeline_panel_free(&panel);
        TRY(status);
        first = false;
    }
    return QP_OK;
}

/* The schedule of a rank, with the costs of the last pass: measured on this machine if there are
 * measurements, for the same numbers of tokens and positions. */
static qp_status plan_again(const qp_trace *t, int rank, schedule *out, qp_error *error)
{
    const qp_engine *e = t->engine;
    schedule_options options = t->of_ranks[rank]->options;
    const bool gpu = e->device.context != NULL;
    const cost_origin origin = {gpu ? "cuda" : NULL, gpu ? e->device.name : NULL, options.workers};
    cost_table *costs = t->costs ? malloc(sizeof *costs) : NULL;
    options.profile = t->limits;
    options.profile.bytes_per_second /= t->n_ranks;
    options.profile.flops_per_second /= t->n_ranks;
    options.context = positions_of(t, &t->passes[t->n_passes - 1]);
    if (costs && cost_load(t->costs, &origin, costs, NULL) == QP_OK) options.costs = costs;
    qp_status status = t->n_ranks > 1
                           ? schedule_build(t->of_ranks[rank]->program, &options, out, error)
                           : machine_predict(t->machine, &options, out, error);
    free(costs);
    return status;
}

/* The schedules [n_ranks] as predicted for the last pass; timeline_panel_free() the result. */
static qp_status plan_panel(const qp_trace *t, const timeline *line, schedule *plans,
                            timeline_panel *out, qp_error *error)
{
    timeline_panel *panels = calloc((size_t)t->n_ranks, sizeof *panels);
    if (!panels) return error_no_memory(error, "the timeline", sizeof *panels);
    qp_status status = QP_OK;
    for (int r = 0; status == QP_OK && r < t->n_ranks; r++) {
        schedule_prediction predicted = {0};
        status = plan_again(t, r, &plans[r], error);
        if (status == QP_OK) status = schedule_predict(&plans[r], &predicted, error);
        if (status == QP_OK) status = timeline_predicted(&plans[r], &predicted, &panels[r], error);
        prediction_free(&predicted);
    }
    return join(line, status, panels, t->n_ranks, out, error);
}

static void free_plans(const qp_trace *t, schedule *plans)
{
    for (int r = 0; plans && r < t->n_ranks; r++)
        schedule_free(&plans[r]);
    free(plans);
}

/* Adds the nodes of all parts. */
static qp_status find_parts(const qp_trace *t, timeline *line, qp_error *error)
{
    for (size_t i = 0; i < t->n_passes; i++) {
        timeline_panel panel = {0};
        qp_status status = measure_pass(t, line, i, &panel, error);
        timeline_panel_free(&panel);
        TRY(status);
    }
    return QP_OK;
}

static qp_status print_page(const qp_trace *t, timeline *line, strbuf *out, qp_error *error)
{
    schedule *plans = calloc((size_t)t->n_ranks, sizeof *plans);
    timeline_panel planned = {0};
    if (!plans) return error_no_memory(error, "the page", sizeof *plans);
    /* Nodes of parts are listed with the parts, before them. */
    qp_status status =
        t->in_parts ? find_parts(t, line, error) : plan_panel(t, line, plans, &planned, error);
    if (status == QP_OK) {
        int32_t in_each = t->in_parts ? (int32_t)t->passes[0].n_parts : planned.count;
        timeline_page_begin(line, t->in_parts ? NULL : &planned, out);
        status = print_passes(t, line, in_each, out, error);
        timeline_page_end(out);
    }
    timeline_panel_free(&planned);
    free_plans(t, plans);
    return status;
}

static int by_length(const void *a, const void *b)
{
    const machine_record *const *x = a, *const *y = b;
    uint64_t p = (*x)->end - (*x)->begin, q = (*y)->end - (*y)->begin;
    return (p > q) - (p < q);
}

/* Of the passes with the fewest tokens, one whose time is typical: the median. */
static size_t usual_pass(const qp_trace *t, const machine_record **memory)
{
    int64_t least = INT64_MAX;
    size_t n = 0;
    for (size_t i = 0; i < t->n_passes; i++) {
        if (!is_bare(t, i) && t->passes[i].sizes[AXIS_TOKENS] < least)
            least = t->passes[i].sizes[AXIS_TOKENS];
    }
    for (size_t i = 0; i < t->n_passes; i++) {
        if (!is_bare(t, i) && t->passes[i].sizes[AXIS_TOKENS] == least)
            memory[n++] = &t->records[i];
    }
    qsort(memory, n, sizeof *memory, by_length);
    return (size_t)(memory[n / 2] - t->records);
}

static qp_status print_svg(const qp_trace *t, timeline *line, strbuf *out, qp_error *error)
{
    timeline_panel planned = {0}, measured = {0};
    schedule *plans = calloc((size_t)t->n_ranks, sizeof *plans);
    const machine_record **memory = calloc(t->n_passes, sizeof *memory);
    qp_status status = plans && memory ? QP_OK : error_no_memory(error, "the picture", t->n_passes);
    if (status == QP_OK && !t->in_parts) status = plan_panel(t, line, plans, &planned, error);
    if (status == QP_OK) status = measure_pass(t, line, usual_pass(t, memory), &measured, error);
    const timeline_panel *panels[] = {&planned, &measured};
    int skip = t->in_parts ? 1 : 0;
    if (status == QP_OK) timeline_svg_print(line, panels + skip, 2 - skip, out);
    timeline_panel_free(&planned);
    timeline_panel_free(&measured);
    free_plans(t, plans);
    free(memory);
    return status;
}

static bool all_bare(const qp_trace *t)
{
    for (size_t i = 0; i < t->n_passes; i++) {
        if (!is_bare(t, i)) return false;
    }
    return true;
}

/* The limits are at least what passes have reached. Data that stay in a CPU's caches come no slower
 * than from memory. */
static qp_status raise_limits(const qp_trace *t, timeline *line, qp_error *error)
{
    line->limits = t->limits;
    line->near_limit = machine_inner_type(t->machine)->on_gpu ? 0 : t->limits.bytes_per_second;
    for (size_t i = 0; i < t->n_passes; i++) {
        timeline_panel panel = {0};
        timeline_table table = {.passes = 0};
        if (is_bare(t, i)) continue;
        qp_status status = measure_pass(t, line, i, &panel, error);
        if (status == QP_OK) timeline_table_add(&table, line, &panel);
        timeline_panel_free(&panel);
        TRY(status);
        timeline_table_raise(&table, line);
    }
    return QP_OK;
}

/* Times of an instruction from the beginning of its pass; -1: there are none. */
static void put_timing(const machine_record *record, const instruction_timing *timing, strbuf *out)
{
    const uint64_t times[] = {timing->wait, timing->work, timing->signal, timing->end};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        const int64_t since = times[i] ? (int64_t)(times[i] - record->begin) : -1;
        strbuf_append(out, &since, sizeof since);
    }
}

/* See QP_TRACE_TIMINGS. */
static qp_status print_timings(const qp_trace *t, strbuf *out, qp_error *error)
{
    const instruction_timing none = {0};
    const size_t places = trace_places(t, 1);
    if (t->in_parts || t->n_ranks > 1)
        return error_set(
            error, QP_UNSUPPORTED,
            "times of instructions are those of one rank, and of a trace without parts");
    for (size_t pass = 0; pass < t->n_passes; pass++)
        for (size_t i = 0; i < places; i++) {
            const machine_record *record = &t->records[pass];
            const bool timed = record->timed && record->timings;
            put_timing(record, timed ? &record->timings[i] : &none, out);
        }
    return QP_OK;
}

static qp_status print_form(const qp_trace *t, timeline *line, qp_trace_form form, strbuf *out,
                            qp_error *error)
{
    switch (form) {
    case QP_TRACE_TABLE:
        return print_table(t, line, out, error);
    case QP_TRACE_CHROME:
        return print_chrome(t, line, out, error);
    case QP_TRACE_SVG:
        return print_svg(t, line, out, error);
    case QP_TRACE_HTML:
        return print_page(t, line, out, error);
    case QP_TRACE_TIMINGS:
        return print_timings(t, out, error);
    }
    return error_set(error, QP_INVALID, "a trace has no format %d", (int)form);
}

static qp_status print_trace(const qp_trace *t, qp_trace_form form, char **text, size_t *length,
                             qp_error *error)
{
    if (t->n_passes == 0)
        return error_set(error, QP_INVALID, "nothing has been traced: no pass has been run");
    if (all_bare(t))
        return error_set(error, QP_INVALID,
                         "nothing has been traced: no token came back to the "
                         "megakernel; generate 2 or more");
    if (t->lost) return error_no_memory(error, "the trace", t->n_parts * sizeof *t->parts);
    timeline line;
    strbuf out = {0};
    qp_status status = timeline_create(t->schedule, model_path(t->engine->model), &line, error);
    if (status == QP_OK && t->n_ranks > 1) timeline_take_ranks(&line, t->n_ranks);
    if (status == QP_OK && t->in_parts) {
        name_parts(t, &line);
        const bool one = machine_inner_type(t->machine)->in_parts && t->engine->ranks.size == 1;
        const int at_once = one ? 1 : t->n_tracks;
        status = timeline_take_parts(&line, t->schedule, t->n_tracks, at_once, error);
    }
    if (status == QP_OK) status = modules_name_nodes(&line, t->schedule->program, error);
    if (t->engine->device.context) name_device(t, &line);
    if (status == QP_OK) status = raise_limits(t, &line, error);
    if (status == QP_OK) status = print_form(t, &line, form, &out, error);
    timeline_free(&line);
    *length = out.length;
    if (status == QP_OK && !(*text = strbuf_take(&out)))
        status = error_no_memory(error, "the trace's text", out.length);
    strbuf_free(&out);
    return status;
}

qp_status qp_trace_print(const qp_trace *t, qp_trace_form form, char **text, size_t *length,
                         qp_error *error)
{
    qp_engine *e = t->engine;
    *text = NULL;
    /* Nothing writes to a full trace, so the engine may run meanwhile. */
    if (atomic_load(&t->full) && !engine_is_closing(e))
        return print_trace(t, form, text, length, error);
    TRY(engine_enter_within(e, error));
    const qp_status status = print_trace(t, form, text, length, error);
    engine_leave(e);
    return status;
}
