/* quipu plan and quipu shapes: the forward pass as data, before anything runs. */
#include "cli/cli.h"

#include "base/buffer.h"
#include "base/status.h"
#include "generate/cuda_print.h"
#include "plan/print.h"

static qp_status print(strbuf *text, qp_status status, qp_error *error)
{
    if (status == QP_OK) status = cli_write(strbuf_text(text), text->length, error);
    strbuf_free(text);
    return status;
}

/* What a run takes on a GPU, behind the plan. */
static qp_status print_device(const cli_call *call, const plan_print_options *o)
{
    const cuda_print_options options = {.model = o->model,
                                        .tokens = o->tokens,
                                        .context = o->context,
                                        .sequences = o->sequences,
                                        .page_size = o->page_size,
                                        .kv_type = o->kv_type};
    strbuf text = {0};
    return print(&text, cuda_print_memory(&options, &text, call->error), call->error);
}

qp_status command_plan(const cli_call *call)
{
    const cli_settings *s = call->settings;
    plan_print_options options = {.tokens = s->tokens,
                                  .context = s->context,
                                  .sequences = s->sequences,
                                  .ranks = s->ranks,
                                  .page_size = s->page_size,
                                  .kv_type = cli_kv_types[s->kv_type],
                                  .available = s->memory ? s->memory : buffer_available(),
                                  .fuse = s->fuse,
                                  .sums = s->sums,
                                  .kv_partitions = s->kv_partitions,
                                  .json = s->json};
    if (s->json && s->kernel_device)
        return error_set(call->error, QP_INVALID, "--json and --device cuda exclude each other");
    TRY(cli_model_path(call, &options.model));
    strbuf text = {0};
    TRY(print(&text, plan_print_lifetimes(&options, &text, call->error), call->error));
    return s->kernel_device ? print_device(call, &options) : QP_OK;
}

qp_status command_shapes(const cli_call *call)
{
    const cli_settings *s = call->settings;
    shapes_print_options options = {.tokens = s->tokens,
                                    .batch = s->batch,
                                    .fuse = s->fuse,
                                    .sums = s->sums,
                                    .kv_partitions = s->kv_partitions,
                                    .json = s->json};
    TRY(cli_model_path(call, &options.model));
    strbuf text = {0};
    return print(&text, plan_print_shapes(&options, &text, call->error), call->error);
}
