/* quipu plan and quipu shapes: the forward pass as data, before anything runs. */
#include "cli/cli.h"

#include "base/output.h"
#include "base/platform.h"
#include "base/status.h"
#include "inspect/cuda_print.h"
#include "inspect/kernels_print.h"
#include "lower/print.h"

#include <string.h>

static qp_status print(strbuf *text, qp_status status, qp_error *error)
{
    if (status == QP_OK) status = cli_write(strbuf_text(text), text->length, error);
    strbuf_free(text);
    return status;
}

/* Appends the launches of a run on a GPU and the memory that it takes. */
static qp_status tell_device(const cli_call *call, const plan_print_options *o, strbuf *out)
{
    const cuda_print_options options = {.model = o->model,
                                        .tokens = o->tokens,
                                        .context = o->context,
                                        .sequences = o->sequences,
                                        .page_size = o->page_size,
                                        .ranks = o->ranks,
                                        .rank = o->rank,
                                        .reduce = o->reduce,
                                        .kv_type = o->kv_type,
                                        .memory = call->settings->memory,
                                        .activations = cli_activations[call->settings->activations],
                                        .arch = call->settings->arch,
                                        .rules = o->rules,
                                        .adapters = o->adapters,
                                        .verbose = o->verbose,
                                        .json = o->json};
    return cuda_print_run(&options, out, call->error);
}

/* Prints the plan, and with it the launches and memory on the GPU. */
static qp_status tell_plan(const cli_call *call, plan_print_options *o, strbuf *out, strbuf *gpu)
{
    const bool device = call->settings->kernel_device;
    if (device && o->form != PLAN_PAGED)
        return error_set(call->error, QP_UNSUPPORTED,
                         "the plan %s runs on the CPU: leave --device cuda out",
                         plan_form_name(o->form));
    if (device && strcmp(o->act_type, cli_act_types[0]) != 0)
        return error_set(call->error, QP_UNSUPPORTED,
                         "activations in %s are for the CPU: leave --act-type or --device cuda out",
                         o->act_type);
    if (device) TRY(tell_device(call, o, gpu));
    if (device && o->json) o->gpu = strbuf_text(gpu);
    TRY(plan_print_lifetimes(o, out, call->error));
    if (device && !o->json) strbuf_append(out, strbuf_text(gpu), gpu->length);
    return output_done(out, call->error);
}

/* 0: the command line leaves it to the default. */
static int64_t asked_tokens(const cli_call *call)
{
    const int64_t *tokens = &call->settings->tokens;
    return option_source_at(call->options, tokens) != OPTION_FROM_DEFAULT ? *tokens : 0;
}

static qp_status choose_adapters(const cli_call *call, adapter_choice choices[CLI_ADAPTERS],
                                 adapter_choices *out)
{
    cli_adapters given;
    TRY(cli_read_adapters(call, &given));
    for (size_t i = 0; i < given.n; i++)
        choices[i] = (adapter_choice){given.of[i].path, given.of[i].scale};
    *out = (adapter_choices){choices, (int64_t)given.n, call->settings->lora_merge};
    return QP_OK;
}

qp_status command_plan(const cli_call *call)
{
    const cli_settings *s = call->settings;
    plan_print_options options = {.tokens = asked_tokens(call),
                                  .context = s->context,
                                  .sequences = s->sequences,
                                  .ranks = s->ranks,
                                  .rank = s->rank,
                                  .reduce = s->cut == 2 || (s->cut == 0 && s->kernel_device),
                                  .page_size = s->page_size,
                                  .kv_type = cli_kv_types[s->kv_type],
                                  .act_type = cli_act_types[s->act_type],
                                  .available = s->memory ? s->memory : platform_free_memory(),
                                  .form = (plan_form)s->plan_form,
                                  .fuse = s->fuse,
                                  .rules = s->rules,
                                  .verbose = s->verbose,
                                  .sums = s->sums,
                                  .kv_partitions = s->kv_partitions,
                                  .json = s->json};
    adapter_choice adapters[CLI_ADAPTERS];
    TRY(choose_adapters(call, adapters, &options.adapters));
    TRY(cli_model_path(call, &options.model));
    strbuf text = {0}, gpu = {0};
    if (s->list_kernels)
        return print(&text, kernels_print(&options, &text, call->error), call->error);
    qp_status status = print(&text, tell_plan(call, &options, &text, &gpu), call->error);
    strbuf_free(&gpu);
    return status;
}

qp_status command_shapes(const cli_call *call)
{
    const cli_settings *s = call->settings;
    shapes_print_options options = {.tokens = asked_tokens(call),
                                    .batch = s->batch,
                                    .act_type = cli_act_types[s->act_type],
                                    .form = (plan_form)s->plan_form,
                                    .fuse = s->fuse,
                                    .rules = s->rules,
                                    .sums = s->sums,
                                    .kv_partitions = s->kv_partitions,
                                    .json = s->json};
    TRY(cli_model_path(call, &options.model));
    strbuf text = {0};
    return print(&text, plan_print_shapes(&options, &text, call->error), call->error);
}
