/* The model and the engine that a command's settings name: see cli.h. */
#include "cli/cli.h"

#include "base/option_cache.h"
#include "base/status.h"
#include "base/threads.h"
#include "cli/dump.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

qp_status cli_model_path(const cli_call *call, const char **path)
{
    static char found[4096];
    if (call->settings->hub) return cli_hub_path(call->settings->hub, true, path, call->error);
    if (call->settings->model) return cli_hub_path(call->settings->model, false, path, call->error);
    if (!option_cache_path(QUIPU_DEFAULT_MODEL, found, sizeof found))
        return error_set(call->error, QP_INVALID,
                         "no model was named, and without HOME there is no cache to look in; "
                         "name one with -m");
    if (access(found, R_OK) != 0)
        return error_set(
            call->error, QP_IO,
            "no model was named, and the default model is not at %s: name one, such as "
            "-m model.gguf or -m smollm2:360m, or fetch the default one with ./dev "
            "fetch-model",
            found);
    *path = found;
    return QP_OK;
}

const char *cli_costs_path(const char *device, int64_t workers)
{
    static char path[4096];
    char name[64];
    snprintf(name, sizeof name, "costs/%s-%lld.txt", device, (long long)workers);
    return option_cache_path(name, path, sizeof path) ? path : NULL;
}

qp_schedule_options cli_schedule(const cli_call *call)
{
    const cli_settings *s = call->settings;
    return (qp_schedule_options){.size = sizeof(qp_schedule_options),
                                 .setting = cli_schedule_settings[s->setting],
                                 .assignment = cli_schedule_assignments[s->assign],
                                 .memory_fraction = s->memory_fraction,
                                 .file = s->schedule};
}

pass_part cli_part(const cli_call *call)
{
    const cli_settings *s = call->settings;
    const int64_t threads = s->threads ? s->threads : threads_available();
    return (pass_part){.admit = s->started_by ? cli_ask_for_memory : NULL,
                       .admit_context = call->settings,
                       .skip = s->left_out,
                       .start_after = s->start_after,
                       .stop_after = s->stop_after,
                       .layers = s->layers,
                       .costs = cli_costs_path("cpu", threads)};
}

/* The path of the draft model; NULL: there is none. The model's path is looked up after it, which
 * overwrites what cli_hub_path() returned. */
static qp_status find_draft(const cli_call *call, const char **path)
{
    static char found[4096];
    *path = NULL;
    if (!call->settings->draft) return QP_OK;
    TRY(cli_hub_path(call->settings->draft, false, path, call->error));
    snprintf(found, sizeof found, "%s", *path);
    *path = found;
    return QP_OK;
}

/* The life of a rank other than the first. */
static void follow(const qp_engine_options *options)
{
    qp_error error = {0};
    exit(cli_end(qp_rank_follow(options, &error), &error));
}

/* Whether ranks are processes that mpirun has started, or is to start. */
static bool by_mpi(const cli_settings *s)
{
    return s->ranks_by >= 2 || (s->ranks_by == 0 && qp_rank() >= 0);
}

bool cli_only_helps_ranks(const cli_call *call)
{
    return by_mpi(call->settings) && qp_rank() != 0;
}

static qp_status open_engine(const cli_call *call, int64_t max_outputs, bool at_once,
                             qp_engine **out)
{
    const cli_settings *s = call->settings;
    const qp_schedule_options schedule = cli_schedule(call);
    cli_adapters adapters;
    TRY(cli_read_adapters(call, &adapters));
    qp_engine_options options = {.size = sizeof options,
                                 .schedule = &schedule,
                                 .threads = (int)s->threads,
                                 .context = s->context,
                                 .chunk = s->chunk,
                                 .max_sessions = s->parallel,
                                 .max_outputs = max_outputs,
                                 .page_size = s->page_size,
                                 .pages = s->pages,
                                 .kv_type = cli_kv_types[s->kv_type],
                                 .exec = cli_execs[s->exec],
                                 .device = cli_devices[s->device],
                                 .workers = (int)s->workers,
                                 .order = (uint64_t)s->order,
                                 .plan = cli_plan_forms[s->plan_form],
                                 .act_type = cli_act_types[s->act_type],
                                 .fuse = s->fuse,
                                 .rules = s->rules,
                                 .batch_invariant = s->batch_invariant,
                                 .activations = cli_activations[s->activations],
                                 .bf16_copies = cli_copies[s->bf16_copies],
                                 .speculate = cli_speculations[s->speculate],
                                 .cpu_mask = s->cpu_mask,
                                 .kernels = call->kernels,
                                 .n_kernels = call->n_kernels,
                                 .cuda_kernels = call->cuda_kernels,
                                 .n_cuda_kernels = call->n_cuda_kernels,
                                 .log = cli_log,
                                 .log_context = (void *)call,
                                 .ranks = (int)s->ranks,
                                 .transport = s->ranks_by == 3 ? "messages"
                                              : by_mpi(s)      ? "mpi"
                                                               : "threads",
                                 .cut = cli_cuts[s->cut],
                                 .gpus = s->gpus,
                                 .exchange = cli_exchanges[s->exchange],
                                 .cache_packed = s->cache_packed,
                                 .cache_packed_size = s->cache_packed_size,
                                 .progress = cli_progress(),
                                 .adapters = adapters.of,
                                 .n_adapters = adapters.n,
                                 .adapters_at_once = s->lora_at_once,
                                 .merge_adapters = s->lora_merge,
                                 .tensors = s->dump,
                                 .on_tensor = call->dump ? dump_tensor : NULL,
                                 .tensor_context = call->dump};
    if (by_mpi(s) && qp_rank() < 0) return cli_start_ranks(call, (int)s->ranks);
    qp_status status = find_draft(call, &options.draft);
    if (status == QP_OK) status = cli_model_path(call, &options.model);
    if (status == QP_OK && by_mpi(s) && qp_rank() > 0) follow(&options);
    if (s->threads > threads_available())
        fprintf(stderr,
                "quipu: warning: %lld threads on %d processors take turns, which is many times "
                "slower; without -t there is one for each processor\n",
                (long long)s->threads, threads_available());
    pass_part part = cli_part(call);
    part.at_once = at_once;
    if (status == QP_OK) status = part_open(&options, &part, out, call->error);
    if (status == QP_OK && s->eos_interval > 1 &&
        strcmp(qp_engine_get_info(*out)->device, "cpu") == 0)
        fprintf(
            stderr,
            "quipu: --eos-interval %lld is for a GPU: a CPU makes one token at a time and looks "
            "for the end after each\n",
            (long long)s->eos_interval);
    return status;
}

qp_status cli_open_engine(const cli_call *call, int64_t max_outputs, qp_engine **out)
{
    return open_engine(call, max_outputs, false, out);
}

qp_status cli_open_engine_at_once(const cli_call *call, int64_t max_outputs, qp_engine **out)
{
    return open_engine(call, max_outputs, true, out);
}
