/* quipu convert: a model as a GGUF file. */
#include "cli/cli.h"

#include "base/status.h"
#include "convert/convert.h"

qp_status command_convert(const cli_call *call)
{
    const cli_settings *s = call->settings;
    qp_convert_options options = {.size = sizeof options,
                                  .out = s->out,
                                  .type = s->type,
                                  .pure = s->pure,
                                  .clamp = s->clamp,
                                  .threads = (int)s->threads,
                                  .cancel = &cli_interrupted,
                                  .log = cli_log,
                                  .log_context = (void *)call,
                                  .progress = cli_progress()};
    const convert_importance importance = {s->imatrix, s->imatrix_out};
    if (!options.out)
        return error_set(call->error, QP_INVALID, "name the file to write with -o FILE.gguf");
    if (s->imatrix_out && !s->imatrix)
        return error_set(call->error, QP_INVALID,
                         "--imatrix-out needs --imatrix with a text to make it from");
    cli_adapters adapters;
    TRY(cli_read_adapters(call, &adapters));
    options.adapters = adapters.of;
    options.n_adapters = adapters.n;
    TRY(cli_model_path(call, &options.model));
    cli_catch_endings();
    qp_status status = convert_model(&options, &importance, call->error);
    cli_release_endings();
    return status;
}
