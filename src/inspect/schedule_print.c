/* Schedules for people: a summary, a listing as SQLite lists a program, JSON. See
 * schedule_print.h. */
#include "inspect/schedule_print.h"

#include "base/json.h"
#include "base/output.h"
#include "base/threads.h"
#include "inspect/hosts.h"
#include "inspect/schedule_dag.h"
#include "inspect/timeline/timeline_page.h"
#include "lower/lower.h"
#include "schedule/build.h"
#include "schedule/cost.h"
#include "schedule/instruction_text.h"
#include "schedule/predict.h"
#include "schedule/ranks.h"
#include "schedule/skip.h"
#include "schedule/verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_MOST_CONTEXT = 8192 };

/* Everything that there is to print. */
typedef struct report {
    const schedule_print_options *options;
    program program;
    schedule schedule;
    schedule_prediction predicted;
    int64_t counts[OP_COUNT + 1]; /* instructions by opcode, noops last */
    double costs[OP_COUNT + 1];   /* ns */
    int64_t total;
    int name_width;    /* of the opcodes' column */
    cost_table *table; /* measured; NULL: guesses */
    bool has_made;     /* the schedule is from a file, and `made` is what would be */
    schedule made;     /* built now by its options */
    schedule_prediction made_predicted;
} report;

static void count(report *r)
{
    const schedule *s = &r->schedule;
    for (int w = 0; w < s->options.workers; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            const instruction *in = schedule_queue(s, w) + i;
            r->counts[in->opcode]++;
            r->costs[in->opcode] += in->cost_ns;
            r->total++;
        }
    }
    r->name_width = 14;
    for (int op = 0; op <= OP_COUNT; op++) {
        int width = (int)strlen(instruction_name((uint16_t)op));
        if (r->counts[op] && width > r->name_width) r->name_width = width;
    }
}

static bool is_given(const schedule_print_options *o)
{
    return o->bytes_per_second > 0 || o->flops_per_second > 0 || o->signal_ns > 0;
}

/* Where the costs come from. */
static const char *origin_of(const report *r)
{
    const bool many = r->schedule.options.workers > threads_available();
    if (r->table) return "measured, operator by operator";
    if (is_given(r->options)) return "as given";
    return many ? "guessed for a small CPU, not for so many workers (give --bandwidth, --gflops)"
                : "guessed (measure with --measure)";
}

/* What the instructions of the last layer wait for: all of a node's instructions, or some. */
typedef struct dependencies {
    int full, partial;
} dependencies;

static void mark_waits(const instruction *in, int layer, int *waited)
{
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        if (in->waits[w].counter && in->layer == layer && !(in->flags >> w & 1))
            waited[in->waits[w].counter] = 1;
    }
}

static dependencies count_dependencies(const schedule *s)
{
    int layer = -1;
    int *of_node = calloc((size_t)s->n_nodes + 1, sizeof *of_node);
    int *waited = calloc((size_t)s->n_counters, sizeof *waited);
    int *signaller = calloc((size_t)s->n_counters, sizeof *signaller); /* node + 1; 0: a noop */
    dependencies found = {0};
    bool enough = of_node && waited && signaller;
    for (int i = 0; i < s->n_nodes; i++)
        layer = s->program->nodes[i].layer > layer ? (int)s->program->nodes[i].layer : layer;
    for (int w = 0; enough && w < s->options.workers; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            const instruction *in = schedule_queue(s, w) + i;
            mark_waits(in, layer, waited);
            if (in->opcode == INSTRUCTION_NOOP) continue;
            of_node[in->node]++;
            signaller[in->signal] = (int)in->node + 1;
        }
    }
    for (int c = 1; enough && c < s->n_counters; c++) {
        if (!waited[c]) continue;
        bool all = signaller[c] && s->per_pass[c] == (uint32_t)of_node[signaller[c] - 1];
        all ? found.full++ : found.partial++;
    }
    free(of_node);
    free(waited);
    free(signaller);
    return found;
}

/* Whether two instructions do the same at the same place; what they cost is an estimate. */
static bool same_instruction(const instruction *a, const instruction *b)
{
    instruction x = *a, y = *b;
    x.cost_ns = y.cost_ns = 0;
    return memcmp(&x, &y, sizeof x) == 0;
}

/* How many places of the queues have another instruction in the file's schedule than in the one
 * that its options make now. */
static int count_differences(const report *r)
{
    const schedule *a = &r->schedule, *b = &r->made;
    int count = 0;
    for (int w = 0; w < a->options.workers; w++) {
        int most = a->length[w] > b->length[w] ? a->length[w] : b->length[w];
        for (int i = 0; i < most; i++) {
            bool both = i < a->length[w] && i < b->length[w];
            if (!both || !same_instruction(schedule_queue(a, w) + i, schedule_queue(b, w) + i))
                count++;
        }
    }
    return count;
}

static void print_summary(const report *r, strbuf *out)
{
    const schedule *s = &r->schedule;
    const int width = r->name_width;
    strbuf_printf(
        out, "%s, %s, %d workers: %" PRId64 " instructions, longest queue %d, %d counters\n",
        schedule_setting_name(s->options.setting), schedule_assignment_name(s->options.assignment),
        s->options.workers, r->total, s->longest, s->n_counters - 1);
    strbuf_printf(out, "\n%-*s %12s %12s %7s\n", width, "opcode", "instructions", "work us",
                  "share");
    double all = 0;
    for (int op = 0; op <= OP_COUNT; op++)
        all += r->costs[op];
    for (int op = 0; op <= OP_COUNT; op++) {
        if (r->counts[op])
            strbuf_printf(out, "%-*s %12" PRId64 " %12.1f %6.1f%%\n", width,
                          instruction_name((uint16_t)op), r->counts[op], r->costs[op] / 1e3,
                          all > 0 ? 100 * r->costs[op] / all : 0);
    }
    strbuf_printf(out,
                  "\n%-*s %12.1f us for %" PRId64 " token%s at %" PRId64 " positions\n"
                  "%-*s %12.1f us of dependencies alone\n"
                  "%-*s %12.3f busiest worker over the mean\n",
                  width, "predicted", r->predicted.total / 1e3, s->options.tokens,
                  s->options.tokens == 1 ? "" : "s", s->options.context, width, "critical path",
                  r->predicted.critical_path / 1e3, width, "balance",
                  prediction_balance(s, &r->predicted));
    if (s->program->options.ranks > 1)
        strbuf_printf(out, "%-*s %12d of %d; exchanges with others are predicted as copies\n",
                      width, "rank", s->program->options.rank, s->program->options.ranks);
    dependencies waits = count_dependencies(s);
    strbuf_printf(out, "%-*s %12d a layer on all of a step, %d on a part of one\n", width,
                  "dependencies", waits.full, waits.partial);
    strbuf_printf(out, "%-*s %12.1f GB/s, %.1f GFLOP/s, %.0f ns a signal, %s\n", width, "machine",
                  s->options.profile.bytes_per_second / 1e9,
                  s->options.profile.flops_per_second / 1e9, s->options.profile.signal_ns,
                  origin_of(r));
    strbuf_printf(out, "%-*s %016" PRIx64 "\n", width, "fingerprint", s->program->form_fingerprint);
    if (!r->has_made) return;
    strbuf_printf(out,
                  "%-*s %12.1f us predicted of what these options make now: %d of its %" PRId64
                  " instructions differ\n",
                  width, "compared", r->made_predicted.total / 1e3, count_differences(r), r->total);
}

/* Prints a text padded to a column's width, and clears it for the next. */
static void print_column(strbuf *text, int width, strbuf *out)
{
    strbuf_printf(out, "%-*s ", width, strbuf_text(text));
    strbuf_clear(text);
}

static void print_instruction(const report *r, int worker, int at, strbuf *text, strbuf *out)
{
    const schedule *s = &r->schedule;
    const instruction *in = schedule_queue(s, worker) + at;
    strbuf_printf(out, "%5d %9.1f %8.1f %-*s ", at,
                  r->predicted.begin[(size_t)worker * (size_t)s->longest + (size_t)at] / 1e3,
                  in->cost_ns / 1e3, r->name_width, instruction_name(in->opcode));
    instruction_print_slice(in, text);
    print_column(text, 20, out);
    instruction_print_waits(in, text);
    print_column(text, 20, out);
    if (in->signal) strbuf_printf(text, "c%u", in->signal);
    print_column(text, 6, out);
    const program_node *node = &s->program->nodes[in->node];
    strbuf_puts(out, node->name);
    if (in->layer >= 0) strbuf_printf(out, " %d", in->layer);
    instruction_print_operands(s, in, out);
    strbuf_putc(out, '\n');
}

static void print_list(const report *r, strbuf *out)
{
    const schedule *s = &r->schedule;
    strbuf text = {0};
    for (int w = 0; w < s->options.workers; w++) {
        strbuf_printf(out, "\nworker %d\n%5s %9s %8s %-*s %-20s %-20s %-6s %s\n", w, "addr",
                      "begin us", "cost us", r->name_width, "opcode", "slice", "waits", "signal",
                      "step, layer, operands");
        for (int i = 0; i < s->length[w]; i++)
            print_instruction(r, w, i, &text, out);
    }
    strbuf_free(&text);
}

static cJSON *instruction_json(const report *r, int worker, int at)
{
    const schedule *s = &r->schedule;
    const instruction *in = schedule_queue(s, worker) + at;
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "opcode", instruction_name(in->opcode));
    cJSON_AddStringToObject(item, "step", s->program->nodes[in->node].name);
    cJSON_AddNumberToObject(item, "layer", in->layer);
    schedule_slice_json(in, item);
    cJSON *waits = cJSON_AddArrayToObject(item, "waits");
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        if (in->waits[w].counter == 0) continue;
        const int wait[] = {(int)in->waits[w].counter, (int)in->waits[w].needed,
                            in->flags >> w & 1};
        cJSON_AddItemToArray(waits, cJSON_CreateIntArray(wait, 3));
    }
    cJSON_AddNumberToObject(item, "signal", in->signal);
    cJSON_AddNumberToObject(item, "cost_ns", in->cost_ns);
    size_t place = (size_t)worker * (size_t)s->longest + (size_t)at;
    cJSON_AddNumberToObject(item, "begin_ns", r->predicted.begin[place]);
    cJSON_AddNumberToObject(item, "end_ns", r->predicted.end[place]);
    return item;
}

static qp_status print_json(const report *r, strbuf *out, qp_error *error)
{
    const schedule *s = &r->schedule;
    char fingerprint[17];
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, s->program->form_fingerprint);
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "setting", schedule_setting_name(s->options.setting));
    cJSON_AddStringToObject(root, "assign", schedule_assignment_name(s->options.assignment));
    cJSON_AddStringToObject(root, "fingerprint", fingerprint);
    cJSON_AddNumberToObject(root, "workers", s->options.workers);
    if (s->program->options.ranks > 1) {
        cJSON_AddNumberToObject(root, "ranks", s->program->options.ranks);
        cJSON_AddNumberToObject(root, "rank", s->program->options.rank);
    }
    cJSON_AddNumberToObject(root, "instructions", (double)r->total);
    cJSON_AddNumberToObject(root, "longest_queue", s->longest);
    cJSON_AddNumberToObject(root, "counters", s->n_counters - 1);
    cJSON_AddNumberToObject(root, "predicted_ns", r->predicted.total);
    cJSON_AddNumberToObject(root, "critical_path_ns", r->predicted.critical_path);
    cJSON_AddStringToObject(root, "costs", origin_of(r));
    cJSON_AddNumberToObject(root, "signal_ns", s->options.profile.signal_ns);
    cJSON_AddNumberToObject(root, "balance", prediction_balance(s, &r->predicted));
    dependencies waits = count_dependencies(s);
    cJSON_AddNumberToObject(root, "full_dependencies_per_layer", waits.full);
    cJSON_AddNumberToObject(root, "partial_dependencies_per_layer", waits.partial);
    if (r->has_made) {
        cJSON_AddNumberToObject(root, "made_now_predicted_ns", r->made_predicted.total);
        cJSON_AddNumberToObject(root, "made_now_differences", count_differences(r));
    }
    cJSON *counts = cJSON_AddObjectToObject(root, "opcodes");
    for (int op = 0; op <= OP_COUNT; op++) {
        if (r->counts[op])
            cJSON_AddNumberToObject(counts, instruction_name((uint16_t)op), (double)r->counts[op]);
    }
    cJSON *queues = r->options->list ? cJSON_AddArrayToObject(root, "queues") : NULL;
    for (int w = 0; queues && w < s->options.workers; w++) {
        cJSON *queue = cJSON_CreateArray();
        for (int i = 0; i < s->length[w]; i++)
            cJSON_AddItemToArray(queue, instruction_json(r, w, i));
        cJSON_AddItemToArray(queues, queue);
    }
    qp_status status = QP_OK;
    if (r->options->linear) status = schedule_dag_json(s, root, error);
    if (status == QP_OK) return output_json_line(root, out, error);
    cJSON_Delete(root);
    return status;
}

/* The number of a name; if there is none the number after the last, which is refused later. */
static int find(const char *name, const char *name_of(int number))
{
    int number = 0;
    while (name_of(number) && strcmp(name_of(number), name) != 0)
        number++;
    return number;
}

/* Loads measured costs, unless they are damaged or of another machine. */
static void load_costs(report *r)
{
    const schedule_print_options *o = r->options;
    bool possible =
        o->costs && !is_given(o) && o->workers > 0 && o->workers <= SCHEDULE_MAX_WORKERS;
    const cost_origin origin = {o->device, o->machine, (int)o->workers};
    cost_table *table = possible ? malloc(sizeof *table) : NULL;
    if (table && cost_load(o->costs, &origin, table, NULL) == QP_OK)
        r->table = table;
    else
        free(table);
}

/* The program that the schedule is for. A file says for how many workers and which setting. */
static qp_status build_program(report *r, const model *model, const schedule_options *of,
                               qp_error *error)
{
    const schedule_print_options *o = r->options;
    model_config of_layers = *model_get_config(model);
    const model_config *config = &of_layers;
    TRY(plan_take_layers(&of_layers, o->layers, error));
    const bool latency = of->setting == SCHEDULE_LATENCY;
    plan_options options = plan_default_options(config);
    options.form = o->form;
    options.target = PLAN_FOR_CPU;
    if (o->kv_type) options.kv_type = dtype_from_name(o->kv_type);
    options.context = o->context;
    if (o->context == 0)
        options.context = config_usual_context(config) < USUAL_MOST_CONTEXT
                              ? config_usual_context(config)
                              : USUAL_MOST_CONTEXT;
    options.sums = latency && o->sums;
    options.fuse = latency && (o->sums || o->fuse);
    if (options.sums) options.max_tokens = 1; /* as the megakernel runs it */
    if (o->chunk > 0) options.max_tokens = o->chunk;
    options.kv_partitions = o->kv_partitions;
    if (o->ranks > 1 && !o->networks) {
        options.ranks = (int)o->ranks;
        options.rank = (int)o->rank;
        options.cut = o->reduce ? PLAN_REDUCE : PLAN_GATHER;
    }
    if (options.kv_partitions == 0 && options.sums)
        options.kv_partitions = schedule_kv_partitions(of->workers, config->n_kv_heads);
    return lower_build(config, model, &options, &r->program, error);
}

/* Makes or reads the schedules of all ranks, and proves and saves them. */
static qp_status visit_ranks(const report *r, const schedule_options *options, qp_error *error)
{
    const schedule_print_options *o = r->options;
    schedule_ranks all;
    qp_status status = schedule_ranks_make(&r->program, options, o->load, &all, error);
    if (status == QP_OK && o->save) status = schedule_save(all.schedules, all.n, o->save, error);
    schedule_ranks_free(&all);
    return status;
}

/* The file's schedule, and what its options make now. */
static qp_status load(report *r, const model *model, qp_error *error)
{
    schedule_options of;
    TRY(schedule_peek(r->options->load, &of, error));
    TRY(build_program(r, model, &of, error));
    TRY(schedule_load(r->options->load, &r->program, &r->schedule, error));
    if (r->options->ranks > 1) TRY(visit_ranks(r, NULL, error));
    of = r->schedule.options;
    if (r->table && r->table->workers == of.workers) of.costs = r->table;
    TRY(schedule_build(&r->program, &of, &r->made, error));
    r->has_made = true;
    return schedule_predict(&r->made, &r->made_predicted, error);
}

/* Options of a schedule that is made now; builds the program. */
static qp_status choose(report *r, const model *model, schedule_options *out, qp_error *error)
{
    const schedule_print_options *o = r->options;
    *out = (schedule_options){.workers = (int)o->workers,
                              .setting = (schedule_setting)find(o->setting, schedule_setting_name)};
    TRY(build_program(r, model, out, error));
    out->last_step = schedule_run_options(&r->program).last_step;
    out->assignment = (schedule_assignment)find(o->assignment, schedule_assignment_name);
    out->memory_fraction = o->memory_fraction;
    out->group = o->group;
    out->profile = (machine_profile){o->bytes_per_second, o->flops_per_second, o->signal_ns};
    out->costs = r->table;
    return QP_OK;
}

/* Queues that another program made, proved sound as any others. */
static qp_status take_queues(report *r, qp_error *error)
{
    schedule arranged;
    qp_status status = schedule_dag_arrange(&r->schedule, r->options->queues, &arranged, error);
    if (status == QP_OK) status = schedule_verify(&arranged, error);
    if (status != QP_OK) {
        schedule_free(&arranged);
        return status == QP_INVALID ? error_prefix(error, "%s", r->options->queues) : status;
    }
    schedule_free(&r->schedule);
    r->schedule = arranged;
    return QP_OK;
}

static qp_status build(report *r, const model *model, qp_error *error)
{
    const schedule_print_options *o = r->options;
    schedule_options of;
    TRY(choose(r, model, &of, error));
    TRY(schedule_build(&r->program, &of, &r->schedule, error));
    if (o->queues) TRY(take_queues(r, error));
    if (o->ranks > 1 && (o->verify || o->save)) return visit_ranks(r, &of, error);
    if (o->verify) TRY(schedule_verify(&r->schedule, error));
    if (o->save) return schedule_save(&r->schedule, 1, o->save, error);
    const schedule_skip skip = {
        .kinds = o->skip, .start_after = o->start_after, .stop_after = o->stop_after};
    return schedule_leave_out(&r->schedule, &skip, error);
}

static qp_status print_page(const report *r, qp_error *error)
{
    strbuf *out = r->options->page;
    timeline line;
    timeline_panel planned = {0};
    qp_status status = timeline_create(&r->schedule, r->options->model, &line, error);
    if (status == QP_OK) status = timeline_predicted(&r->schedule, &r->predicted, &planned, error);
    if (status == QP_OK) {
        timeline_page_begin(&line, &planned, out);
        timeline_page_end(out);
        if (out->failed) status = error_no_memory(error, "the page", out->length);
    }
    timeline_panel_free(&planned);
    timeline_free(&line);
    return status;
}

static qp_status print_hosts(report *r, const model *model, strbuf *out, qp_error *error)
{
    const schedule_print_options *o = r->options;
    hosts_options hosts = {.most = o->ranks > 1 ? (int)o->ranks : 1,
                           .cut = o->reduce ? PLAN_REDUCE : PLAN_GATHER,
                           .json = o->json,
                           .svg = o->page};
    schedule_options of;
    TRY(hosts_read_networks(o->networks, &hosts, error));
    TRY(choose(r, model, &of, error));
    return hosts_print(&r->program, &of, &hosts, out, error);
}

static qp_status print_schedule(report *r, const model *model, strbuf *out, qp_error *error)
{
    const schedule_print_options *o = r->options;
    TRY(o->load ? load(r, model, error) : build(r, model, error));
    TRY(schedule_predict(&r->schedule, &r->predicted, error));
    count(r);
    if (o->json)
        TRY(print_json(r, out, error));
    else
        print_summary(r, out);
    if ((o->verify || o->load) && !o->json)
        strbuf_printf(out, "%-*s sound in every order%s\n", r->name_width, "verified",
                      o->ranks > 1 ? ", all ranks together" : "");
    if (o->list && !o->json) print_list(r, out);
    if (o->linear && !o->json) TRY(schedule_dag_print(&r->schedule, out, error));
    return o->page ? print_page(r, error) : QP_OK;
}

qp_status schedule_print(const schedule_print_options *o, strbuf *out, qp_error *error)
{
    model *m;
    model_options sizes_only = {.sizes_only = true, .config_is_enough = true};
    TRY(model_open(o->model, &sizes_only, &m, error));
    report r = {.options = o};
    load_costs(&r);
    qp_status status =
        o->networks ? print_hosts(&r, m, out, error) : print_schedule(&r, m, out, error);
    if (status == QP_OK && out->failed) status = error_no_memory(error, "the listing", out->length);
    prediction_free(&r.predicted);
    prediction_free(&r.made_predicted);
    schedule_free(&r.made);
    schedule_free(&r.schedule);
    program_free(&r.program);
    free(r.table);
    model_close(m);
    return status;
}
