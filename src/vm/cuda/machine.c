/* The machine `cuda`: see machine.h.
 *
 * Passes that feed their tokens back run in groups, of which CUDA_GROUPS may be in flight. Any
 * other pass is not in a group: it is in the stream when run() returns, and wait() waits for it.
 */
#include "vm/cuda/machine.h"

#include "base/buffer.h"
#include "cuda/ranks.h"
#include "op/attention/attention_cuda.h"
#include "op/carrier_cuda.h"
#include "vm/cuda/custom_kernels.h"
#include "vm/cuda/timing.h"
#include "vm/machine_run.h"

#include <stdlib.h>

/* A run that was not waited for yet. */
typedef struct cuda_flight {
    machine_request request;
    int64_t n_outputs;
    int passes;
    bool in_group; /* a group of passes; else a single pass */
} cuda_flight;

_Static_assert((int)CUDA_GROUPS <= (int)MACHINE_MAX_RUNS, "as machine.h says");

typedef struct cuda_machine {
    cuda_device own, *device;
    const cuda_ranks *gpus; /* of all ranks; NULL: there is one */
    cuda_carrier carrier;   /* between GPUs that do not write to each other's memory */
    cuda_executor executor;
    buffer logits; /* used if there is no pinned memory for them */
    batch later;   /* of a group's later passes */
    cuda_flight flights[CUDA_GROUPS];
    int n_begun, n_ended; /* runs */
    op_variant
        *variants; /* [program->n_nodes]: names and tolerances of kernels, as last requested */
    program_sizes sizes; /* of the last pass */
    cuda_timing timing;
} cuda_machine;

/* ---- memory -------------------------------------------------------------------------------- */

static qp_status count_copies(const program *p, uint64_t *bytes, qp_error *error)
{
    cuda_weights weights;
    qp_status status = cuda_weights_place(p, &weights, error);
    *bytes = cuda_weights_copies(&weights) + cuda_weights_tiles(&weights);
    cuda_weights_free(NULL, &weights);
    return status;
}

/* Without GPUs, kernels exchange the rows. */
static size_t exchange_bytes(const machine_setup *setup)
{
    const int ranks = setup->program->options.ranks;
    const bool peers = !setup->gpus || setup->gpus->by == CUDA_BY_PEERS;
    if (ranks == 1 || peers) return cuda_ranks_bytes(ranks);
    return cuda_carrier_bytes(setup->gpus->by == CUDA_BY_NCCL);
}

/* What ranks exchange on CPUs only. */
static qp_status check_model_of_ranks(const program *p, qp_error *error)
{
    const char *why = program_exchanges_more(p);
    if (p->options.ranks == 1 || !why) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "%d ranks on GPUs do not run a model with %s: leave --ranks out, or use "
                     "--device cpu",
                     p->options.ranks, why);
}

static qp_status count_cuda(const machine_setup *setup, machine_bytes *out, qp_error *error)
{
    TRY(check_model_of_ranks(setup->program, error));
    const cuda_bytes bytes = cuda_executor_count(setup->program, setup->cuda_kernels);
    const size_t exchange = exchange_bytes(setup);
    *out = (machine_bytes){.weights = bytes.weights,
                           .activations = bytes.arena,
                           .kv_cache = bytes.kv_cache,
                           .rope_table = bytes.rope_table,
                           .inputs = bytes.inputs,
                           .workspace = bytes.workspace + exchange,
                           .state = bytes.state,
                           .total = bytes.total + exchange};
    return count_copies(setup->program, &out->copies, error);
}

static void close_cuda(void *self)
{
    cuda_machine *m = self;
    if (!m) return;
    if (m->device) cuda_timing_free(&m->timing, m->device);
    batch_free(&m->later);
    cuda_executor_free(&m->executor);
    cuda_carrier_close(&m->carrier); /* after the graphs that use it */
    buffer_free(&m->logits);
    cuda_device_close(&m->own);
    free(m->variants);
    free(m);
}

/* The GPU of the machine: that of its rank, the one that is given, or one that it opens. */
static qp_status choose_device(cuda_machine *m, const machine_setup *setup, qp_error *error)
{
    const plan_options *o = &setup->program->options;
    m->gpus = o->ranks > 1 ? setup->gpus : NULL;
    if (o->ranks > 1 && (!m->gpus || m->gpus->n != o->ranks))
        return error_set(error, QP_UNSUPPORTED,
                         "a rank of %d runs on a GPU only together with the others", o->ranks);
    m->device = m->gpus && !m->gpus->apart ? m->gpus->devices[o->rank] : setup->device;
    if (m->device) return cuda_device_enter(m->device, error);
    TRY(cuda_device_open(&m->own, error));
    m->device = &m->own;
    return QP_OK;
}

static bool has_carrier(const cuda_machine *m)
{
    return m->gpus && m->gpus->by != CUDA_BY_PEERS;
}

static qp_status open_cuda(const machine_setup *setup, void **self, qp_error *error)
{
    const program *p = setup->program;
    TRY(check_model_of_ranks(p, error));
    cuda_machine *m = *self = calloc(1, sizeof *m);
    if (!m) return error_no_memory(error, "the machine", sizeof *m);
    m->sizes = p->capacity;
    m->variants = calloc((size_t)p->n_nodes, sizeof *m->variants);
    if (!m->variants) return error_no_memory(error, "the machine", (size_t)p->n_nodes);
    TRY(choose_device(m, setup, error));
    const bool carries = has_carrier(m);
    const exchange *exchange = m->gpus && !carries ? &m->gpus->exchanges[p->options.rank] : NULL;
    TRY(custom_kernels_check(setup->cuda_kernels, p, error));
    if (carries)
        TRY(cuda_carrier_open(&m->carrier, m->device, setup->group, m->gpus->by == CUDA_BY_NCCL,
                              error));
    TRY(cuda_executor_init(&m->executor, m->device, p, exchange, carries ? &m->carrier : NULL,
                           setup->cuda_kernels, setup->pool, setup->progress, error));
    if (exchange) m->executor.ops.beside = cuda_ranks_beside(m->gpus);
    if (exchange) TRY(cuda_executor_join(&m->executor, setup->group, error));
    if (!m->executor.logits.data)
        TRY(buffer_alloc(&m->logits, p->tensors[PLAN_LOGITS].bytes, "logits", error));
    return batch_init(&m->later, p, error);
}

cuda_executor *cuda_machine_executor(const machine *m)
{
    return &((cuda_machine *)m->self)->executor;
}

static float *logits_of_cuda(void *self)
{
    const cuda_machine *m = self;
    return m->executor.logits.data ? m->executor.logits.data : m->logits.data;
}

float *cuda_machine_logits(const machine *m)
{
    return logits_of_cuda(m->self);
}

static qp_status read_cuda(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                           qp_error *error)
{
    cuda_machine *m = self;
    return cuda_executor_read(&m->executor, id, layer, data, bytes, error);
}

static qp_status write_cuda(void *self, plan_tensor_id id, int64_t layer, const void *data,
                            size_t bytes, qp_error *error)
{
    cuda_machine *m = self;
    return cuda_executor_write(&m->executor, id, layer, data, bytes, error);
}

static qp_status copy_page_cuda(void *self, int32_t from, int32_t to, qp_error *error)
{
    cuda_machine *m = self;
    return cuda_executor_copy_page(&m->executor, from, to, error);
}

static qp_status read_page_cuda(void *self, int32_t page, void *data, qp_error *error)
{
    cuda_machine *m = self;
    return cuda_executor_read_page(&m->executor, page, data, error);
}

static qp_status write_page_cuda(void *self, int32_t page, const void *data, qp_error *error)
{
    cuda_machine *m = self;
    return cuda_executor_write_page(&m->executor, page, data, error);
}

/* Of attention it may be the one for sequences that all decode. */
static machine_kernel kernel_of_cuda(const void *self, int node)
{
    const cuda_machine *m = self;
    const cuda_executor *x = &m->executor;
    op_variant *variant = &m->variants[node];
    op_code op = x->program->nodes[node].op;
    op_call call;
    launch_bind(&x->setting, &m->sizes, node, &call);
    if (op == OP_PAGED_PREFILL && x->longest > 0 && x->n_decode == 0 &&
        x->setting.rules >> LOWER_RULE_decode & 1)
        op = cuda_take_decoding(&x->ops, &call);
    else if (op == OP_PAGED_PREFILL && x->longest == 0 &&
             lower_is_single(x->program, m->sizes.of) && x->setting.rules >> LOWER_RULE_decode & 1)
        op = cuda_take_single(&x->ops, &call);
    const cuda_kernel *kernel = cuda_ops_choose(&x->ops, op, &call);
    if (kernel) *variant = (op_variant){.name = kernel->name, .tolerances = kernel->tolerances};
    return (machine_kernel){variant->name ? variant->name : "cuda", false, variant};
}

/* ---- running ------------------------------------------------------------------------------- */

static bool goes_in_groups(const machine_request *r)
{
    return r->choice != MACHINE_LOGITS && batch_decodes(r->batch);
}

static const char *accepts_cuda(const void *self, const machine_request *r)
{
    const cuda_machine *m = self;
    const char *why_not = machine_refuses(m->executor.program, r);
    if (why_not) return why_not;
    if (r->choice == MACHINE_LIKELIEST && !goes_in_groups(r))
        return "the likeliest tokens are found where every sequence has one new token";
    if (machine_passes_of(r) > CUDA_GROUP) return "more passes than one group has";
    if (machine_passes_of(r) > 1 && r->batch->angles)
        return "angles that depend on the length of a sequence are made for one pass at a time";
    return NULL;
}

static machine_pace pace_of_cuda(const void *self, int64_t n_sequences, machine_choice choice)
{
    const cuda_machine *m = self;
    /* Passes are timed one by one. */
    if (choice == MACHINE_LOGITS || m->timing.marks.capacity > 0) return (machine_pace){1, 1};
    if (has_carrier(m) && !m->carrier.nccl) return (machine_pace){1, 1}; /* run() waits */
    int passes = cuda_executor_group(&m->executor, n_sequences);
    return (machine_pace){passes, passes > 1 ? CUDA_GROUPS : 1};
}

static qp_status run_group(cuda_machine *m, const machine_request *r, qp_error *error)
{
    cuda_executor *x = &m->executor;
    const int n = machine_passes_of(r), group = m->n_begun % CUDA_GROUPS;
    const machine_steps choosing = machine_choosing_steps(x->program, r->batch);
    const int choice = r->choice == MACHINE_SAMPLED ? choosing.first : 0;
    for (int pass = 0; pass < n; pass++) {
        batch_make_later(r->batch, pass, NULL, &m->later);
        TRY(cuda_executor_stage(x, &m->later, group, pass, error));
    }
    const bool timed = n == 1 && r->n_records > 0;
    if (timed) cuda_timing_begin(&m->timing, x, r->batch, &r->records[0]);
    qp_status status = cuda_executor_decode(x, &m->later, x->program->logits_end, choice, group, n,
                                            r->continues, error);
    return timed ? cuda_timing_end(&m->timing, x, &r->records[0], status, error) : status;
}

qp_status cuda_machine_choose(cuda_executor *x, const batch *b, qp_error *error)
{
    const machine_steps steps = machine_choosing_steps(x->program, b);
    return cuda_executor_run(x, b, steps.first, steps.last, error);
}

static qp_status run_alone(cuda_machine *m, const machine_request *r, qp_error *error)
{
    cuda_executor *x = &m->executor;
    const machine_steps steps = machine_steps_of(x->program, r);
    m->sizes = r->batch->sizes;
    if (r->n_records > 0) cuda_timing_begin(&m->timing, x, r->batch, &r->records[0]);
    qp_status status = cuda_executor_run(x, r->batch, steps.first, steps.last, error);
    if (r->n_records > 0) status = cuda_timing_end(&m->timing, x, &r->records[0], status, error);
    if (status == QP_OK && r->choice == MACHINE_SAMPLED)
        status = cuda_machine_choose(x, r->batch, error);
    return status;
}

/* Whether an exchange of a rank has failed. */
static qp_status check_ranks(const cuda_machine *m, qp_error *error)
{
    if (!m->gpus) return QP_OK;
    return has_carrier(m) ? cuda_carrier_check(&m->carrier, error)
                          : cuda_ranks_check(m->gpus, error);
}

static qp_status run_cuda(void *self, const machine_request *r, qp_error *error)
{
    cuda_machine *m = self;
    const int under_way = m->n_begun - m->n_ended;
    const bool in_group = goes_in_groups(r);
    if (under_way > 0 && (!in_group || !m->flights[m->n_ended % CUDA_GROUPS].in_group))
        return error_set(error, QP_INVALID, "a pass alone shares no time with another run");
    /* Groups are counted from the first again, so that the same passes have the same graphs. */
    if (under_way == 0) m->n_begun = m->n_ended = 0;
    if (under_way == CUDA_GROUPS)
        return error_set(error, QP_INVALID, "%d runs are under way already", under_way);
    if (has_carrier(m)) cuda_carrier_begin(&m->carrier);
    TRY(in_group ? run_group(m, r, error) : run_alone(m, r, error));
    TRY(check_ranks(m, error));
    m->flights[m->n_begun++ % CUDA_GROUPS] = (cuda_flight){.request = *r,
                                                           .n_outputs = batch_outputs(r->batch),
                                                           .passes = machine_passes_of(r),
                                                           .in_group = in_group};
    return QP_OK;
}

static qp_status read_logits(cuda_machine *m, const cuda_flight *f, qp_error *error)
{
    const machine_request *r = &f->request;
    const int64_t n = r->logit_rows ? r->n_logit_rows : f->n_outputs;
    return cuda_executor_read_logits(&m->executor, r->logit_rows, n, logits_of_cuda(m), error);
}

static qp_status end_group(cuda_machine *m, const cuda_flight *f, int group, qp_error *error)
{
    const machine_request *r = &f->request;
    TRY(cuda_executor_read_tokens(&m->executor, group, f->n_outputs, f->passes, r->tokens, error));
    TRY(check_ranks(m, error));
    for (int pass = 0; pass < f->passes; pass++)
        if (!machine_hand_on(r, r->tokens + pass * f->n_outputs)) break;
    return r->logits ? read_logits(m, f, error) : QP_OK;
}

static qp_status end_alone(cuda_machine *m, const cuda_flight *f, qp_error *error)
{
    const machine_request *r = &f->request;
    cuda_executor *x = &m->executor;
    if (r->choice == MACHINE_SAMPLED) {
        TRY(cuda_executor_read(x, PLAN_NEXT, 0, r->tokens, (size_t)f->n_outputs * sizeof *r->tokens,
                               error));
        TRY(check_ranks(m, error));
        machine_hand_on(r, r->tokens);
    }
    TRY(r->logits ? read_logits(m, f, error)
                  : cuda_device_wait(m->device, "the forward pass", error));
    return check_ranks(m, error);
}

static qp_status wait_cuda(void *self, int *passes, qp_error *error)
{
    cuda_machine *m = self;
    *passes = 0;
    if (m->n_begun == m->n_ended)
        return error_set(error, QP_INVALID, "no run is under way that could be waited for");
    const int group = m->n_ended++ % CUDA_GROUPS;
    const cuda_flight *f = &m->flights[group];
    qp_status status = f->in_group ? end_group(m, f, group, error) : end_alone(m, f, error);
    if (has_carrier(m)) cuda_carrier_end(&m->carrier);
    if (status == QP_OK) *passes = f->passes;
    return status;
}

static machine_copies copies_of_cuda(const void *self)
{
    const cuda_executor *x = &((const cuda_machine *)self)->executor;
    const cuda_weights *w = &x->weights;
    return (machine_copies){.wanted = w->decoded_bytes + (w->packed.in_f8 ? w->packed.bytes : 0),
                            .made = cuda_weights_copies(w),
                            .tiles = x->tiles.memory.bytes,
                            .in_f8 = w->packed.in_f8};
}

/* ---- times --------------------------------------------------------------------------------- */

static const schedule *schedule_of_cuda(const void *self)
{
    const cuda_machine *m = self;
    return m->timing.marks.capacity > 0 ? &m->timing.operators : NULL;
}

static qp_status predict_cuda(const void *self, const schedule_options *options, schedule *out,
                              qp_error *error)
{
    const cuda_machine *m = self;
    return cuda_timing_schedule(&m->executor, options, out, error);
}

static qp_status time_cuda(void *self, const machine_timing *timing, qp_error *error)
{
    cuda_machine *m = self;
    cuda_timing_free(&m->timing, m->device);
    if (!timing || timing->max_passes == 0) return QP_OK;
    return cuda_timing_open(&m->timing, &m->executor, timing->sink, timing->context, error);
}

static qp_status limits_of_cuda(void *self, machine_profile *out, qp_error *error)
{
    const cuda_machine *m = self;
    *out = (machine_profile){.flops_per_second = cuda_device_flops(m->device)};
    return cuda_executor_measure_read(&m->executor, &out->bytes_per_second, error);
}

const machine_type machine_cuda = {.name = "cuda",
                                   .on_gpu = true,
                                   .in_parts = true,
                                   .takes_cuda_kernels = true,
                                   .count_bytes = count_cuda,
                                   .open = open_cuda,
                                   .close = close_cuda,
                                   .accepts = accepts_cuda,
                                   .pace = pace_of_cuda,
                                   .run = run_cuda,
                                   .wait = wait_cuda,
                                   .logits = logits_of_cuda,
                                   .read = read_cuda,
                                   .write = write_cuda,
                                   .copy_page = copy_page_cuda,
                                   .read_page = read_page_cuda,
                                   .write_page = write_page_cuda,
                                   .copies = copies_of_cuda,
                                   .kernel = kernel_of_cuda,
                                   .schedule = schedule_of_cuda,
                                   .predict = predict_cuda,
                                   .time = time_cuda,
                                   .limits = limits_of_cuda};
