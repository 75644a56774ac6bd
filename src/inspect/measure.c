/* Measures the costs of instructions: see measure.h. */
#include "inspect/measure_parts.h"
#include "inspect/read_speed.h"

#include "cuda/nccl.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/files.h"
#include "base/names.h"
#include "base/platform.h"
#include "base/version.h"
#include "op/bench/hardware.h"
#include "cuda/driver.h"
#include "file/synthetic.h"
#include "vm/signal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_PASSES = 4,
    MOST_PASSES = 24,
    AT_MOST = 8, /* times the seconds for a kind of pass, if passes differ */
    LAYERS_OF_MANY = 2,
    DEPTH = 512,
    LONG_DEPTH = 2048, /* of one token, whose attention has a cost of its own besides the cache's */
    MANY_FUSED = 16,
    FEW = 16, /* memory may limit passes of at most this many tokens */
};

typedef struct measuring {
    const measure_options *options;
    thread_pool *pool, *alone; /* with all threads, and with one */
    read_speed speed;
    cost_rates sums; /* of the speeds of all passes, whose mean the table is for */
    int n_all, n_one;
    cost_table table;
    cost_samples samples;
    dtype type; /* being measured */
    bool first; /* of the types */
    bool tiny, small;
} measuring;

static void tell(const measuring *m, const char *text, bool finished)
{
    if (m->options->progress) m->options->progress(m->options->progress_context, text, finished);
}

/* ---- instructions -------------------------------------------------------------------------- */

/* The work of an instruction in this batch: its share of its call's work. */
static bool work_of(const schedule *s, const instruction *in, const program_memory *memory,
                    const int64_t *sizes, op_cost *work)
{
    op_call call;
    if (!schedule_bind(s, in, memory, sizes, &call)) return false;
    const op_info *op = op_get((op_code)in->opcode);
    double share = (double)(call.end - call.begin) / (double)op->units(&call);
    *work = op_cost_of(op, &call);
    work->bytes *= share;
    work->flops *= share;
    return work->bytes > 0;
}

qp_status measure_take_samples(cost_samples *samples, const timed_model *r,
                               const timed_machine *machine, const double *times, cost_sample about,
                               qp_error *error)
{
    const schedule *s = machine->schedule;
    const batch *b = &r->batch;
    program_memory memory = {0};
    memcpy(memory.data, b->of, sizeof b->of);
    bool room = true;
    for (int w = 0; w < s->options.workers; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            const instruction *in = schedule_queue(s, w) + i;
            double ns = times[(size_t)w * (size_t)s->longest + (size_t)i];
            op_cost work;
            bool weights;
            if (!work_of(s, in, &memory, b->sizes.of, &work)) continue;
            about.op = (op_code)in->opcode;
            about.type = cost_type_of(s, (int)in->node, &weights);
            about.pass_bytes = weights || about.small ? cost_pass_bytes(s) : 0;
            room = room && cost_add(samples, &about, work, ns);
        }
    }
    return room ? QP_OK : error_no_memory(error, "samples", COST_SAMPLES * sizeof(cost_sample));
}

/* The instructions' times in the quickest pass. Their least times over all passes are smaller than
 * what any pass takes, because workers share the memory: one is quick when others are not. */
static void take_quickest(timed_machine *machine)
{
    const schedule *s = machine->schedule;
    const size_t places = (size_t)s->options.workers * (size_t)s->longest;
    for (size_t i = 0; i < places; i++)
        machine->sum[i] = (double)(machine->best[i].end - machine->best[i].work);
}

/* Plain reads beside passes that memory may limit: of the workers that such passes have. */
static cost_rates rates_beside(const measuring *m, const timed_model *r, bool alone)
{
    if (m->tiny || batch_tokens(&r->batch) > FEW) return (cost_rates){0};
    return read_speed_now(&m->speed, !alone, alone || thread_pool_size(m->pool) == 1);
}

/* What was timed of one kind of pass. */
typedef struct quickest {
    double ns, second; /* of the two quickest passes */
    cost_rates rates;  /* of plain reads beside the quickest */
} quickest;

static void keep_quickest(quickest *q, double ns, cost_rates before, cost_rates after)
{
    if (ns >= q->ns) {
        q->second = fmin(q->second, ns);
        return;
    }
    *q = (quickest){ns, q->ns, read_speed_between(before, after)};
}

/* If two passes took equally long and none was quicker, other programs disturbed neither. */
static bool agree(const quickest *q)
{
    return q->second < 1.03 * q->ns;
}

/* Adds a kind of pass to the means. */
static void add_rates(measuring *m, cost_rates rates)
{
    m->sums.all += rates.all;
    m->sums.one += rates.one;
    m->n_all += rates.all > 0;
    m->n_one += rates.one > 0;
}

/* Times passes over the model's batch. */
static qp_status time_passes(measuring *m, timed_model *r, bool alone, int last_step,
                             schedule_setting setting, qp_error *error)
{
    const schedule_options options = {.setting = setting, .last_step = last_step};
    timed_machine machine;
    qp_status status = timed_machine_open(r, &options, NULL, alone, &machine, error);
    if (status == QP_OK) status = timed_warm_up(r, &machine, error);
    double seconds = m->options->seconds > 0 ? m->options->seconds : 0.25;
    if (last_step < r->program.logits_end) seconds /= 2;
    const uint64_t begin = clock_ns();
    quickest quickest = {.ns = INFINITY, .second = INFINITY};
    cost_rates before = rates_beside(m, r, alone);
    for (int n = 0; status == QP_OK && n < MOST_PASSES; n++) {
        const double took = (double)(clock_ns() - begin) * 1e-9 / seconds;
        if (n >= LEAST_PASSES && (took > AT_MOST || (took > 1 && agree(&quickest)))) break;
        if (m->options->cancel && *m->options->cancel)
            status = error_set(error, QP_CANCELLED, "stopped; nothing was written");
        if (status == QP_OK) status = timed_run(r, &machine, error);
        const cost_rates after = rates_beside(m, r, alone);
        keep_quickest(&quickest, machine.last_ns, before, after);
        before = after;
    }
    add_rates(m, quickest.rates);
    const cost_sample about = {.tiny = m->tiny,
                               .small = m->small,
                               .tiled = setting == SCHEDULE_THROUGHPUT,
                               .alone = alone,
                               .rates = quickest.rates};
    if (status == QP_OK) take_quickest(&machine);
    if (status == QP_OK)
        status = measure_take_samples(&m->samples, r, &machine, machine.sum, about, error);
    timed_machine_close(&machine);
    return status;
}

/* Measures one token through the whole model, with the first type also after many others, because
 * attention does not depend on the weights; and through the first layers many tokens: up to as many
 * as a tile has, and as many as a prompt has, in tiles. */
static qp_status time_model(measuring *m, timed_model *r, qp_error *error)
{
    static const int64_t many[] = {4, 16, 64, 128};
    int layers = program_find_step(&r->program, r->program.options.fuse ? "attn_qkv" : "attn_norm",
                                   LAYERS_OF_MANY);
    if (layers < 0) layers = r->program.logits_end;
    for (int alone = 0; alone < (m->tiny ? 1 : 2); alone++) {
        TRY(timed_fill(r, 1, DEPTH, error));
        TRY(time_passes(m, r, alone, r->program.logits_end, SCHEDULE_LATENCY, error));
        if (m->tiny) continue;
        TRY(timed_fill(r, 1, r->program.options.context, error));
        if (m->first) TRY(time_passes(m, r, alone, r->program.logits_end, SCHEDULE_LATENCY, error));
        for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
            if (many[i] > r->program.options.max_tokens) break;
            TRY(timed_fill(r, many[i], DEPTH, error));
            TRY(time_passes(m, r, alone, layers, SCHEDULE_LATENCY, error));
        }
        if (r->program.options.max_tokens < DEPTH) continue;
        TRY(timed_fill(r, DEPTH, DEPTH, error));
        TRY(time_passes(m, r, alone, layers, SCHEDULE_THROUGHPUT, error));
    }
    return QP_OK;
}

/* Measures both plans; the one for few tokens does not take many. */
static qp_status measure_model(measuring *m, const char *preset, qp_error *error)
{
    char name[128];
    snprintf(name, sizeof name, "synthetic:%s:%s", preset, dtype_name(m->type));
    tell(m, name, false);
    qp_status status = QP_OK;
    for (int fuse = 0; fuse <= timed_fuses() && status == QP_OK; fuse++) {
        timed_model r;
        timed_options options = {.model = name,
                                 .threads = thread_pool_size(m->pool),
                                 .context = m->tiny ? DEPTH : LONG_DEPTH,
                                 .chunk = fuse ? MANY_FUSED : DEPTH,
                                 .fuse = fuse};
        status = timed_open(&options, &r, error);
        if (status == QP_OK) status = time_model(m, &r, error);
        timed_close(&r);
    }
    return status;
}

bool measure_wants(const measure_options *options, dtype type)
{
    const char *types = options->types;
    char name[NAME_SIZE];
    if (!synthetic_can_make(type)) return false;
    while (names_next(&types, name))
        if (dtype_from_name(name) == type) return true;
    return !options->types && type != DTYPE_F32 && type != DTYPE_F8_128;
}

static qp_status check_types(const measure_options *options, qp_error *error)
{
    const char *types = options->types;
    char name[NAME_SIZE];
    while (names_next(&types, name))
        if (!synthetic_can_make(dtype_from_name(name)))
            return error_set(error, QP_INVALID,
                             "no model of type \"%s\" can be made to measure with: expected types "
                             "of weights such as BF16,Q8_0",
                             name);
    return QP_OK;
}

/* Blocks of 256 weights do not divide the rows of the small model. */
static bool can_make(const char *preset, dtype type)
{
    char name[128];
    synthetic_spec spec;
    snprintf(name, sizeof name, "synthetic:%s:%s", preset, dtype_name(type));
    return synthetic_parse(name, NULL, DTYPE_BF16, &spec, NULL) == QP_OK;
}

static qp_status measure_types(measuring *m, qp_error *error)
{
    const char *large = m->options->large;
    const char *const presets[] = {large ? large : "llama-3.2-1b", large ? large : "smollm2-135m",
                                   "tiny"};
    for (int type = 0; type < DTYPE_COUNT; type++) {
        m->type = (dtype)type;
        m->first = m->samples.count == 0;
        for (int size = 0; size < 3 && measure_wants(m->options, m->type); size++) {
            m->small = size == 1;
            m->tiny = size == 2;
            if (m->small && !can_make(presets[size], m->type)) continue;
            qp_status status = measure_model(m, presets[size], error);
            if (status != QP_OK && status != QP_NO_MEMORY) return status;
        }
    }
    if (m->n_all > 0 && m->n_one > 0)
        m->table.rates = (cost_rates){m->sums.all / m->n_all, m->sums.one / m->n_one};
    cost_fit(&m->samples, &m->table);
    if (m->table.n_curves > 0) return QP_OK;
    return error_set(error, QP_NO_MEMORY, "no model to measure with fits in memory");
}

/* ---- memory and arithmetic ----------------------------------------------------------------- */

/* Reads more and more memory, each size repeatedly for at least a few milliseconds. Keeps the best
 * rate, also of earlier calls. */
static qp_status time_reads(measuring *m, hardware *hardware, qp_error *error)
{
    enum { SMALLEST = 8 << 20, LARGEST = 1 << 30, TIMES = 5 };
    buffer memory;
    size_t most = LARGEST, wanted = m->options->read_bytes ? m->options->read_bytes : LARGEST;
    while (most > SMALLEST && (most > wanted || most > platform_free_memory() / 4))
        most /= 2;
    TRY(buffer_alloc(&memory, most, "memory to read", error));
    memset(memory.data, 1, memory.bytes);
    int n = 0;
    for (size_t bytes = SMALLEST; bytes <= most; bytes *= 2, n++) {
        double best = n < m->table.n_reads ? m->table.reads[n].bytes_per_second : 0;
        for (int i = 0; i < TIMES; i++) {
            double rate = hardware_read(hardware, memory.data, bytes);
            if (rate > best) best = rate;
        }
        m->table.reads[n] = (cost_read){(double)bytes, best};
        m->table.limits.bytes_per_second = best;
    }
    m->table.n_reads = n;
    buffer_free(&memory);
    return QP_OK;
}

static qp_status time_limits(measuring *m, qp_error *error)
{
    enum { TIMES = 9 };
    hardware *hardware;
    tell(m, "memory and arithmetic", false);
    TRY(hardware_create(1, cpu_features(0), m->pool, &hardware, error));
    for (int i = 0; i < TIMES; i++) {
        double rate = hardware_sample(hardware, HARDWARE_FLOAT);
        if (rate > m->table.limits.flops_per_second) m->table.limits.flops_per_second = rate;
    }
    qp_status status = time_reads(m, hardware, error);
    hardware_destroy(hardware);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* Reads two points of the curve: reading weights with one token, and arithmetic with many. */
static void summarize(const cost_table *t, const char *path, strbuf *out)
{
    strbuf_printf(out, "%s, %d workers, version %s\n", t->machine, t->workers, t->version);
    strbuf_printf(out,
                  "reading %.1f GB/s, float32 arithmetic %.0f GFLOP/s, %.0f ns a signal\n\n"
                  "%-20s %-5s %10s %10s %10s %8s %10s\n",
                  t->limits.bytes_per_second / 1e9, t->limits.flops_per_second / 1e9,
                  t->limits.signal_ns, "operator", "type", "ns each", "GB/s", "GFLOP/s", "alone",
                  "signal ns");
    for (int i = 0; i < t->n_curves; i++) {
        const cost_curve *c = &t->curves[i];
        const cost_point *first = &c->points[0], *last = &c->points[c->n_points - 1];
        strbuf_printf(out, "%-20s %-5s %10.0f %10.1f %10.1f %8.2f %10.0f\n", op_get(c->op)->name,
                      dtype_name(c->type), c->fixed_ns, t->workers / first->ns_per_byte,
                      t->workers * last->intensity / last->ns_per_byte, first->alone,
                      c->signal_ns > 0 ? c->signal_ns : t->limits.signal_ns);
    }
    strbuf_printf(out, "\nkept in %s\n", path);
}

qp_status measure_keep(const cost_table *t, const char *path, strbuf *out, qp_error *error)
{
    strbuf text = {0};
    qp_status status = cost_print(t, &text, error);
    if (status == QP_OK) status = files_write(path, text.data, text.length, error);
    if (status == QP_OK) summarize(t, path, out);
    strbuf_free(&text);
    return status;
}

static qp_status measure_all(measuring *m, strbuf *out, qp_error *error)
{
    cost_table *t = &m->table;
    snprintf(t->device, sizeof t->device, "cpu");
    snprintf(t->version, sizeof t->version, "%s", version_text);
    cost_machine(t->machine, sizeof t->machine);
    t->workers = thread_pool_size(m->pool);
    /* Twice, because other programs may have disturbed the first time. */
    double signal_ns = 0;
    TRY(threads_measure_signal(m->pool, &signal_ns, error));
    TRY(time_limits(m, error));
    TRY(measure_types(m, error));
    TRY(time_limits(m, error));
    TRY(threads_measure_signal(m->pool, &t->limits.signal_ns, error));
    t->limits.signal_ns = fmin(t->limits.signal_ns, signal_ns);
    tell(m, "", true);
    return measure_keep(t, m->options->path, out, error);
}

qp_status measure_costs(const measure_options *options, strbuf *out, qp_error *error)
{
    TRY(check_types(options, error));
    TRY(files_check_writable(options->path, error)); /* before minutes of measuring */
    if (options->device) return measure_cuda_costs(options, out, error);
    measuring *m = calloc(1, sizeof *m);
    if (!m) return error_no_memory(error, "the measurement", sizeof *m);
    m->options = options;
    int threads = options->threads ? options->threads : threads_available();
    cpu_features(0); /* asks for AMX tiles before threads start */
    qp_status status = thread_pool_create(threads, &m->pool, error);
    if (status == QP_OK) status = thread_pool_create(1, &m->alone, error);
    if (status == QP_OK) status = read_speed_open(&m->speed, m->pool, m->alone, error);
    if (status == QP_OK) status = measure_all(m, out, error);
    read_speed_close(&m->speed);
    thread_pool_destroy(m->alone);
    thread_pool_destroy(m->pool);
    free(m->samples.of);
    free(m);
    return status;
}

qp_status measure_find_gpu(measure_gpu *out, qp_error *error)
{
    cuda_device gpu;
    TRY(cuda_device_probe(&gpu, error));
    snprintf(out->name, sizeof out->name, "%s", gpu.name);
    out->n_multiprocessors = gpu.n_multiprocessors;
    return QP_OK;
}

qp_status measure_list_gpus(measure_gpus *out, qp_error *error)
{
    cuda_device gpus[MEASURE_MAX_GPUS];
    int version;
    *out = (measure_gpus){0};
    if (nccl_version(&version, NULL) == QP_OK) nccl_version_text(version, out->nccl);
    TRY(cuda_device_count(&out->count, error));
    if (out->count > MEASURE_MAX_GPUS) out->count = MEASURE_MAX_GPUS;
    for (int i = 0; i < out->count; i++) {
        /* One that is too old has been read all the same. */
        const qp_status status = cuda_device_probe_number(&gpus[i], i, error);
        if (status != QP_OK && gpus[i].n_multiprocessors == 0) return status;
        snprintf(out->of[i].name, sizeof out->of[i].name, "%s", gpus[i].name);
        out->of[i].n_multiprocessors = gpus[i].n_multiprocessors;
    }
    for (int i = 0; i < out->count; i++)
        for (int j = 0; j < out->count; j++)
            if (i != j) TRY(cuda_device_link(&gpus[i], &gpus[j], &out->links[i][j], error));
    return QP_OK;
}
