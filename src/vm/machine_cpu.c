/* The CPU machines: see machine.h.
 *
 * `reference` and `operators` run the program node by node, each node over all threads; `serial`
 * and `threads` run a schedule of it over the same kind of memory. A run has ended when run()
 * returns.
 */
#include "vm/machine_cpu.h"

#include "base/clock.h"
#include "op/argmax/argmax.h"
#include "op/run.h"
#include "plan/weights.h"
#include "schedule/build.h"
#include "schedule/skip.h"
#include "vm/pack.h"
#include "vm/segments.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory -------------------------------------------------------------------------------- */

static void free_queues(cpu_queues *q)
{
    if (!q) return;
    serial_destroy(q->serial);
    threads_machine_destroy(q->threads);
    scheduled_free(&q->scheduled);
    free(q);
}

static void close_cpu(void *self)
{
    cpu_machine *m = self;
    if (!m) return;
    cpu_free_parts(m);
    free_queues(m->queues);
    batch_free(&m->later);
    if (m->owns) executor_free(&m->own);
    free(m);
}

static qp_status count_cpu(const machine_setup *setup, uint32_t features, machine_bytes *out,
                           qp_error *error)
{
    executor sizes;
    qp_status status = executor_choose(&sizes, setup->program, features, setup->kernels, error);
    uint64_t weights = status == QP_OK ? executor_weight_bytes(&sizes) : 0;
    executor_free(&sizes);
    const program_bytes bytes = program_count_bytes(setup->program, weights);
    const uint64_t own = batch_count_bytes(setup->program); /* in addition to the caller's batch */
    *out = (machine_bytes){.weights = bytes.weights,
                           .activations = bytes.arena + bytes.sums,
                           .kv_cache = bytes.kv_cache,
                           .rope_table = bytes.rope_table,
                           .inputs = bytes.inputs + own,
                           .state = bytes.state,
                           .total = bytes.total + own};
    return status;
}

static qp_status count_references(const machine_setup *setup, machine_bytes *out, qp_error *error)
{
    return count_cpu(setup, 0, out, error);
}

static qp_status count_variants(const machine_setup *setup, machine_bytes *out, qp_error *error)
{
    return count_cpu(setup, setup->cpu_features, out, error);
}

static qp_status count_threads(const machine_setup *setup, machine_bytes *out, qp_error *error)
{
    TRY(count_variants(setup, out, error));
    out->workspace = segments_count_bytes(setup->program, thread_pool_size(setup->pool));
    out->total += out->workspace;
    return QP_OK;
}

static qp_status open_executor(const machine_setup *setup, uint32_t features, bool later,
                               cpu_machine **out, qp_error *error)
{
    cpu_machine *m = *out = calloc(1, sizeof *m);
    if (!m) return error_no_memory(error, "the machine", sizeof *m);
    m->pool = setup->pool;
    m->order = setup->order;
    m->part_features = setup->cpu_features;
    m->nodes = (schedule){
        .program = setup->program, .n_nodes = setup->program->n_nodes, .options = {.workers = 1}};
    TRY(batch_init(&m->later, setup->program, error));
    if (setup->over) {
        m->executor = ((cpu_machine *)setup->over->self)->executor;
        return QP_OK;
    }
    m->executor = &m->own;
    m->owns = true;
    if (later)
        TRY(executor_init_unpacked(&m->own, setup->program, setup->pool, features, setup->kernels,
                                   setup->progress, error));
    else
        TRY(executor_init(&m->own, setup->program, setup->pool, features, setup->kernels,
                          setup->packed, setup->progress, error));
    executor_join(&m->own, setup->group);
    return QP_OK;
}

static qp_status open_reference(const machine_setup *setup, void **self, qp_error *error)
{
    return open_executor(setup, 0, false, (cpu_machine **)self, error);
}

static qp_status open_operators(const machine_setup *setup, void **self, qp_error *error)
{
    return open_executor(setup, setup->cpu_features, false, (cpu_machine **)self, error);
}

static qp_status make_queues(const cpu_machine *m, bool serial, const schedule_options *options,
                             const char *file, cpu_queues **out, qp_error *error)
{
    cpu_queues *q = *out = calloc(1, sizeof *q);
    if (!q) return error_no_memory(error, "the machine's queues", sizeof *q);
    TRY(scheduled_init(&q->scheduled, m->executor, thread_pool_size(m->pool), options, file,
                       error));
    return serial ? serial_create(&q->scheduled.schedule, &q->serial, error)
                  : threads_machine_create(&q->scheduled.bound, m->pool, 0, &q->threads, error);
}

static qp_status open_serial(const machine_setup *setup, void **self, qp_error *error)
{
    TRY(open_reference(setup, self, error));
    cpu_machine *m = *self;
    return make_queues(m, true, setup->schedule, setup->schedule_file, &m->queues, error);
}

static qp_status open_threads(const machine_setup *setup, void **self, qp_error *error)
{
    const bool later = setup->pack_later && !setup->packed;
    TRY(open_executor(setup, setup->cpu_features, later, (cpu_machine **)self, error));
    cpu_machine *m = *self;
    TRY(make_queues(m, false, setup->schedule, setup->schedule_file, &m->queues, error));
    progress_stage_ended(setup->progress, "making the schedule");
    return QP_OK;
}

/* If the new queues cannot be made, the old ones stay. */
static qp_status reschedule_cpu(void *self, const schedule_options *options, const char *file,
                                qp_error *error)
{
    cpu_machine *m = self;
    cpu_queues *made = NULL;
    qp_status status = make_queues(m, m->queues->serial, options, file, &made, error);
    if (status != QP_OK) {
        free_queues(made);
        return status;
    }
    cpu_free_parts(m); /* they belong to the old queues */
    free_queues(m->queues);
    m->queues = made;
    return QP_OK;
}

static qp_status read_cpu(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                          qp_error *error)
{
    (void)error;
    const cpu_machine *m = self;
    memcpy(data, executor_address(m->executor, id, layer), bytes);
    return QP_OK;
}

static qp_status write_cpu(void *self, plan_tensor_id id, int64_t layer, const void *data,
                           size_t bytes, qp_error *error)
{
    (void)error;
    const cpu_machine *m = self;
    memcpy(executor_address(m->executor, id, layer), data, bytes);
    return QP_OK;
}

static qp_status copy_page_cpu(void *self, int32_t from, int32_t to, qp_error *error)
{
    (void)error;
    const cpu_machine *m = self;
    executor_copy_page(m->executor, from, to);
    return QP_OK;
}

static qp_status read_page_cpu(void *self, int32_t page, void *data, qp_error *error)
{
    (void)error;
    const cpu_machine *m = self;
    executor_read_page(m->executor, page, data);
    return QP_OK;
}

static qp_status write_page_cpu(void *self, int32_t page, const void *data, qp_error *error)
{
    (void)error;
    const cpu_machine *m = self;
    executor_write_page(m->executor, page, data);
    return QP_OK;
}

static float *logits_of_cpu(void *self)
{
    const cpu_machine *m = self;
    return executor_logits(m->executor);
}

static machine_kernel kernel_of_cpu(const void *self, int node)
{
    const cpu_machine *m = self;
    const op_variant *variant = m->executor->nodes[node].variant;
    return (machine_kernel){variant ? variant->name : "reference", !variant, variant};
}

/* ---- running ------------------------------------------------------------------------------- */

static const char *accepts_cpu(const void *self, const machine_request *request)
{
    const cpu_machine *m = self;
    const char *why_not = machine_refuses(m->executor->program, request);
    if (why_not) return why_not;
    if (request->continues) return "the CPU has no run under way that another could continue";
    return NULL;
}

static machine_pace pace_of_cpu(const void *self, int64_t n_sequences, machine_choice choice)
{
    (void)self, (void)n_sequences, (void)choice;
    return (machine_pace){.passes = 1, .runs = 1};
}

static qp_status run_serial(cpu_machine *m, const batch *b, machine_steps steps, qp_error *error)
{
    const scheduled *s = &m->queues->scheduled;
    const serial_options options = {.nodes = s->kernels,
                                    .scratch = m->executor->scratch.data,
                                    .seed = m->order,
                                    .first_step = steps.first,
                                    .last_step = steps.last};
    return serial_run(m->queues->serial, s->bound.memory, b->sizes.of, &options, error);
}

/* The program node by node: chunks are those of the operators, not of instructions. */
static void run_nodes_in_parts(cpu_machine *m, const batch *b, machine_steps steps)
{
    const executor *x = m->executor;
    for (int n = 0; n < x->program->n_nodes; n++) {
        const program_node *node = &x->program->nodes[n];
        if (node->step < steps.first || node->step >= steps.last) continue;
        if (program_is_noop(x->program, n) || b->sizes.of[node->row_axis] == 0) continue;
        op_call call;
        executor_bind(x, n, &b->sizes, &call);
        call.scratch = x->scratch.data;
        const op_variant *variant = m->queues ? NULL : x->nodes[n].variant;
        op_kernel *kernel = variant ? variant->kernel : op_get(node->op)->reference;
        if (call.begin < call.end)
            parts_run_node(m->parts[0], n, &call, kernel, m->timing.n_tracks);
    }
}

static qp_status hand_over(cpu_machine *m, qp_error *error)
{
    for (int i = 0; i < m->n_parts; i++)
        TRY(parts_hand_over(m->parts[i], m->timing.sink, m->timing.context, error));
    return QP_OK;
}

static qp_status run_steps(cpu_machine *m, const batch *b, machine_steps steps,
                           instruction_timing *timings, qp_error *error)
{
    if (!m->queues && !m->parts) {
        executor_run(m->executor, b, steps.first, steps.last);
        return QP_OK;
    }
    if (!m->queues) executor_take_inputs(m->executor, b);
    if (steps.first == 0) executor_begin_pass(m->executor);
    if (!m->queues || (m->queues->serial && m->parts)) {
        run_nodes_in_parts(m, b, steps);
        return QP_OK;
    }
    if (m->queues->serial) return run_serial(m, b, steps, error);
    threads_machine_select(m->queues->threads, steps.first, steps.last);
    return threads_machine_run(m->queues->threads, b->sizes.of, timings, error);
}

/* Packs weights that were left in their files: for twice as long as the last pass took, so that
 * tokens keep coming, but all of them before a pass of many tokens. Its products are cut by rows,
 * and each cell would pack them for itself. */
static qp_status pack_more(cpu_machine *m, const batch *b, qp_error *error)
{
    enum { FEW_TOKENS = 64 };
    if (!m->executor->unpacked) return QP_OK;
    const uint64_t ns = batch_tokens(b) > FEW_TOKENS ? UINT64_MAX : 2 * m->pass_ns;
    const uint64_t begin = clock_ns();
    if (!executor_pack_more(m->executor, ns)) return QP_OK;
    m->packing_ns += clock_ns() - begin;
    scheduled_take_kernels(&m->queues->scheduled);
    return threads_machine_find_weights(m->queues->threads, error);
}

static uint64_t packing_ns_of_cpu(const void *self)
{
    const cpu_machine *m = self;
    return m->packing_ns;
}

/* The likeliest token of each row of logits. */
static void find_likeliest(const cpu_machine *m, int64_t n, int32_t *ids)
{
    executor *x = m->executor;
    const op_info *op = op_get(OP_ARGMAX);
    const op_variant *variant;
    op_call call = {.end = n};
    call.tensors[ARGMAX_LOGITS] =
        tensor_2d(executor_logits(x), DTYPE_F32, n, x->program->config.vocab_size);
    call.tensors[ARGMAX_IDS] = tensor_1d(ids, DTYPE_I32, n);
    executor_select(x, OP_ARGMAX, &call, &variant);
    op_run(op, variant ? variant->kernel : op->reference, &call, m->pool, x->scratch.data,
           x->scratch_bytes);
}

static void choose(cpu_machine *m, const machine_request *r, const batch *b, int32_t *tokens)
{
    const int64_t n = batch_outputs(b);
    const machine_steps steps = machine_choosing_steps(m->executor->program, b);
    if (r->choice == MACHINE_LIKELIEST) {
        find_likeliest(m, n, tokens);
        return;
    }
    executor_run(m->executor, b, steps.first, steps.last);
    memcpy(tokens, m->executor->memory.data[PLAN_NEXT], (size_t)n * sizeof *tokens);
}

/* The batch of a pass. The request's batch has the pages of all passes. */
static const batch *batch_of(cpu_machine *m, const machine_request *r, int pass)
{
    const int64_t n = batch_outputs(r->batch);
    if (machine_passes_of(r) == 1) return r->batch;
    batch_make_later(r->batch, pass, pass ? r->tokens + (pass - 1) * n : NULL, &m->later);
    return &m->later;
}

static qp_status run_pass(cpu_machine *m, const machine_request *r, int pass, const batch *b,
                          qp_error *error)
{
    machine_record *record = pass < r->n_records ? &r->records[pass] : NULL;
    instruction_timing *timings =
        record && m->queues && m->queues->threads ? record->timings : NULL;
    TRY(pack_more(m, b, error));
    if (m->queues) executor_take_inputs(m->executor, b);
    const uint64_t begin = clock_ns();
    TRY(run_steps(m, b, machine_steps_of(m->executor->program, r), timings, error));
    m->pass_ns = clock_ns() - begin;
    if (!record) return QP_OK;
    record->begin = begin;
    record->end = begin + m->pass_ns;
    record->timed = timings || m->parts;
    return hand_over(m, error);
}

static qp_status run_cpu(void *self, const machine_request *r, qp_error *error)
{
    cpu_machine *m = self;
    const int passes = machine_passes_of(r);
    bool goes_on = true;
    for (m->ran = 0; goes_on && m->ran < passes; m->ran++) {
        const batch *b = batch_of(m, r, m->ran);
        TRY(run_pass(m, r, m->ran, b, error));
        if (r->choice == MACHINE_LOGITS) continue;
        int32_t *tokens = r->tokens + m->ran * batch_outputs(b);
        choose(m, r, b, tokens);
        if (m->ran < r->n_records) r->records[m->ran].chosen = clock_ns();
        goes_on = machine_hand_on(r, tokens);
    }
    return QP_OK;
}

static qp_status wait_cpu(void *self, int *passes, qp_error *error)
{
    (void)error;
    const cpu_machine *m = self;
    *passes = m->ran;
    return QP_OK;
}

/* ---- schedules ----------------------------------------------------------------------------- */

static const schedule *schedule_of_cpu(const void *self)
{
    const cpu_machine *m = self;
    return &m->queues->scheduled.schedule;
}

static qp_status predict_cpu(const void *self, const schedule_options *options, schedule *out,
                             qp_error *error)
{
    const cpu_machine *m = self;
    TRY(schedule_build(m->executor->program, options, out, error));
    return options->skip ? schedule_leave_out(out, options->skip, error) : QP_OK;
}

/* For traces of machines that run the program node by node. */
static const schedule *nodes_of_cpu(const void *self)
{
    const cpu_machine *m = self;
    return &m->nodes;
}

#define OF_CPU                                                                                     \
    .close = close_cpu, .accepts = accepts_cpu, .pace = pace_of_cpu, .run = run_cpu,               \
    .wait = wait_cpu, .logits = logits_of_cpu, .read = read_cpu, .write = write_cpu,               \
    .copy_page = copy_page_cpu, .read_page = read_page_cpu, .write_page = write_page_cpu,          \
    .packing_ns = packing_ns_of_cpu, .kernel = kernel_of_cpu
#define OF_SCHEDULE                                                                                \
    .schedule = schedule_of_cpu, .predict = predict_cpu, .reschedule = reschedule_cpu

const machine_type machine_reference = {.name = "reference",
                                        .references = true,
                                        .count_bytes = count_references,
                                        .open = open_reference,
                                        .limits = cpu_limits,
                                        OF_CPU};

const machine_type machine_serial = {.name = "serial",
                                     .references = true,
                                     .in_parts = true,
                                     .count_bytes = count_references,
                                     .open = open_serial,
                                     .time = cpu_time,
                                     .limits = cpu_limits_of_one,
                                     OF_SCHEDULE,
                                     OF_CPU};

const machine_type machine_threads = {.name = "threads",
                                      .takes_kernels = true,
                                      .count_bytes = count_threads,
                                      .open = open_threads,
                                      .time = cpu_time,
                                      .limits = cpu_limits,
                                      OF_SCHEDULE,
                                      OF_CPU};

const machine_type machine_operators = {.name = "operators",
                                        .takes_kernels = true,
                                        .in_parts = true,
                                        .count_bytes = count_variants,
                                        .open = open_operators,
                                        .time = cpu_time,
                                        .schedule = nodes_of_cpu,
                                        .limits = cpu_limits_of_one,
                                        OF_CPU};
