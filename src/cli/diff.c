/* quipu diff: the forward pass on two machines, compared tensor by tensor. */
#include "cli/cli.h"

#include "base/status.h"
#include "inspect/diff/diff.h"
#include "inspect/diff/first_rule.h"

#include <string.h>

/* The tokens of the prompt or of --ids; none if neither was given. */
static qp_status read_tokens(const cli_call *call, const char *model, qp_tokens *tokens)
{
    const cli_settings *s = call->settings;
    if (!s->prompt && !s->file && !s->ids) return QP_OK;
    qp_vocabulary *vocabulary = NULL;
    bool synthetic = strncmp(model, "synthetic:", 10) == 0;
    if (!s->ids && !synthetic) TRY(qp_vocabulary_open(model, &vocabulary, call->error));
    qp_status status = cli_read_tokens(call, vocabulary, tokens);
    qp_vocabulary_close(vocabulary);
    return status;
}

static qp_status compare(const cli_call *call, const char *model, const qp_tokens *tokens)
{
    const cli_settings *s = call->settings;
    diff_options options = {.model = model,
                            .a = s->machine_a,
                            .b = s->machine_b,
                            .order = (uint64_t)s->order,
                            .tokens = tokens->data,
                            .n_tokens = tokens->data ? (int64_t)tokens->count : s->tokens,
                            .singles = s->singles,
                            .chunk = s->chunk,
                            .layers = s->layers,
                            .threads = (int)s->threads,
                            .ranks = (int)s->ranks,
                            .gpus = s->gpus,
                            .exchange = cli_exchanges[s->exchange],
                            .page_size = s->page_size,
                            .kv_type = cli_kv_types[s->kv_type],
                            .act_type = cli_act_types[s->act_type],
                            .activations = cli_activations[s->activations],
                            .cpu_mask = s->cpu_mask,
                            .kernels = call->kernels,
                            .n_kernels = call->n_kernels,
                            .cuda_kernels = call->cuda_kernels,
                            .n_cuda_kernels = call->n_cuda_kernels,
                            .after = s->start_after,
                            .stop = s->stop_after,
                            .form = (plan_form)s->plan_form,
                            .fuse = s->fuse,
                            .rules = s->rules,
                            .sums = s->sums,
                            .kv_partitions = s->kv_partitions,
                            .setting = s->setting,
                            .assignment = s->assign,
                            .memory_fraction = s->memory_fraction,
                            .schedule = s->schedule,
                            .context = s->context,
                            .skip = s->left_out,
                            .list = s->list,
                            .json = s->json,
                            .cancel = &cli_interrupted,
                            .progress = cli_progress()};
    cli_adapters adapters;
    TRY(cli_read_adapters(call, &adapters));
    options.adapters = adapters.of;
    options.n_adapters = adapters.n;
    options.merge_adapters = s->lora_merge;
    strbuf text = {0};
    bool equal = false;
    cli_catch_interrupt();
    qp_status status = diff_print(&options, &text, &equal, call->error);
    cli_release_interrupt();
    if (status == QP_OK) status = cli_write(strbuf_text(&text), text.length, call->error);
    strbuf_free(&text);
    if (status != QP_OK || equal) return status;
    return error_set(call->error, QP_FORMAT, "the results of %s differ from those of %s",
                     s->machine_b, s->machine_a);
}

static qp_status find_rule(const cli_call *call, const char *model, const qp_tokens *tokens)
{
    const cli_settings *s = call->settings;
    cli_adapters adapters;
    TRY(cli_read_adapters(call, &adapters));
    const qp_engine_options options = {.size = sizeof options,
                                       .model = model,
                                       .exec = s->machine_b,
                                       .threads = (int)s->threads,
                                       .chunk = s->chunk,
                                       .page_size = s->page_size,
                                       .kv_type = cli_kv_types[s->kv_type],
                                       .act_type = cli_act_types[s->act_type],
                                       .activations = cli_activations[s->activations],
                                       .plan = cli_plan_forms[s->plan_form],
                                       .cpu_mask = s->cpu_mask,
                                       .fuse = s->fuse,
                                       .rules = s->rules,
                                       .adapters = adapters.of,
                                       .n_adapters = adapters.n,
                                       .merge_adapters = s->lora_merge,
                                       .progress = cli_progress()};
    strbuf text = {0};
    bool equal = false;
    qp_status status =
        first_rule_find(&options, tokens->data, tokens->data ? (int64_t)tokens->count : s->tokens,
                        s->singles, &text, &equal, call->error);
    if (status == QP_OK) status = cli_write(strbuf_text(&text), text.length, call->error);
    strbuf_free(&text);
    if (status != QP_OK || equal) return status;
    return error_set(call->error, QP_FORMAT, "a rule changes the result");
}

qp_status command_diff(const cli_call *call)
{
    const char *model;
    qp_tokens tokens = {0};
    TRY(cli_model_path(call, &model));
    qp_status status = read_tokens(call, model, &tokens);
    if (status == QP_OK)
        status = (call->settings->first_rule ? find_rule : compare)(call, model, &tokens);
    qp_tokens_free(&tokens);
    return status;
}
