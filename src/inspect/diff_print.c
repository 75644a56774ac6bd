/* Runs a comparison and prints it: see diff.h. */
#include "inspect/diff.h"

#include "base/buffer.h"
#include "base/cpu.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/output.h"
#include "cuda/ranks.h"
#include "engine/open.h"
#include "engine/ranks.h"
#include "inspect/diff_run.h"
#include "op/op.h"
#include "plan/plan.h"
#include "schedule/build.h"
#include "schedule/skip.h"
#include "vm/cuda/custom_kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_TOKENS = 16, USUAL_CHUNK = 512, USUAL_PAGE_SIZE = 16, MOST_OUTPUTS = 16 };

/* A comparison with all its objects. */
typedef struct diff {
    const diff_options *options;
    model *model;
    program program;
    thread_pool *pool;
    schedule_options schedule, schedule_b;
    schedule_skip skip; /* of b */
    machine_setup setup;
    kernel_table kernels;
    cuda_kernel cuda_kernels[OP_COUNT];
    progress progress;
    const machine_type *type_a, *type_b;
    machine a, b;
    cuda_device device; /* of several ranks on GPUs: the first's, */
    cuda_ranks *gpus;   /* and all; NULL: there are none */
    int32_t *own_tokens;
    diff_request request;
    diff_report report;
} diff;

static int64_t or_usual(int64_t value, int64_t usual)
{
    return value > 0 ? value : usual;
}

/* --- opening --------------------------------------------------------------------------------- */

static void on_progress(void *context, const progress *progress)
{
    const diff *d = context;
    strbuf line = {0};
    progress_print(progress, &line);
    d->options->progress(NULL, strbuf_text(&line), progress->done >= progress->total);
    strbuf_free(&line);
}

static qp_status choose_tokens(diff *d, int64_t vocab_size, qp_error *error)
{
    const diff_options *o = d->options;
    int64_t n = d->request.n_tokens = or_usual(o->n_tokens, USUAL_TOKENS);
    d->request.tokens = o->tokens;
    for (int64_t i = 0; o->tokens && i < n; i++) {
        if (o->tokens[i] < 0 || o->tokens[i] >= vocab_size)
            return error_set(error, QP_INVALID,
                             "token %" PRId64 " is %d, but the model's vocabulary has the ids 0 to "
                             "%" PRId64,
                             i, o->tokens[i], vocab_size - 1);
    }
    d->request.singles = o->singles < n && !d->type_b->whole ? o->singles : n;
    d->request.cancel = o->cancel;
    if (o->tokens) return QP_OK;
    d->request.tokens = d->own_tokens = malloc((size_t)n * sizeof *d->own_tokens);
    if (!d->own_tokens) return error_no_memory(error, "token ids", (size_t)n);
    for (int64_t i = 0; i < n; i++)
        d->own_tokens[i] = (int32_t)(hash_random(1, 0, (uint64_t)i) % (uint64_t)vocab_size);
    return QP_OK;
}

/* Room for exactly these tokens, or that of the program for which a schedule was saved. */
static qp_status choose_room(const diff *d, plan_options *out, qp_error *error)
{
    enum { USUAL_MOST_CONTEXT = 8192 };
    const diff_options *o = d->options;
    const int64_t n = d->request.n_tokens, together = n - d->request.singles;
    const int64_t chunk = or_usual(o->chunk, USUAL_CHUNK);
    const int64_t most = out->context < USUAL_MOST_CONTEXT ? out->context : USUAL_MOST_CONTEXT;
    out->context = or_usual(o->context, o->schedule ? most : n);
    if (out->context < n)
        return error_set(error, QP_INVALID,
                         "%" PRId64 " tokens do not fit a context of %" PRId64
                         ": give a larger one "
                         "with -c, or fewer tokens",
                         n, out->context);
    out->max_tokens = together > chunk || o->schedule ? chunk : or_usual(together, 1);
    out->max_outputs = out->max_tokens < MOST_OUTPUTS ? out->max_tokens : MOST_OUTPUTS;
    if (o->schedule) out->max_outputs = 1;
    return QP_OK;
}

/* Makes the plan of the first layers. */
static qp_status build_plan(diff *d, model_config config, qp_error *error)
{
    const diff_options *o = d->options;
    TRY(plan_take_layers(&config, o->layers, error));
    TRY(choose_tokens(d, config.vocab_size, error));
    plan_options options = plan_default_options(&config);
    TRY(choose_room(d, &options, error));
    options.form = o->form;
    options.fuse = o->fuse;
    options.sums = o->sums || d->type_b->whole;
    options.kv_partitions = o->kv_partitions;
    options.page_size = or_usual(o->page_size, USUAL_PAGE_SIZE);
    if (o->kv_type) options.kv_type = dtype_from_name(o->kv_type);
    if (o->act_type) options.act_type = dtype_from_name(o->act_type);
    return plan_build(&config, d->model, &options, &d->program, error);
}

/* Both machines hold everything except the weights, of which each may have a packed copy. */
static qp_status check_memory(const diff *d, qp_error *error)
{
    program_bytes need = program_count_bytes(&d->program, model_weight_bytes(d->model));
    uint64_t total = need.weights + 2 * need.total, available = buffer_available();
    if (total <= available) return QP_OK;
    return error_set(error, QP_NO_MEMORY,
                     "two machines that run %s need up to %.2f GiB, but %.2f GiB are available; "
                     "compare fewer --layers or fewer tokens",
                     d->options->model, (double)total / 0x1p30, (double)available / 0x1p30);
}

/* Whether the GPU has the kernels for weights in FP8. */
static bool has_hopper(void)
{
    cuda_device device = {0};
    const bool found = cuda_device_open(&device, NULL) == QP_OK && cuda_device_is_hopper(&device);
    cuda_device_close(&device);
    return found;
}

static qp_status open_model(diff *d, qp_error *error)
{
    const diff_options *o = d->options;
    const bool on_gpu = d->type_a->on_gpu || d->type_b->on_gpu;
    model_options sizes_only = {.fp8_as_bf16 = o->ranks > 1}, whole;
    if (on_gpu) engine_fp8_on_gpu(o->activations, o->ranks <= 1 && has_hopper(), &sizes_only);
    whole = sizes_only;
    whole.pool = d->pool;
    whole.progress = &d->progress;
    sizes_only.sizes_only = true;
    TRY(model_open(o->model, &sizes_only, &d->model, error));
    TRY(build_plan(d, *model_get_config(d->model), error));
    TRY(check_memory(d, error));
    if (model_has_weights(d->model)) return QP_OK;
    progress_begin(&d->progress, "making weights", model_weight_bytes(d->model));
    model_close(d->model);
    d->model = NULL;
    TRY(model_open(o->model, &whole, &d->model, error));
    program_attach(&d->program, d->model);
    progress_end(&d->progress);
    return QP_OK;
}

static qp_status choose_steps(diff *d, qp_error *error)
{
    const diff_options *o = d->options;
    int after = -1, stop = d->program.n_steps - 1;
    char label[64];
    if (o->after) TRY(program_parse_step(&d->program, o->after, &after, error));
    if (o->stop) TRY(program_parse_step(&d->program, o->stop, &stop, error));
    if (stop <= after)
        return error_set(error, QP_INVALID,
                         "there is nothing to compare: no step lies after %s and up to %s",
                         o->after, program_step_label(&d->program, stop, label, sizeof label));
    d->request.first = after + 1;
    d->request.last = stop + 1;
    const machine_type *a = d->type_a;
    if ((d->type_b->whole && after >= 0) || a->whole)
        return error_set(error, QP_UNSUPPORTED,
                         "%s runs whole passes from their beginning: it can only be b, without "
                         "--start-after",
                         a->whole ? a->name : d->type_b->name);
    if ((d->type_b->whole || o->schedule) && d->request.last > d->program.logits_end)
        d->request.last = d->program.logits_end;
    return QP_OK;
}

static int threads_of(const diff_options *o)
{
    const int all = threads_available(), ranks = o->ranks > 1 ? o->ranks : 1;
    if (o->threads) return o->threads;
    return all > ranks ? all / ranks : 1;
}

/* The threads of a saved schedule are as many as its queues. */
static qp_status choose_threads(const diff_options *o, int *threads, qp_error *error)
{
    schedule_options saved;
    *threads = threads_of(o);
    if (!o->schedule) return QP_OK;
    TRY(schedule_peek(o->schedule, &saved, error));
    *threads = saved.workers;
    return QP_OK;
}

static qp_status check_schedule(const diff *d, qp_error *error)
{
    const diff_options *o = d->options;
    if (o->skip && o->ranks > 1)
        return error_set(error, QP_UNSUPPORTED,
                         "ranks wait for each other's rows, so that --skip would stop them: leave "
                         "--ranks out");
    if ((!o->schedule && !o->skip) || d->type_b->reschedule) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "--%s is for a schedule, but b, %s, runs none that can be changed: b can be "
                     "threads or serial",
                     o->schedule ? "schedule" : "skip", d->type_b->name);
}

/* Ranks have their parts of a program without sums, except in the megakernel. */
static qp_status check_ranks(const diff *d, qp_error *error)
{
    if (d->options->ranks <= 1 || d->type_b->whole || !d->options->sums) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "--ranks %d compares ranks with one: of b, %s, without --sums; the megakernel "
                     "always has them",
                     d->options->ranks, d->type_b->name);
}

/* b, or the ranks that run it, each on a GPU of its own if b runs on one. */
static qp_status open_b(diff *d, machine_setup *setup, qp_error *error)
{
    const int ranks = d->options->ranks;
    if (ranks <= 1) return machine_open(d->type_b, setup, &d->b, error);
    if (d->type_b->on_gpu) {
        d->gpus = calloc(1, sizeof *d->gpus);
        if (!d->gpus) return error_no_memory(error, "ranks", sizeof *d->gpus);
        engine_ranks read = {.size = ranks};
        TRY(engine_ranks_read_gpus(d->options->gpus, d->options->exchange, &read, error));
        TRY(engine_ranks_device(&read, &d->device, error));
        TRY(cuda_ranks_open(d->gpus, &d->device, read.n_numbers ? read.numbers : NULL, ranks,
                            read.exchange, error));
        setup->gpus = d->gpus;
    }
    setup->inner = d->type_b;
    setup->n_ranks = ranks;
    if (d->type_b->whole) setup->cut = PLAN_REDUCE;
    return machine_open(&machine_ranks, setup, &d->b, error);
}

static qp_status open_all(diff *d, qp_error *error)
{
    const diff_options *o = d->options;
    uint32_t off, x_bits = 0;
    int threads;
    TRY(machine_type_find(o->a ? o->a : "reference", &d->type_a, error));
    TRY(machine_type_find(o->b ? o->b : "threads", &d->type_b, error));
    TRY(check_ranks(d, error));
    TRY(cpu_features_parse(o->cpu_mask ? o->cpu_mask : "", &off, error));
    if (o->activations && strcmp(o->activations, "auto") != 0)
        TRY(op_x_bits_parse(o->activations, &x_bits, error));
    TRY(check_schedule(d, error));
    TRY(choose_threads(o, &threads, error));
    TRY(thread_pool_create(threads, &d->pool, error));
    if (o->progress) d->progress = (progress){.sink = on_progress, .context = d};
    TRY(open_model(d, error));
    TRY(choose_steps(d, error));
    d->schedule = (schedule_options){.setting = (schedule_setting)o->setting,
                                     .assignment = (schedule_assignment)o->assignment,
                                     .memory_fraction = o->memory_fraction};
    d->setup = (machine_setup){.program = &d->program,
                               .pool = d->pool,
                               .cpu_features = cpu_features(off) | x_bits,
                               .progress = &d->progress,
                               .schedule = &d->schedule,
                               .order = o->order ? o->order : 1};
    TRY(machine_open(d->type_a, &d->setup, &d->a, error));
    machine_setup setup_b = d->setup;
    d->skip = (schedule_skip){.kinds = o->skip};
    d->schedule_b = d->schedule;
    if (o->skip) d->schedule_b.skip = &d->skip;
    setup_b.schedule = &d->schedule_b;
    setup_b.schedule_file = o->schedule;
    TRY(kernel_table_fill(&d->kernels, o->kernels, o->n_kernels, error));
    if (o->n_kernels) setup_b.kernels = &d->kernels;
    TRY(custom_kernels_fill(d->cuda_kernels, o->cuda_kernels, o->n_cuda_kernels, error));
    if (o->n_cuda_kernels) setup_b.cuda_kernels = d->cuda_kernels;
    return open_b(d, &setup_b, error);
}

static void close_all(diff *d)
{
    machine_close(&d->a);
    machine_close(&d->b);
    if (d->gpus) cuda_ranks_close(d->gpus);
    free(d->gpus);
    cuda_device_close(&d->device);
    diff_report_free(&d->report);
    thread_pool_destroy(d->pool);
    program_free(&d->program);
    model_close(d->model);
    free(d->own_tokens);
}

/* --- the table ------------------------------------------------------------------------------- */

static void format_element(const diff_element *e, char *text, size_t size)
{
    if (e->index[0])
        snprintf(text, size, "%s %.6g, %.6g", e->index, e->expected, e->found);
    else
        snprintf(text, size, "-");
}

static const char *kernel_of(const machine *e, int node)
{
    return machine_kernel_of(e, node).name;
}

static void print_row(const diff *d, const diff_row *row, const char *step, strbuf *out)
{
    char name[64], worst[160], allowed[32], kernels[64], added[32];
    const diff_measure *m = &row->alone;
    const char *a = kernel_of(&d->a, row->node), *b = kernel_of(&d->b, row->node);
    diff_row_name(&d->program, row, name, sizeof name);
    format_element(&m->worst, worst, sizeof worst);
    snprintf(kernels, sizeof kernels, row->same_kernel ? "%s" : "%s, %s%s", a, b,
             row->rounds ? "*" : "");
    if (program_operand(&d->program, row->node, row->operand)->type == DTYPE_I32)
        snprintf(added, sizeof added, "%" PRId64 " ids", row->together.wrong);
    else
        snprintf(added, sizeof added, "%.1e", row->together.relative);
    snprintf(allowed, sizeof allowed, m->allowed > 0 ? "%.1e" : "exact", m->allowed);
    strbuf_printf(out, "%s %-18s %-18s %-24s %9.1e %9.1e %9s %9s  %s\n", m->wrong ? "!" : " ", step,
                  name, kernels, m->absolute, m->relative, allowed, added, worst);
}

/* Whether two rows belong to the same step and view in different layers. */
static bool same_place(const program *p, const diff_row *a, const diff_row *b)
{
    return strcmp(p->steps[a->step].name, p->steps[b->step].name) == 0 &&
           a->node - p->steps[a->step].first_node == b->node - p->steps[b->step].first_node &&
           a->operand == b->operand;
}

/* The worst layer's row among those like row `at`; NULL if an earlier row was like it.
 */
static const diff_row *worst_of(const diff *d, int at)
{
    const diff_row *rows = d->report.rows, *worst = &rows[at];
    for (int i = 0; i < at; i++) {
        if (same_place(&d->program, &rows[i], &rows[at])) return NULL;
    }
    for (int i = at + 1; i < d->report.n_rows; i++) {
        if (!same_place(&d->program, &rows[i], &rows[at])) continue;
        bool equal_share = rows[i].alone.share == worst->alone.share;
        if (rows[i].alone.share > worst->alone.share ||
            (equal_share && rows[i].together.relative > worst->together.relative))
            worst = &rows[i];
    }
    return worst;
}

static void print_table(const diff *d, strbuf *out)
{
    bool rounds = false;
    strbuf_printf(out, "  %-18s %-18s %-24s %9s %9s %9s %9s  %s\n", "step", "tensor", "kernels",
                  "max abs", "relative", "allowed", "added up", "worst element");
    for (int i = 0; i < d->report.n_rows; i++) {
        const diff_row *row = d->options->list ? &d->report.rows[i] : worst_of(d, i);
        char label[64];
        if (row)
            print_row(d, row, program_step_label(&d->program, row->step, label, sizeof label), out);
        if (row) rounds |= row->rounds;
    }
    if (rounds)
        strbuf_puts(out,
                    "  * rounds its inputs to fewer bits: compared with the references with the "
                    "same roundings\n");
}

/* "pass 1, step 5.ffn_down, x[0, 17]: expected 1, found 2, allowed 1e-06". */
static void print_difference(const diff *d, const diff_row *row, const diff_measure *m, strbuf *out)
{
    char label[64], name[64];
    const diff_element *e = &m->first;
    strbuf_printf(out, "pass %d, step %s, tensor %s %s: expected %.9g, found %.9g, ", e->pass,
                  program_step_label(&d->program, row->step, label, sizeof label),
                  diff_row_name(&d->program, row, name, sizeof name), e->index, e->expected,
                  e->found);
    if (m->norm_wrong)
        strbuf_printf(out, "and the norm is off by %.3g of which %.3g are allowed", m->relative,
                      m->allowed);
    else
        strbuf_printf(out, "allowed %.3g", e->tolerance);
}

static void count_rows(const diff *d, int64_t *elements, int *wrong, const diff_row **closest)
{
    for (int i = 0; i < d->report.n_rows; i++) {
        const diff_row *row = &d->report.rows[i];
        *elements += row->alone.elements;
        *wrong += row->alone.wrong > 0;
        if (!*closest || row->alone.share > (*closest)->alone.share) *closest = row;
    }
}

static void print_alone(const diff *d, strbuf *out)
{
    const diff_report *r = &d->report;
    int64_t elements = 0;
    int wrong = 0;
    const diff_row *closest = NULL;
    char label[64], name[64];
    count_rows(d, &elements, &wrong, &closest);
    strbuf_puts(out, "step by step     ");
    if (r->first_wrong >= 0) {
        strbuf_printf(out, "%d of %d tensors differ; the first: ", wrong, r->n_rows);
        print_difference(d, &r->rows[r->first_wrong], &r->rows[r->first_wrong].alone, out);
    } else {
        strbuf_printf(out, "%d tensors, %" PRId64 " elements: %s", r->n_rows, elements,
                      closest && closest->alone.share > 0 ? "within tolerance" : "equal");
        if (closest && closest->alone.share > 0)
            strbuf_printf(out, ", %.0f %% of it at most, in %s of %s", 100 * closest->alone.share,
                          diff_row_name(&d->program, closest, name, sizeof name),
                          program_step_label(&d->program, closest->step, label, sizeof label));
    }
    strbuf_putc(out, '\n');
}

static void print_together(const diff *d, strbuf *out)
{
    const diff_report *r = &d->report;
    const diff_row *last = r->n_rows ? &r->rows[r->n_rows - 1] : NULL;
    for (int i = 0; i < r->n_rows; i++) {
        const diff_row *row = &r->rows[i];
        if (program_tensor_of(&d->program, row->node, row->operand) == PLAN_LOGITS) last = row;
    }
    strbuf_puts(out, "end to end       ");
    if (r->first_drift >= 0) {
        strbuf_puts(out, "the same kernels gave different bits; the first: ");
        print_difference(d, &r->rows[r->first_drift], &r->rows[r->first_drift].together, out);
    } else if (last) {
        char name[64];
        strbuf_printf(out, "%s differ by %.3g at most, %.3g in norm",
                      diff_row_name(&d->program, last, name, sizeof name), last->together.absolute,
                      last->together.relative);
    }
    if (r->logit_rows > 0)
        strbuf_printf(out, "; the likeliest token is the same in %" PRId64 " of %" PRId64 " rows",
                      r->same_choice, r->logit_rows);
    if (r->same_choice < r->logit_rows)
        strbuf_printf(out, " (elsewhere it leads by %.3g at most)", r->closest_margin);
    strbuf_printf(out, "\nat once          %s%s",
                  r->at_once_differs ? "bits that differ from those step by step: "
                                     : "the same bits",
                  r->at_once);
    if (r->at_once_norm > 0)
        strbuf_printf(out, "; logits, by the kernels of few rows, differ by %.3g in norm",
                      r->at_once_norm);
    strbuf_puts(out, "\n");
}

static void print_text(const diff *d, strbuf *out)
{
    const diff_request *q = &d->request;
    strbuf_puts(out, d->type_b->name);
    if (d->options->ranks > 1) strbuf_printf(out, " on %d ranks", d->options->ranks);
    strbuf_printf(out,
                  " against %s, %d thread%s: %" PRId64 " tokens in %d passes, the last %" PRId64
                  " one by one; %" PRId64 " layers\n\n",
                  d->a.type->name, thread_pool_size(d->pool),
                  thread_pool_size(d->pool) == 1 ? "" : "s", q->n_tokens, d->report.n_passes,
                  q->singles, d->program.config.n_layers);
    print_table(d, out);
    strbuf_putc(out, '\n');
    print_alone(d, out);
    print_together(d, out);
}

/* --- JSON ------------------------------------------------------------------------------------ */

static cJSON *measure_json(const diff_measure *m)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddNumberToObject(item, "max_abs", m->absolute);
    cJSON_AddNumberToObject(item, "relative", m->relative);
    cJSON_AddNumberToObject(item, "allowed", m->allowed);
    cJSON_AddNumberToObject(item, "wrong", (double)m->wrong);
    if (!m->worst.index[0]) return item;
    cJSON *worst = cJSON_AddObjectToObject(item, "worst");
    cJSON_AddNumberToObject(worst, "pass", m->worst.pass);
    cJSON_AddRawToObject(worst, "index", m->worst.index);
    cJSON_AddNumberToObject(worst, "expected", m->worst.expected);
    cJSON_AddNumberToObject(worst, "found", m->worst.found);
    cJSON_AddNumberToObject(worst, "tolerance", m->worst.tolerance);
    return item;
}

static void print_json(const diff *d, strbuf *out)
{
    const diff_report *r = &d->report;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "a", d->a.type->name);
    cJSON_AddStringToObject(root, "b", d->type_b->name);
    if (d->options->ranks > 1) cJSON_AddNumberToObject(root, "ranks", d->options->ranks);
    cJSON_AddNumberToObject(root, "tokens", (double)d->request.n_tokens);
    cJSON_AddNumberToObject(root, "passes", r->n_passes);
    cJSON_AddBoolToObject(root, "equal", r->equal);
    cJSON_AddBoolToObject(root, "at_once_equal", !r->at_once_differs);
    cJSON_AddNumberToObject(root, "first_difference", r->first_wrong);
    cJSON_AddNumberToObject(root, "first_drift", r->first_drift);
    cJSON_AddNumberToObject(root, "logit_rows", (double)r->logit_rows);
    cJSON_AddNumberToObject(root, "same_choice", (double)r->same_choice);
    cJSON *rows = cJSON_AddArrayToObject(root, "rows");
    for (int i = 0; i < r->n_rows; i++) {
        char name[64];
        const diff_row *row = &r->rows[i];
        const program_step *step = &d->program.steps[row->step];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "step", step->name);
        cJSON_AddNumberToObject(item, "layer", (double)step->layer);
        cJSON_AddStringToObject(item, "tensor", diff_row_name(&d->program, row, name, sizeof name));
        cJSON_AddStringToObject(item, "kernel_a", kernel_of(&d->a, row->node));
        cJSON_AddStringToObject(item, "kernel_b", kernel_of(&d->b, row->node));
        cJSON_AddItemToObject(item, "alone", measure_json(&row->alone));
        cJSON_AddItemToObject(item, "together", measure_json(&row->together));
        cJSON_AddItemToArray(rows, item);
    }
    output_json_line(root, out, NULL);
}

qp_status diff_print(const diff_options *options, strbuf *out, bool *equal, qp_error *error)
{
    diff d = {.options = options};
    qp_status status = open_all(&d, error);
    if (status == QP_OK) status = diff_run(&d.setup, &d.a, &d.b, &d.request, &d.report, error);
    if (status == QP_OK) {
        *equal = d.report.equal;
        (options->json ? print_json : print_text)(&d, out);
        if (out->failed) status = error_no_memory(error, "the table", out->length);
    }
    close_all(&d);
    return status;
}
