/* The machine `megakernel`: see machine.h.
 *
 * It runs over the memory of a machine `cuda`, its own or one that the caller shares, and runs all
 * steps up to the logits in one launch of many passes. After a pass, the residual, queries, keys
 * and values of every layer and the cleared sums of the next pass are still in the GPU's memory. A
 * comparison can therefore check each step with the inputs that the megakernel itself had.
 */
#include "vm/mega/machine.h"

#include "base/clock.h"
#include "cuda/ranks.h"
#include "op/adjust_logits/adjust_logits.h"
#include "vm/cuda/machine.h"
#include "vm/machine_run.h"
#include "vm/mega/parts.h"
#include "vm/mega/records.h"
#include "lower/lower.h"

#include <stdlib.h>

enum { USUAL_PASSES = 16 };

typedef struct mega_machine {
    program program; /* of the machine that it owns */
    machine own;     /* not open if the machine runs over another one */
    const machine *cuda;
    const cuda_ranks *gpus; /* of all ranks; NULL: there is one */
    cuda_mega mega;
    int ran; /* passes of the last run */
} mega_machine;

/* ---- memory -------------------------------------------------------------------------------- */

static cuda_mega_options options_of(const machine_setup *setup)
{
    if (!setup->schedule)
        return (cuda_mega_options){.assignment = SCHEDULE_RR,
                                   .alone = setup->alone,
                                   .verifies = setup->verifies,
                                   .progress = setup->progress,
                                   .group = setup->group};
    return (cuda_mega_options){.n_blocks = setup->schedule->workers,
                               .assignment = setup->schedule->assignment,
                               .costs = setup->schedule->costs,
                               .context = setup->schedule->context,
                               .progress = setup->progress,
                               .alone = setup->alone,
                               .verifies = setup->verifies,
                               .group = setup->group};
}

/* The number of blocks that a setup asks for, or that there will be. */
static int blocks_of(const machine_setup *setup)
{
    const int n_blocks = options_of(setup).n_blocks;
    if (n_blocks) return n_blocks;
    return setup->device ? setup->device->n_multiprocessors : CUDA_USUAL_MULTIPROCESSORS;
}

static const char *verify_refusal_of_mega(const machine_setup *setup)
{
    if (setup->device && !cuda_device_has(setup->device, CUDA_MEGA_NEEDS)) return CUDA_MEGA_REFUSAL;
    return cuda_mega_verify_refusal(setup->program, blocks_of(setup));
}

static int64_t verify_rows_of_mega(const void *self)
{
    const mega_machine *m = self;
    return cuda_mega_verify_rows(&m->mega);
}

static qp_status count_mega(const machine_setup *setup, machine_bytes *out, qp_error *error)
{
    const cuda_mega_bytes own = cuda_mega_count(setup->program, blocks_of(setup), setup->verifies);
    TRY(machine_cuda.count_bytes(setup, out, error));
    out->weights_again = own.weights;
    out->tables = own.tables;
    out->total += own.weights + own.tables;
    return QP_OK;
}

static void close_mega(void *self)
{
    mega_machine *m = self;
    if (!m) return;
    if (m->mega.executor) cuda_device_enter(m->mega.executor->device, NULL);
    cuda_mega_free(&m->mega);
    machine_close(&m->own);
    program_free(&m->program);
    free(m);
}

/* Opens the machine `cuda` that this one runs over. */
static qp_status open_own(mega_machine *m, const machine_setup *setup, qp_error *error)
{
    plan_options options = setup->program->options;
    options.fuse = options.sums = false;
    TRY(lower_rebuild(setup->program, &options, &m->program, error));
    machine_setup own = *setup;
    own.program = &m->program;
    m->cuda = &m->own;
    return machine_open(&machine_cuda, &own, &m->own, error);
}

/* The kernels of ranks write to each other's memory. */
static qp_status check_exchange(const machine_setup *setup, qp_error *error)
{
    if (setup->program->options.ranks == 1 || !setup->gpus || setup->gpus->by == CUDA_BY_PEERS)
        return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "the megakernel's ranks write to each other's memory, so they are GPUs of one "
                     "process with peer access");
}

static qp_status open_mega(const machine_setup *setup, void **self, qp_error *error)
{
    mega_machine *m = *self = calloc(1, sizeof *m);
    if (!m) return error_no_memory(error, "the machine", sizeof *m);
    m->cuda = setup->over;
    TRY(check_exchange(setup, error));
    if (!m->cuda) TRY(open_own(m, setup, error));
    m->gpus = setup->program->options.ranks > 1 ? setup->gpus : NULL;
    TRY(cuda_device_enter(cuda_machine_executor(m->cuda)->device, error));
    const cuda_mega_options how = options_of(setup);
    TRY(cuda_mega_init(&m->mega, cuda_machine_executor(m->cuda), &how, error));
    if (m->mega.kernel) return QP_OK;
    return error_set(error, QP_UNSUPPORTED, "%s", m->mega.why_not);
}

cuda_mega *mega_machine_of(const machine *m)
{
    return &((mega_machine *)m->self)->mega;
}

static bool keeps_tensor(plan_tensor_id id)
{
    return id == PLAN_SUMS || id == PLAN_SUMS_NEXT || id == PLAN_ATTN || id == PLAN_LOGITS ||
           id == PLAN_K_CACHE || id == PLAN_V_CACHE;
}

static qp_status read_mega(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                           qp_error *error)
{
    mega_machine *m = self;
    switch (id) {
    case PLAN_SUMS:
    case PLAN_SUMS_NEXT:
        return cuda_mega_read_sums(&m->mega, id == PLAN_SUMS_NEXT, data, error);
    case PLAN_ATTN:
        return cuda_mega_read_queries(&m->mega, layer, data, error);
    default:
        return machine_read(m->cuda, id, layer, data, bytes, error);
    }
}

static qp_status write_mega(void *self, plan_tensor_id id, int64_t layer, const void *data,
                            size_t bytes, qp_error *error)
{
    const mega_machine *m = self;
    return machine_write(m->cuda, id, layer, data, bytes, error);
}

static qp_status copy_page_mega(void *self, int32_t from, int32_t to, qp_error *error)
{
    const mega_machine *m = self;
    return machine_copy_page(m->cuda, from, to, error);
}

static qp_status read_page_mega(void *self, int32_t page, void *data, qp_error *error)
{
    const mega_machine *m = self;
    return machine_read_page(m->cuda, page, data, error);
}

static qp_status write_page_mega(void *self, int32_t page, const void *data, qp_error *error)
{
    const mega_machine *m = self;
    return machine_write_page(m->cuda, page, data, error);
}

static float *logits_of_mega(void *self)
{
    const mega_machine *m = self;
    return cuda_machine_logits(m->cuda);
}

static machine_kernel kernel_of_mega(const void *self, int node)
{
    (void)self, (void)node;
    return (machine_kernel){.name = "megakernel"};
}

/* ---- running ------------------------------------------------------------------------------- */

/* Whether tokens are sampled: by the batch's settings, not the likeliest. */
static bool chooses(const machine_request *r)
{
    return r->choice == MACHINE_SAMPLED;
}

/* For several sequences, or if blocks have no room for sampling, the program's steps choose tokens
 * after the launch. */
static bool chooses_after(const mega_machine *m, int64_t n_sequences, machine_choice choice)
{
    return choice == MACHINE_SAMPLED && (n_sequences > 1 || !m->mega.can_choose);
}

/* Whether each row takes the likeliest of its unchanged logits, which the launch itself finds. */
static bool takes_likeliest(const batch *b)
{
    for (int64_t i = 0; i < batch_outputs(b); i++)
        if (((const float *)b->of[PLAN_TEMPERATURES])[i] != 0 || batch_i32(b, PLAN_USES)[i] != 0)
            return false;
    return true;
}

static const char *accepts_mega(const void *self, const machine_request *r)
{
    const mega_machine *m = self;
    const program *p = m->mega.executor->program;
    const char *why_not = machine_refuses(p, r);
    const int64_t n = batch_tokens(r->batch);
    if (why_not) return why_not;
    if (r->first > 0 || (r->last > 0 && r->last != p->logits_end))
        return "the megakernel runs passes from their beginning to the logits";
    if (r->continues) return "the megakernel has no run under way that another could continue";
    if (!cuda_mega_takes(&m->mega, r->batch, r->verifies))
        return "the megakernel runs passes of one new token of each sequence, or of a sequence's "
               "last token and proposals, of as many rows as it has kernels for";
    const int32_t uses =
        n == 1 && r->choice == MACHINE_SAMPLED ? batch_i32(r->batch, PLAN_USES)[0] : 0;
    if (uses & ADJUST_MASK) return "the megakernel's blocks know no masks of allowed tokens";
    if (uses && !m->mega.can_choose) return "the megakernel has too few blocks to choose tokens in";
    if (chooses_after(m, n, r->choice) && machine_passes_of(r) > 1)
        return "tokens chosen by the program's step \"sample\" come one pass at a time";
    if (machine_passes_of(r) * n > CUDA_MEGA_MAX_TOKENS)
        return "these are more tokens than one launch of the megakernel makes";
    return NULL;
}

static machine_pace pace_of_mega(const void *self, int64_t n_sequences, machine_choice choice)
{
    const mega_machine *m = self;
    if (!cuda_mega_takes_rows(&m->mega, n_sequences)) return (machine_pace){0, 0};
    const bool one = choice == MACHINE_LOGITS || chooses_after(m, n_sequences, choice);
    return (machine_pace){one ? 1 : USUAL_PASSES, 1};
}

static bool hand_on(void *request, int32_t token)
{
    return machine_hand_on(request, &token);
}

/* The settings of the batch's one row, whose history and biases lie in its slot. */
static mega_sampling sampling_of(const cuda_executor *x, const batch *b)
{
    const int32_t uses = batch_i32(b, PLAN_USES)[0], slot = batch_i32(b, PLAN_SLOTS)[0];
    const bool penalises = uses & ADJUST_PENALISE;
    return (mega_sampling){
        .temperature = ((const float *)b->of[PLAN_TEMPERATURES])[0],
        .top_k = batch_i32(b, PLAN_TOP_KS)[0],
        .top_p = ((const float *)b->of[PLAN_TOP_PS])[0],
        .min_p = ((const float *)b->of[PLAN_MIN_PS])[0],
        .repetition = penalises ? ((const float *)b->of[PLAN_REPETITIONS])[0] : 1,
        .presence = penalises ? ((const float *)b->of[PLAN_PRESENCES])[0] : 0,
        .frequency = penalises ? ((const float *)b->of[PLAN_FREQUENCIES])[0] : 0,
        .penalises = penalises,
        .bias = uses & ADJUST_BIAS ? cuda_executor_address(x, PLAN_BIAS, slot) : 0,
        .seed = (uint64_t)((const int64_t *)b->of[PLAN_SEEDS])[0]};
}

/* How a launch of one sequence chooses its tokens, and where it delivers them. */
static cuda_mega_request request_of(const mega_machine *m, const machine_request *r)
{
    const cuda_executor *x = m->mega.executor;
    cuda_mega_request request = {.chooses = chooses(r),
                                 .on_token = hand_on,
                                 .context = (void *)r,
                                 .cancel = r->cancel,
                                 .stops = r->stops,
                                 .n_stops = r->n_stops};
    if (!request.chooses) return request;
    request.sampling = sampling_of(x, r->batch);
    request.history = cuda_executor_address(x, PLAN_HISTORY, batch_i32(r->batch, PLAN_SLOTS)[0]);
    return request;
}

/* Runs the program's choosing steps over the pass's logits. */
static qp_status choose_after(mega_machine *m, const machine_request *r, qp_error *error)
{
    cuda_executor *x = m->mega.executor;
    TRY(cuda_machine_choose(x, r->batch, error));
    TRY(cuda_executor_read(x, PLAN_NEXT, 0, r->tokens,
                           (size_t)batch_outputs(r->batch) * sizeof *r->tokens, error));
    machine_hand_on(r, r->tokens);
    return QP_OK;
}

/* After a single pass all ranks gather the logits, because only the first one knows whether its
 * owner reads them. */
static qp_status run_passes(mega_machine *m, const machine_request *r,
                            const cuda_mega_request *request, int32_t *tokens, qp_error *error)
{
    TRY(cuda_mega_run(&m->mega, r->batch, request, &m->ran, tokens, error));
    return m->gpus && machine_passes_of(r) == 1 ? mega_gather_logits(&m->mega, r->batch, error)
                                                : QP_OK;
}

static qp_status launch(mega_machine *m, const machine_request *r, qp_error *error)
{
    const int64_t n = batch_tokens(r->batch);
    const bool alone = n == 1;
    const bool delivers = r->on_tokens || r->cancel || r->n_stops > 0 || chooses(r);
    cuda_mega_request request;
    m->ran = machine_passes_of(r);
    const bool after = chooses_after(m, n, r->choice) && (alone || !takes_likeliest(r->batch));
    if (r->choice == MACHINE_LOGITS || after) {
        TRY(run_passes(m, r, NULL, NULL, error));
        return after ? choose_after(m, r, error) : QP_OK;
    }
    if (alone && delivers) request = request_of(m, r);
    TRY(run_passes(m, r, alone && delivers ? &request : NULL, r->tokens, error));
    for (int i = 0; i < m->ran && !alone; i++)
        if (!machine_hand_on(r, r->tokens + i * n)) break;
    return QP_OK;
}

/* Waits for the exchange of logits, and whether a rank waited in vain. */
static qp_status check_ranks(const mega_machine *m, qp_error *error)
{
    TRY(cuda_device_wait(m->mega.executor->device, "the forward pass", error));
    return cuda_ranks_check(m->gpus, error);
}

static qp_status run_mega(void *self, const machine_request *r, qp_error *error)
{
    mega_machine *m = self;
    const size_t recorded = m->mega.n_timed;
    TRY(launch(m, r, error));
    if (r->logits)
        TRY(cuda_executor_read_logits(m->mega.executor, r->logit_rows,
                                      r->logit_rows ? r->n_logit_rows : batch_outputs(r->batch),
                                      logits_of_mega(m), error));
    if (m->gpus) TRY(check_ranks(m, error));
    const int n = r->n_records < m->ran ? r->n_records : m->ran;
    if (n == 0 || m->mega.n_timed == recorded) return QP_OK;
    return mega_read_records(&m->mega, recorded, r->records, n, clock_ns(), error);
}

static qp_status wait_mega(void *self, int *passes, qp_error *error)
{
    (void)error;
    const mega_machine *m = self;
    *passes = m->ran;
    return QP_OK;
}

/* ---- schedules and times ------------------------------------------------------------------- */

static const schedule *schedule_of_mega(const void *self)
{
    const mega_machine *m = self;
    return &m->mega.schedule;
}

static qp_status predict_mega(const void *self, const schedule_options *options, schedule *out,
                              qp_error *error)
{
    const mega_machine *m = self;
    const cuda_mega_options how = {
        .assignment = options->assignment, .costs = options->costs, .context = options->context};
    return cuda_mega_plan(&m->mega, &how, out, error);
}

static qp_status time_mega(void *self, const machine_timing *timing, qp_error *error)
{
    mega_machine *m = self;
    if (timing && timing->max_passes) return cuda_mega_time(&m->mega, timing->max_passes, error);
    cuda_mega_time_no_more(&m->mega);
    return QP_OK;
}

static qp_status limits_of_mega(void *self, machine_profile *out, qp_error *error)
{
    const mega_machine *m = self;
    return machine_limits(m->cuda, out, error);
}

const machine_type machine_megakernel = {.name = "megakernel",
                                         .on_gpu = true,
                                         .counts_chosen = true,
                                         .whole = true,
                                         .count_bytes = count_mega,
                                         .open = open_mega,
                                         .close = close_mega,
                                         .accepts = accepts_mega,
                                         .pace = pace_of_mega,
                                         .run = run_mega,
                                         .wait = wait_mega,
                                         .logits = logits_of_mega,
                                         .keeps = keeps_tensor,
                                         .read = read_mega,
                                         .write = write_mega,
                                         .copy_page = copy_page_mega,
                                         .read_page = read_page_mega,
                                         .write_page = write_page_mega,
                                         .verify_refusal = verify_refusal_of_mega,
                                         .verify_rows = verify_rows_of_mega,
                                         .kernel = kernel_of_mega,
                                         .schedule = schedule_of_mega,
                                         .predict = predict_mega,
                                         .time = time_mega,
                                         .limits = limits_of_mega};
