/* quipu help, man, completion, version: texts made from the tables of commands and options. */
#include "cli/cli.h"

#include "base/version.h"

#include "base/status.h"

#include <string.h>

static qp_status print(strbuf *text, qp_error *error)
{
    qp_status status = text->failed ? error_no_memory(error, "the text", text->length)
                                    : cli_write(strbuf_text(text), text->length, error);
    strbuf_free(text);
    return status;
}

qp_status command_help(const cli_call *call)
{
    strbuf text = {0};
    const option_result *options = call->options;
    if (options->n_positional == 0) {
        option_overview(call->program, &text);
        return print(&text, call->error);
    }
    const command_spec *command;
    int used;
    if (options->n_positional == 1 &&
        option_family_overview(call->program, options->positional[0], &text))
        return print(&text, call->error);
    TRY(command_find(call->program, options->n_positional, (char **)options->positional, &command,
                     &used, call->error));
    if (used < options->n_positional)
        return error_set(call->error, QP_INVALID,
                         "unexpected '%.100s'; usage: quipu help [COMMAND]",
                         options->positional[used]);
    option_help(call->program, command, false, &text);
    return print(&text, call->error);
}

qp_status command_man(const cli_call *call)
{
    strbuf text = {0};
    option_man(call->program, &text);
    return print(&text, call->error);
}

qp_status command_completion(const cli_call *call)
{
    static const struct {
        const char *shell;
        void (*write)(const program_spec *program, strbuf *out);
    } shells[] = {{"bash", option_completion_bash},
                  {"zsh", option_completion_zsh},
                  {"fish", option_completion_fish}};
    const char *wanted = call->options->positional[0];
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(shells[i].shell, wanted) != 0) continue;
        strbuf text = {0};
        shells[i].write(call->program, &text);
        return print(&text, call->error);
    }
    return error_set(call->error, QP_INVALID,
                     "completion scripts exist for bash, zsh and fish, found \"%s\"", wanted);
}

qp_status command_version(const cli_call *call)
{
    strbuf text = {0};
    strbuf_printf(&text, "%s %s (commit %s, %s%s)\n", call->program->name, call->program->version,
                  *version_commit ? version_commit : "unknown",
                  *version_cuda ? "CUDA " : "without GPU code", version_cuda);
    return print(&text, call->error);
}
