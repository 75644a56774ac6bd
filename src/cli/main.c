/* quipu: finds the command, parses its options, runs it, and turns its status into an exit code.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
 */
#include "cli/cli.h"

#include <string.h>

/* Answers `quipu ops` and `quipu ops --help` with the commands that begin with that word. False for
 * anything else.
 */
static bool show_family(int argc, char **argv, qp_status *status, qp_error *error)
{
    strbuf text = {0};
    bool asked = argc == 2 || strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0 ||
                 strcmp(argv[2], "--help-all") == 0;
    bool shown = asked && option_family_overview(cli_program(), argv[1], &text);
    if (shown) *status = cli_write(strbuf_text(&text), text.length, error);
    if (shown && *status == QP_OK) *status = cli_flush(error);
    strbuf_free(&text);
    return shown;
}

/* *code: the exit status where another process has run the command. */
static qp_status dispatch(int argc, char **argv, int *code, qp_error *error)
{
    const program_spec *program = cli_program();
    const command_spec *command;
    int used;
    qp_status status = command_find(program, argc - 1, argv + 1, &command, &used, error);
    if (status != QP_OK) return status;
    cli_settings settings = {0};
    option_result options = {0};
    status = option_parse(program, command, argc - 1 - used, argv + 1 + used, &settings, &options,
                          error);
    const cli_call call = {
        .program = program, .settings = &settings, .options = &options, .error = error};
    if (status == QP_OK && options.help) {
        strbuf text = {0};
        option_help(program, command, options.help_all, &text);
        status = cli_write(strbuf_text(&text), text.length, error);
        strbuf_free(&text);
    } else if (status == QP_OK) {
        status = settings.kernels.count ? cli_run_with_kernels(&call, cli_function(command), code)
                                        : cli_function(command)(&call);
    }
    if (status == QP_OK) status = cli_flush(error);
    option_result_free(&options);
    return status;
}

int main(int argc, char **argv)
{
    cli_fill_descriptors();
    cli_handle_signals();
    qp_error error = {0};
    if (argc < 2) {
        strbuf text = {0};
        option_overview(cli_program(), &text);
        fputs(strbuf_text(&text), stderr);
        strbuf_free(&text);
        return 2;
    }
    if (strcmp(argv[1], "--version") == 0) argv[1] = "version";
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "--help-all") == 0)
        argv[1] = "help";
    qp_status status;
    int code = 0;
    if (!show_family(argc, argv, &status, &error)) status = dispatch(argc, argv, &code, &error);
    int own = cli_end(status, &error);
    return own ? own : code;
}
