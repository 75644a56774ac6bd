/* quipu: finds the command, parses its options, runs it, and turns its status into an exit code.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
 */
#include "cli/cli.h"

#include <string.h>

static int exit_code(qp_status status)
{
    switch (status) {
    case QP_OK:
        return 0;
    case QP_INVALID:
        return 2;
    case QP_CANCELLED:
        return 130;
    default:
        return 1;
    }
}

static qp_status dispatch(int argc, char **argv, qp_error *error)
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
    cli_call call = {program, &settings, &options, error};
    if (status == QP_OK && options.help) {
        strbuf text = {0};
        option_help(program, command, &text);
        status = cli_write(strbuf_text(&text), text.length, error);
        strbuf_free(&text);
    } else if (status == QP_OK) {
        status = cli_function(command)(&call);
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
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) argv[1] = "help";
    qp_status status = dispatch(argc, argv, &error);
    if (status != QP_OK) fprintf(stderr, "quipu: %s\n", error.message);
    return exit_code(status);
}
