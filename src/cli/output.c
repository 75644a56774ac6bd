/* What commands write: answers to stdout, messages and progress to stderr, files. See cli.h. */
#include "cli/cli.h"
#include "cli/terminal.h"

#include "base/option_cache.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void cli_log(void *context, qp_log_level level, const char *message)
{
    const cli_call *call = context;
    if (level != QP_LOG_INFO || call->settings->verbose)
        fprintf(stderr, "quipu: %s%s\n", level == QP_LOG_WARNING ? "warning: " : "", message);
}

/* Standard output is a terminal with an unfinished line, which progress would erase. */
static bool line_open;

static bool progress_held;

void cli_hold_progress(bool hold)
{
    progress_held = hold;
}

void cli_show_line(void *context, const char *text)
{
    (void)context;
    int columns, lines;
    terminal_size(&columns, &lines);
    fprintf(stderr, "\r\033[K%.*s", columns - 1, text);
    fflush(stderr);
}

static void show_progress(void *context, const char *text, bool finished)
{
    if (line_open || progress_held) return;
    cli_show_line(context, finished ? "" : text);
}

static bool has_lines(void)
{
    return isatty(STDERR_FILENO) && option_terminal_has_sequences();
}

cli_line_callback *cli_line(void)
{
    return has_lines() ? cli_show_line : NULL;
}

cli_progress_callback *cli_progress(void)
{
    return has_lines() ? show_progress : NULL;
}

/* Standard output's reader has closed the pipe. */
static bool reader_gone;

static qp_status output_failed(qp_error *error)
{
    reader_gone |= errno == EPIPE;
    return error_set(error, QP_IO, "standard output cannot be written: %s", strerror(errno));
}

qp_status cli_write(const void *bytes, size_t length, qp_error *error)
{
    if (length == 0) return QP_OK;
    line_open = ((const char *)bytes)[length - 1] != '\n' && isatty(STDOUT_FILENO);
    if (fwrite(bytes, 1, length, stdout) == length) return QP_OK;
    return output_failed(error);
}

/* If the reader of stdout has closed the pipe, ends the process by SIGPIPE without a message, as
 * `quipu plan | head` expects. Called when everything has been cleaned up. */
static void end_with_reader(void)
{
    if (!reader_gone) return;
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
}

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

int cli_end(qp_status status, const qp_error *error)
{
    end_with_reader();
    fflush(stdout); /* in a common file the message follows the output */
    if (status != QP_OK) fprintf(stderr, "quipu: %s\n", error->message);
    return exit_code(status);
}

qp_status cli_write_file(const char *path, const void *bytes, size_t length, qp_error *error)
{
    FILE *file = fopen(path, "wb");
    if (!file) return error_set(error, QP_IO, "%s: cannot be created: %s", path, strerror(errno));
    bool written = fwrite(bytes, 1, length, file) == length;
    int why = errno;
    if (fclose(file) != 0 && written) {
        written = false;
        why = errno;
    }
    if (written) return QP_OK;
    cli_remove_partial(path);
    return error_set(error, QP_IO, "%s: cannot be written: %s", path, strerror(why));
}

void cli_remove_partial(const char *path)
{
    struct stat found;
    if (stat(path, &found) == 0 && S_ISREG(found.st_mode)) unlink(path);
}

qp_status cli_flush(qp_error *error)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return QP_OK;
    return output_failed(error);
}

/* "1 token", "5 tokens" */
static void put_tokens(size_t count, strbuf *out)
{
    strbuf_printf(out, "%zu token%s", count, count == 1 ? "" : "s");
}

void cli_report_statistics(const qp_engine *engine, const qp_generate_result *r)
{
    strbuf text = {0};
    double weights = (double)qp_engine_get_info(engine)->read_bytes * 1e-9;
    double prompt = r->prompt_seconds > 0 ? r->prompt_seconds : 1e-9;
    double generate = r->generate_seconds > 0 ? r->generate_seconds : 1e-9;
    strbuf_puts(&text, "prompt ");
    put_tokens(r->prompt_tokens, &text);
    strbuf_printf(&text, ", %.1f tokens/s; generated ", (double)r->prompt_tokens / prompt);
    put_tokens(r->generated_tokens, &text);
    if (r->generate_passes) /* the prompt's last pass gives the first token */
        strbuf_printf(&text, ", %.1f tokens/s, %.1f GB/s of weights",
                      (double)(r->generate_passes + r->accepted_tokens) / generate,
                      (double)r->generate_passes * weights / generate);
    if (r->proposed_tokens)
        strbuf_printf(&text, ", %zu of %zu proposed tokens accepted", r->accepted_tokens,
                      r->proposed_tokens);
    strbuf_printf(&text, "; %s", qp_finish_name(r->finish));
    terminal_note(0, strbuf_text(&text));
    strbuf_free(&text);
}
