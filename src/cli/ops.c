/* quipu ops list, describe, prompt: the operators as they describe themselves. */
#include "cli/cli.h"

#include "base/cpu.h"
#include "base/option_cache.h"
#include "base/status.h"
#include "workbench/workbench.h"

/* Writes the text if it was made, and frees it. */
static qp_status print(strbuf *text, qp_status status, qp_error *error)
{
    if (status == QP_OK) status = cli_write(strbuf_text(text), text->length, error);
    strbuf_free(text);
    return status;
}

qp_status command_ops_list(const cli_call *call)
{
    strbuf text = {0};
    qp_status status = workbench_list(cpu_features(0), call->settings->json, &text, call->error);
    return print(&text, status, call->error);
}

qp_status command_ops_describe(const cli_call *call)
{
    const option_result *options = call->options;
    workbench_format format = (workbench_format)call->settings->page_format;
    bool all = call->settings->all;
    if (all == (options->n_positional == 1))
        return error_set(call->error, QP_INVALID,
                         "name one operator, or give --all; `quipu ops list` shows them");
    strbuf text = {0};
    qp_status status = all ? workbench_describe_all(format, &text, call->error)
                           : workbench_describe(options->positional[0], format, &text, call->error);
    return print(&text, status, call->error);
}

qp_status command_ops_prompt(const cli_call *call)
{
    const char *op_name = call->options->positional[0];
    char name[128], path[4096];
    snprintf(name, sizeof name, "verdicts/%.60s.txt", op_name);
    if (!option_cache_path(name, path, sizeof path)) path[0] = '\0';
    strbuf text = {0};
    qp_status status =
        workbench_prompt(op_name, call->settings->last ? path : NULL, &text, call->error);
    return print(&text, status, call->error);
}
