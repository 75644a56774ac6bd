/* quipu schedule: the forward pass as queues of instructions, before anything runs. */
#include "cli/cli.h"

#include "base/files.h"
#include "base/status.h"
#include "base/threads.h"
#include "inspect/compare.h"
#include "inspect/measure.h"
#include "inspect/schedule_print.h"
#include "inspect/tune.h"

/* What the queues are for: CPU threads, or a GPU's multiprocessors. */
typedef struct target {
    const char *device; /* "cpu", "cuda" */
    const char *gpu;    /* its name; NULL: the CPU */
    int64_t workers;
} target;

/* Opens the GPU here. To print the schedule of a GPU that is not here, the number of its blocks is
 * enough. */
static qp_status find_gpu(const cli_call *call, measure_gpu *gpu)
{
    const cli_settings *s = call->settings;
    qp_error why = {0};
    qp_status status = measure_find_gpu(gpu, &why);
    if (status == QP_OK) return QP_OK;
    if (s->measure || s->compare) return error_set(call->error, status, "%s", why.message);
    if (!s->workers)
        return error_set(call->error, status,
                         "%s; --workers N prints what a GPU of N multiprocessors would run",
                         why.message);
    *gpu = (measure_gpu){.name = "a GPU that is not here"};
    return QP_OK;
}

static qp_status find_target(const cli_call *call, measure_gpu *gpu, target *out)
{
    const cli_settings *s = call->settings;
    *out = (target){.device = "cpu", .workers = s->workers ? s->workers : threads_available()};
    if (!s->kernel_device) return QP_OK;
    TRY(find_gpu(call, gpu));
    *out = (target){"cuda", gpu->name, s->workers ? s->workers : gpu->n_multiprocessors};
    return QP_OK;
}

static qp_status measure(const cli_call *call, const target *target, strbuf *out)
{
    measure_options options = {.device = target->gpu ? target->device : NULL,
                               .types = call->settings->types,
                               .threads = (int)target->workers,
                               .path = cli_costs_path(target->device, target->workers),
                               .progress = cli_progress(),
                               .cancel = &cli_interrupted};
    if (!options.path)
        return error_set(call->error, QP_INVALID,
                         "--measure: without HOME there is no cache that could hold the costs");
    cli_catch_interrupt();
    qp_status status = measure_costs(&options, out, call->error);
    cli_release_interrupt();
    return status;
}

/* 0: the command line leaves it to the default. */
static int64_t asked_chunk(const cli_call *call)
{
    const cli_settings *s = call->settings;
    const bool asked = option_source_at(call->options, &s->chunk) != OPTION_FROM_DEFAULT;
    return asked ? s->chunk : 0;
}

static qp_status compare(const cli_call *call, const target *target, strbuf *out)
{
    const cli_settings *s = call->settings;
    const bool asked = option_source_at(call->options, &s->setting) != OPTION_FROM_DEFAULT;
    int workers = (int)target->workers;
    if (s->load) TRY(compare_find_workers(s->load, &workers, call->error));
    compare_options options = {.device = target->gpu ? target->device : NULL,
                               .machine = target->gpu,
                               .threads = workers,
                               .context = s->context,
                               .chunk = asked_chunk(call),
                               .costs = cli_costs_path(target->device, workers),
                               .memory_fraction = s->memory_fraction,
                               .latency = asked && s->setting == 0,
                               .throughput = asked && s->setting == 1,
                               .load = s->load,
                               .fuse = s->fuse,
                               .kv_partitions = s->kv_partitions,
                               .json = s->json,
                               .by_operator = s->verbose,
                               .progress = cli_progress(),
                               .cancel = &cli_interrupted};
    TRY(cli_model_path(call, &options.model));
    cli_catch_interrupt();
    qp_status status = schedule_compare(&options, out, call->error);
    cli_release_interrupt();
    return status;
}

static qp_status tune(const cli_call *call, const target *target, strbuf *out)
{
    const cli_settings *s = call->settings;
    tune_options options = {.threads = (int)target->workers,
                            .context = s->context,
                            .chunk = asked_chunk(call),
                            .throughput = s->setting == 1,
                            .seconds = (double)s->seconds,
                            .seed = (uint64_t)s->seed,
                            .costs = cli_costs_path(target->device, target->workers),
                            .save = s->save,
                            .verbose = s->verbose,
                            .progress = cli_progress(),
                            .cancel = &cli_interrupted};
    TRY(cli_model_path(call, &options.model));
    cli_catch_interrupt();
    qp_status status = schedule_tune(&options, out, call->error);
    cli_release_interrupt();
    return status;
}

static qp_status print(const cli_call *call, const target *target, strbuf *out)
{
    const cli_settings *s = call->settings;
    strbuf page = {0};
    schedule_print_options options = {.workers = target->workers,
                                      .setting = cli_schedule_settings[s->setting],
                                      .assignment = cli_schedule_assignments[s->assign],
                                      .memory_fraction = s->memory_fraction,
                                      .context = s->context,
                                      .chunk = target->gpu ? 1 : asked_chunk(call),
                                      .kv_partitions = s->kv_partitions,
                                      .form = (plan_form)s->plan_form,
                                      .fuse = s->fuse,
                                      .sums = s->sums || target->gpu,
                                      .group = s->group,
                                      .bytes_per_second = s->bandwidth * 1e9,
                                      .flops_per_second = s->gflops * 1e9,
                                      .signal_ns = s->signal_ns,
                                      .costs = cli_costs_path(target->device, target->workers),
                                      .device = target->device,
                                      .machine = target->gpu,
                                      .kv_type = cli_kv_types[s->kv_type],
                                      .list = s->list,
                                      .linear = s->linear,
                                      .queues = s->queues,
                                      .json = s->json,
                                      .verify = s->verify,
                                      .ranks = s->ranks,
                                      .rank = s->rank,
                                      .reduce = s->cut == 2,
                                      .save = s->save,
                                      .load = s->load,
                                      .layers = s->layers,
                                      .skip = s->left_out,
                                      .start_after = s->start_after,
                                      .stop_after = s->stop_after,
                                      .networks = s->network,
                                      .page = s->html || s->svg ? &page : NULL};
    TRY(cli_model_path(call, &options.model));
    qp_status status = schedule_print(&options, out, call->error);
    if (status == QP_OK && options.page)
        status = cli_write_file(s->html ? s->html : s->svg, strbuf_text(&page), page.length,
                                call->error);
    strbuf_free(&page);
    return status;
}

/* Schedules of several ranks, or of another plan, are printed, saved and loaded. */
static qp_status check_kind(const cli_call *call)
{
    const cli_settings *s = call->settings;
    const bool ranks = s->ranks > 1, form = s->plan_form != 0;
    const char *with = s->measure         ? "measure"
                       : s->tune          ? "tune"
                       : s->compare       ? "compare"
                       : s->kernel_device ? "device cuda"
                       : ranks && s->fuse ? "fuse"
                       : ranks && s->sums ? "sums"
                                          : NULL;
    if (with && (ranks || form))
        return error_set(call->error, QP_INVALID,
                         "--%s%s is for schedules of CPU threads, printed, saved and loaded; it "
                         "cannot be combined with --%s",
                         ranks ? "ranks" : "plan ", ranks ? "" : cli_plan_forms[s->plan_form],
                         with);
    if (s->rank >= s->ranks)
        return error_set(call->error, QP_INVALID, "--rank is 0 to %lld of %lld ranks, found %lld",
                         (long long)s->ranks - 1, (long long)s->ranks, (long long)s->rank);
    return QP_OK;
}

/* Refuses options that would have no effect. */
static qp_status check_together(const cli_call *call)
{
    const cli_settings *s = call->settings;
    const bool times = s->measure || s->compare || s->tune,
               part = s->left_out || s->start_after || s->stop_after;
    const struct {
        bool found;
        const char *message;
    } rules[] = {
        {s->measure && s->compare,
         "--measure and --compare exclude each other: run --measure first, which later comparisons "
         "use"},
        {s->types && !s->measure,
         "--types says what --measure measures and has no effect without it"},
        {times && (s->list || s->verify || s->html || (s->save && !s->tune)),
         "--list, --verify, --html and --save concern one schedule and cannot be combined with "
         "--measure or --compare, nor --list, --verify and --html with --tune"},
        {s->tune && !s->save, "--tune needs --save FILE, which gets the schedule that it finds"},
        {s->tune && s->kernel_device,
         "--tune is for schedules of CPU threads: the megakernel takes a strategy, not a file"},
        {s->tune && (s->fuse || s->sums || s->load || s->group || s->json),
         "--tune searches for the schedule of a plain run: leave out --fuse, --sums, --load, "
         "--group and --json"},
        {s->compare && s->load && s->kernel_device,
         "--compare runs a schedule of --load on CPU threads: leave out --device cuda"},
        {s->measure && s->load,
         "--load has no effect on --measure, which times operators and not queues"},
        {s->svg && !s->network,
         "--svg draws what --network predicts: give that, or --html for a schedule"},
        {part && (times || s->verify || s->save || s->load),
         "--skip, --start-after and --stop-after show a part of a pass: --measure, --compare, "
         "--tune, --verify, --save and --load need all of it"},
        {s->layers && times, "--layers has no effect on --measure, --compare and --tune"},
        {s->save && s->load, "--save and --load exclude each other"},
        {(s->linear || s->queues ||
          option_source_at(call->options, &s->kv_type) == OPTION_FROM_COMMAND_LINE) &&
             times,
         "--linear, --queues and --kv-type concern one schedule and cannot be combined with "
         "--measure, --compare or --tune"},
        {s->queues && (s->load || s->ranks > 1),
         "--queues arranges a schedule of one rank that is made now: leave out --load and --ranks"},
        {s->setting != 0 && s->fuse,
         "--fuse is for few tokens and cannot be combined with --setting throughput"},
        {s->setting != 0 && s->sums,
         "--sums is for few tokens and cannot be combined with --setting throughput"},
        {s->setting != 0 && s->kernel_device,
         "the megakernel's schedule (--device cuda) is for few tokens and cannot be combined with "
         "--setting throughput"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].found) return error_set(call->error, QP_INVALID, "%s", rules[i].message);
    return check_kind(call);
}

qp_status command_schedule(const cli_call *call)
{
    const cli_settings *s = call->settings;
    strbuf text = {0};
    measure_gpu gpu;
    target target;
    TRY(check_together(call));
    qp_status status = find_target(call, &gpu, &target);
    if (status == QP_OK)
        status = s->measure   ? measure(call, &target, &text)
                 : s->tune    ? tune(call, &target, &text)
                 : s->compare ? compare(call, &target, &text)
                              : print(call, &target, &text);
    if (status == QP_OK) status = cli_write(strbuf_text(&text), text.length, call->error);
    strbuf_free(&text);
    return status;
}
