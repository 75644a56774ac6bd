/* Opens the machines of an engine, and counts their memory before that. */
#include "engine/open.h"

#include "base/platform.h"
#include "lower/lower.h"
#include "vm/ranks.h"

#include <stdio.h>

/* What machines are opened for; `inner` is the machine of each of several ranks. */
machine_setup engine_machine_setup(qp_engine *e, const qp_engine_options *options,
                                   const machine_type *inner, const schedule_options *schedule)
{
    return (machine_setup){.program = &e->program,
                           .pool = e->pool,
                           .cpu_features = e->cpu_features,
                           .kernels = e->has_kernels ? &e->kernels : NULL,
                           .cuda_kernels = e->has_cuda_kernels ? e->cuda_kernels : NULL,
                           .progress = &e->progress,
                           .schedule = schedule,
                           .order = options->order,
                           .pack_later = e->at_once && e->ranks.size == 1,
                           .inner = inner,
                           .n_ranks = e->ranks.size,
                           .cut = e->ranks.cut,
                           .gpus = e->ranks.gpus,
                           .group = e->ranks.size > 1 ? e->ranks.world : NULL,
                           .device = e->device.context ? &e->device : NULL};
}

/* What is opened where a model runs on machines of that type. */
static const machine_type *type_of_ranks(const qp_engine *e, const machine_type *type)
{
    return e->ranks.size > 1 ? &machine_ranks : type;
}

/* Asks whoever shares this machine's memory out, if somebody does. */
static qp_status ask_for_memory(const qp_engine *e, uint64_t bytes, qp_error *error)
{
    return e->admit ? e->admit(e->admit_context, bytes, error) : QP_OK;
}

/* A run that does not fit is refused before any weight is read. Weights count as the kernels keep
 * them. A GPU's machines check their own memory when they open. */
qp_status engine_check_memory(qp_engine *e, const qp_engine_options *options,
                              const machine_type *type, qp_error *error)
{
    const machine_setup setup = engine_machine_setup(e, options, type, NULL);
    const double gib = 1 << 30;
    machine_bytes need;
    if (e->device.context) {
        if (!e->admit) return QP_OK;
        TRY(machine_count_bytes(type ? type_of_ranks(e, type) : &machine_cuda, &setup, &need,
                                error));
        return ask_for_memory(e, need.total, error);
    }
    TRY(machine_count_bytes(type_of_ranks(e, type), &setup, &need, error));
    TRY(ask_for_memory(e, need.total, error));
    uint64_t available = platform_free_memory();
    if (need.total <= available) return QP_OK;
    int64_t fits =
        lower_largest_context(&e->program.config, &e->program.options, need.weights, available);
    return error_set(
        error, QP_NO_MEMORY,
        "%s needs %.2f GiB (weights %.2f, KV cache %.2f for %lld times %lld positions), but %.2f "
        "GiB are available; %s%lld",
        model_path(e->model), (double)need.total / gib, (double)need.weights / gib,
        (double)need.kv_cache / gib, (long long)e->program.options.max_sequences,
        (long long)e->program.options.context, (double)available / gib,
        fits > 0 ? "the largest context that fits is " : "no context fits, not even one page of ",
        (long long)(fits > 0 ? fits : e->program.options.page_size));
}

/* Speculation runs on the megakernel if that verifies the model's proposals; else on `cuda` alone,
 * which gives other bits. *verifies: the megakernel does. */
static qp_status plan_speculation(qp_engine *e, const qp_engine_options *options,
                                  const machine_type *type, bool *verifies, qp_error *error)
{
    char message[320];
    *verifies = false;
    if (!e->device.context || !engine_speculates(options)) return QP_OK;
    if (option_is(options->exec, "cuda") || e->has_cuda_kernels) return QP_OK;
    const schedule_options blocks = {.workers = options->workers};
    const machine_setup setup = engine_machine_setup(e, options, &machine_megakernel, &blocks);
    const char *why = e->ranks.size > 1 ? "the megakernel of several ranks reads one token of a "
                                          "sequence in a pass"
                                        : machine_megakernel.verify_refusal(&setup);
    if (why && type)
        return error_set(error, QP_UNSUPPORTED,
                         "%s, and speculation has several: use --exec cuda, or leave --speculate "
                         "and --draft out",
                         why);
    snprintf(message, sizeof message,
             "speculation runs on the machine cuda, without the megakernel: %s", why ? why : "");
    if (why) engine_say(e, QP_LOG_NOTICE, message);
    *verifies = !why;
    /* `cuda` then reads what it reads without speculation. */
    e->program.options.few_alike = why != NULL;
    return QP_OK;
}

/* Where the megakernel makes a pass of several sequences faster than `cuda`: eight of llama-3.2-1b
 * take 747 us for 826 with contexts of up to 160 positions, 886 for 880 at 1,024, 943 for 1,112 at
 * 1,900, and 1,227 for 1,202 at 4,000; in Q4_0 528 for 698, and 919 for 1,180 at 4,000. */
enum { MEGAKERNEL_SEQUENCES = 4, MEGAKERNEL_CONTEXT = 2048, MEGAKERNEL_QUANTISED_CONTEXT = 4096 };

static bool runs_alone(const program *p)
{
    const int q = program_find_weight(p, WEIGHT_ATTN_Q, 0, false);
    const int64_t context = dtype_is_quantized(p->weights[q].whole.type)
                                ? MEGAKERNEL_QUANTISED_CONTEXT
                                : MEGAKERNEL_CONTEXT;
    return p->options.max_sequences > MEGAKERNEL_SEQUENCES && p->options.context > context;
}

/* The megakernel has no launches that custom kernels could take the place of. */
static qp_status leave_to_kernels(const qp_engine *e, const machine_type *type, qp_error *error)
{
    if (type)
        return error_set(
            error, QP_UNSUPPORTED,
            "the megakernel is one kernel for whole passes and calls no custom kernels: "
            "use --exec cuda");
    engine_say(e, QP_LOG_NOTICE, "custom kernels run on the machine cuda, without the megakernel");
    return QP_OK;
}

/* The megakernel's ranks write to each other's memory. */
static qp_status leave_to_carrier(const qp_engine *e, const machine_type *type, qp_error *error)
{
    static const char why[] = "the megakernel's ranks write to each other's memory, so they are "
                              "different GPUs of one process with peer access";
    if (type) return error_set(error, QP_UNSUPPORTED, "%s: use --exec cuda", why);
    engine_say(e, QP_LOG_INFO, why);
    return QP_OK;
}

/* The megakernel over the machine `cuda`, unless that is asked for; what it does not do is run
 * there. */
static qp_status open_megakernel(qp_engine *e, const qp_engine_options *options,
                                 const engine_schedule *chosen, const machine_type *type,
                                 bool verifies, qp_error *error)
{
    qp_error why = {0};
    const schedule_options blocks = {.workers = options->workers,
                                     .assignment = chosen->options.assignment};
    machine_setup setup = engine_machine_setup(e, options, &machine_megakernel, &blocks);
    machine *m = &e->slots[0];
    setup.over = engine_memory(e);
    setup.alone = !type && runs_alone(&e->program);
    setup.verifies = verifies;
    if (option_is(options->exec, "cuda")) return QP_OK;
    if (e->ranks.gpus && e->ranks.gpus->by != CUDA_BY_PEERS)
        return leave_to_carrier(e, type, error);
    if (e->has_cuda_kernels) return leave_to_kernels(e, type, error);
    if (engine_speculates(options) && !verifies) return QP_OK;
    qp_status status = machine_open(type_of_ranks(e, &machine_megakernel), &setup, m, &why);
    if (status == QP_OK) {
        e->n_machines++;
        return QP_OK;
    }
    machine_close(m);
    /* What one rank refuses is a failure of the group to the others. */
    if (status == QP_IO && e->ranks.size > 1) status = QP_UNSUPPORTED;
    /* `cuda` alone was to be opened with few_alike. */
    const bool lacks = verifies && e->program.options.max_sequences > 1;
    if (type || lacks || (status != QP_NO_MEMORY && status != QP_UNSUPPORTED))
        return error_set(error, status, "%s%s", why.message,
                         lacks || status == QP_UNSUPPORTED ? "; --exec cuda runs any model" : "");
    if (status == QP_UNSUPPORTED && options->workers)
        return error_set(error, status, "%s, so that --workers %d has no meaning", why.message,
                         options->workers);
    engine_say(e, status == QP_NO_MEMORY ? QP_LOG_NOTICE : QP_LOG_INFO,
               status == QP_NO_MEMORY
                   ? "the GPU has no room for the megakernel's tables: running operator by operator"
                   : why.message);
    return QP_OK;
}

/* The machine that has the memory, and those over it. */
qp_status engine_open_machines(qp_engine *e, const qp_engine_options *options,
                               const engine_schedule *chosen, const machine_type *type,
                               qp_error *error)
{
    const schedule_options schedule = engine_schedule_options(e, chosen);
    machine_setup setup = engine_machine_setup(e, options, type, &schedule);
    setup.schedule_file = chosen->file;
    const bool gpu = e->device.context != NULL;
    bool verifies;
    TRY(plan_speculation(e, options, type, &verifies, error));
    pack_cache cache;
    setup.packed = engine_packed(e, options, &cache);
    e->n_machines = 1;
    if (gpu) setup.inner = &machine_cuda;
    TRY(machine_open(type_of_ranks(e, gpu ? &machine_cuda : type), &setup,
                     &e->slots[ENGINE_MACHINES - 1], error));
    engine_say_packed(e, setup.packed);
    return gpu ? open_megakernel(e, options, chosen, type, verifies, error) : QP_OK;
}

void engine_say_copies(const qp_engine *e)
{
    const machine_copies copies = machine_copies_of(engine_memory(e));
    const plan_copies choice = e->program.options.bf16_copies;
    char message[200];
    if (copies.tiles > 0) {
        snprintf(message, sizeof message,
                 "the GPU also keeps %.2f GiB of weights in the order in which several sequences "
                 "read them; --bf16-copies off does not",
                 (double)copies.tiles / 0x1p30);
        engine_say(e, QP_LOG_INFO, message);
    }
    if (copies.wanted == 0) {
        if (choice == PLAN_COPIES_ON || (choice == PLAN_COPIES_OFF && !e->device.context))
            engine_say(e, QP_LOG_WARNING,
                       e->device.context ? "there are no copies in BF16: the weights are in BF16"
                                         : "there are no copies in BF16: they are a GPU's");
        return;
    }
    const char *what = copies.in_f8 ? "weights in the order in which up to 64 tokens read them"
                                    : "the weights in BF16";
    const char *who = copies.in_f8 ? "passes of up to 64 tokens" : "prompts and several sequences";
    if (copies.made > 0)
        snprintf(message, sizeof message,
                 "the GPU also keeps %s, %.2f GiB, for %s; --bf16-copies off does not", what,
                 (double)copies.made / 0x1p30, who);
    else
        snprintf(
            message, sizeof message, "the GPU does not also keep %s, %.2f GiB%s: %s take longer",
            what, (double)copies.wanted / 0x1p30,
            choice == PLAN_COPIES_AUTO ? ", since twice their size would not stay free" : "", who);
    engine_say(e, choice == PLAN_COPIES_AUTO ? QP_LOG_NOTICE : QP_LOG_INFO, message);
}

/* Few blocks have no room to choose in. */
void engine_say_who_chooses(const qp_engine *e)
{
    const machine_pace likeliest = engine_pace(e, 1, MACHINE_LIKELIEST);
    const machine_pace sampled = engine_pace(e, 1, MACHINE_SAMPLED);
    if (sampled.passes < likeliest.passes)
        engine_say(
            e, QP_LOG_INFO,
            "the megakernel has too few blocks to choose tokens in: those that are not just the "
            "likeliest are chosen after each pass");
}

/* The queues that the machine which is asked first reads. */
int engine_workers(const qp_engine *e)
{
    const machine *m = engine_machine(e, 0);
    const bool blocks = m->type == &machine_megakernel;
    return blocks ? machine_schedule(m)->options.workers : thread_pool_size(e->pool);
}
