/* Measures what instructions cost the megakernel: see measure.h.
 *
 * The time of an operator and its wait are means over many blocks and passes. Blocks differ, and
 * the next operator waits for the last of them.
 */
#include "inspect/measure_parts.h"

#include "base/version.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAUNCHES = 12, DEPTH = 1024, CHUNK = 16 };

/* The waits of an operator's instructions, summed. */
typedef struct waited {
    double ns, count;
} waited;

typedef struct measuring_cuda {
    const measure_options *options;
    cost_table table;
    cost_samples samples;
    waited waited[OP_COUNT]; /* passes with the large models */
    dtype type;
    bool tiny;
} measuring_cuda;

static void tell(const measuring_cuda *m, const char *text, bool finished)
{
    if (m->options->progress) m->options->progress(m->options->progress_context, text, finished);
}

/* For each counter, the mean end of the instructions that signal it, in ns from the first queue's
 * beginning. */
static double *mean_ends(const schedule *s, const instruction_timing *timings)
{
    double *ends = calloc((size_t)s->n_counters, sizeof *ends);
    if (!ends) return NULL;
    for (int w = 0; w < s->options.workers; w++) {
        const size_t from = (size_t)w * (size_t)s->longest;
        for (int i = 0; i < s->length[w]; i++) {
            uint32_t c = schedule_queue(s, w)[i].signal;
            uint64_t end = timings[from + (size_t)i].end - timings[0].wait;
            if (c) ends[c] += (double)end / s->per_pass[c];
        }
    }
    return ends;
}

static bool add_waits(measuring_cuda *m, const schedule *s, const instruction_timing *timings)
{
    double *ends = mean_ends(s, timings);
    for (int w = 0; ends && w < s->options.workers; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            const instruction *in = schedule_queue(s, w) + i;
            double last = 0;
            for (int k = 0; k < INSTRUCTION_WAITS; k++) {
                uint32_t c = in->flags >> k & 1 ? 0 : in->waits[k].counter;
                if (ends[c] > last) last = ends[c];
            }
            uint64_t work = timings[(size_t)w * (size_t)s->longest + (size_t)i].work;
            double ns = (double)(work - timings[0].wait) - last;
            if (last == 0 || ns <= 0 || in->opcode >= OP_COUNT) continue;
            m->waited[in->opcode].ns += ns;
            m->waited[in->opcode].count++;
        }
    }
    free(ends);
    return ends != NULL;
}

static qp_status take_means(measuring_cuda *m, const timed_model *r, const timed_machine *machine,
                            qp_error *error)
{
    const schedule *s = machine->schedule;
    const size_t places = (size_t)s->options.workers * (size_t)s->longest;
    for (size_t i = 0; i < places; i++)
        machine->sum[i] /= machine->passes;
    m->table.workers = s->options.workers;
    return measure_take_samples(&m->samples, r, machine, machine->sum,
                                (cost_sample){.tiny = m->tiny}, error);
}

static qp_status time_launches(measuring_cuda *m, timed_model *r, timed_machine *machine,
                               qp_error *error)
{
    TRY(timed_warm_up(r, machine, error));
    for (int i = 0; i < LAUNCHES; i++) {
        if (m->options->cancel && *m->options->cancel)
            return error_set(error, QP_CANCELLED, "stopped; nothing was written");
        TRY(timed_run(r, machine, error));
        if (!m->tiny && !add_waits(m, machine->schedule, machine->last))
            return error_no_memory(error, "the measurement",
                                   (size_t)machine->schedule->n_counters * sizeof(double));
    }
    return take_means(m, r, machine, error);
}

static qp_status time_model(measuring_cuda *m, timed_model *r, qp_error *error)
{
    const schedule_options usual = {0};
    timed_machine machine;
    machine_profile limits;
    TRY(timed_fill(r, 1, DEPTH, error));
    snprintf(m->table.machine, sizeof m->table.machine, "%s", r->device.name);
    qp_status status = timed_machine_open(r, &usual, NULL, false, &machine, error);
    if (status == QP_OK) status = time_launches(m, r, &machine, error);
    timed_machine_close(&machine);
    if (status != QP_OK || m->tiny) return status;
    TRY(machine_limits(&r->memory, &limits, error));
    m->table.limits.flops_per_second = limits.flops_per_second;
    if (limits.bytes_per_second > m->table.limits.bytes_per_second)
        m->table.limits.bytes_per_second = limits.bytes_per_second;
    return QP_OK;
}

static qp_status measure_model(measuring_cuda *m, const char *preset, qp_error *error)
{
    char name[128];
    snprintf(name, sizeof name, "synthetic:%s:%s", preset, dtype_name(m->type));
    tell(m, name, false);
    timed_model r;
    timed_options options = {.model = name,
                             .device = m->options->device,
                             .threads = m->options->threads,
                             .context = DEPTH,
                             .chunk = CHUNK};
    qp_status status = timed_open(&options, &r, error);
    if (status == QP_OK) status = time_model(m, &r, error);
    timed_close(&r);
    return status;
}

static qp_status measure_types(measuring_cuda *m, qp_error *error)
{
    const char *large = m->options->large ? m->options->large : "llama-3.2-1b";
    for (int type = 0; type < DTYPE_COUNT; type++) {
        m->type = (dtype)type;
        for (int tiny = 0; tiny < 2 && measure_wants(m->options, m->type); tiny++) {
            m->tiny = tiny;
            qp_status status = measure_model(m, tiny ? "tiny" : large, error);
            if (status == QP_UNSUPPORTED) break; /* a type that the megakernel does not support */
            if (status != QP_OK && status != QP_NO_MEMORY) return status;
        }
    }
    cost_fit(&m->samples, &m->table);
    if (m->table.n_curves > 0) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "the megakernel runs no model that could be measured: it needs a GPU of "
                     "compute capability 9.0 with room for synthetic:llama-3.2-1b");
}

/* The costs of each operator, and the mean of all for other operators. */
static void take_waits(measuring_cuda *m)
{
    double ns = 0, count = 0;
    for (int op = 0; op < OP_COUNT; op++) {
        ns += m->waited[op].ns;
        count += m->waited[op].count;
    }
    m->table.limits.signal_ns = count > 0 ? ns / count : 0;
    for (int i = 0; i < m->table.n_curves; i++) {
        cost_curve *curve = &m->table.curves[i];
        const waited *of = &m->waited[curve->op];
        if (of->count > 0) curve->signal_ns = of->ns / of->count;
    }
}

qp_status measure_cuda_costs(const measure_options *options, strbuf *out, qp_error *error)
{
    measuring_cuda *m = calloc(1, sizeof *m);
    if (!m) return error_no_memory(error, "the measurement", sizeof *m);
    m->options = options;
    snprintf(m->table.device, sizeof m->table.device, "cuda");
    snprintf(m->table.version, sizeof m->table.version, "%s", version_text);
    qp_status status = measure_types(m, error);
    take_waits(m);
    tell(m, "", true);
    if (status == QP_OK) status = measure_keep(&m->table, options->path, out, error);
    free(m->samples.of);
    free(m);
    return status;
}
