/* Reads messages from a person or a pipe: see chat_input.h. */
#include "cli/chat_input.h"

#include "base/option_cache.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/edit_text.h"
#include "cli/terminal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat_input {
    line_editor *editor; /* NULL: lines are read without an editor */
    bool terminal;
};

qp_status chat_input_open(line_completer *complete, chat_input **out, qp_error *error)
{
    chat_input *input = calloc(1, sizeof *input);
    *out = input;
    if (!input) return error_no_memory(error, "the input", sizeof *input);
    input->terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (!input->terminal) return QP_OK;
    cli_catch_answers_interrupt();
    if (!terminal_can_edit()) return QP_OK;
    char history[4096];
    bool kept = option_state_path("history", history, sizeof history);
    return line_editor_open(kept ? history : NULL, complete, &input->editor, error);
}

bool chat_input_is_terminal(const chat_input *input)
{
    return input->terminal;
}

/* One line with its line break (or without, at the end of a pipe) appended to `text`; false at the
 * end. *interrupted: Ctrl-C was pressed instead. */
static bool read_line(chat_input *input, const char *prompt, strbuf *text, bool *interrupted)
{
    char *line = NULL;
    size_t capacity = 0;
    if (input->terminal) {
        cli_catch_answers_interrupt();
        fputs(prompt, stdout);
        fflush(stdout);
    }
    ssize_t count = getline(&line, &capacity, stdin);
    *interrupted = count < 0 && input->terminal && cli_interrupted;
    if (count < 0 && input->terminal) fputs("\n", stdout);
    if (*interrupted) clearerr(stdin);
    bool read = count > 0 && strbuf_append(text, line, (size_t)count);
    free(line);
    return read;
}

/* Removes the line break; true if a backslash before it continues the message. */
static bool trim_line(strbuf *text)
{
    while (text->length && strchr("\r\n", text->data[text->length - 1]))
        text->data[--text->length] = '\0';
    if (!text->length || text->data[text->length - 1] != '\\') return false;
    text->data[text->length - 1] = '\n';
    return true;
}

static line_result read_lines(chat_input *input, strbuf *text)
{
    bool interrupted = false, read = true, more = true;
    for (const char *prompt = "> "; more; prompt = ". ") {
        read = read_line(input, prompt, text, &interrupted);
        if (!read) break;
        more = trim_line(text);
        if (!more && edit_is_quoted(strbuf_text(text))) more = strbuf_putc(text, '\n');
    }
    if (interrupted) return LINE_INTERRUPTED;
    return read || text->length ? LINE_SENT : LINE_ENDED;
}

qp_status chat_input_read(chat_input *input, char **message, qp_error *error)
{
    strbuf text = {0};
    *message = NULL;
    if (input->editor) cli_catch_answers_interrupt();
    line_result result =
        input->editor ? line_editor_read(input->editor, &text) : read_lines(input, &text);
    if (result == LINE_ENDED && !text.failed) {
        strbuf_free(&text);
        return QP_OK;
    }
    if (result == LINE_INTERRUPTED) {
        strbuf_clear(&text);
        cli_catch_answers_interrupt(); /* it has been answered */
    }
    if (text.length && memchr(text.data, '\0', text.length)) {
        strbuf_free(&text);
        return error_set(error, QP_INVALID,
                         "a message holds a NUL, which no text does; take it out");
    }
    edit_unquote(&text);
    strbuf_puts(&text, "");
    *message = strbuf_take(&text);
    return *message ? QP_OK : error_no_memory(error, "the message", 0);
}

bool chat_input_confirm(chat_input *input, const char *question)
{
    if (!input->terminal) return true;
    if (input->editor) return line_editor_confirm(input->editor, question);
    strbuf answer = {0};
    bool interrupted;
    bool yes =
        read_line(input, question, &answer, &interrupted) && strchr("yY", strbuf_text(&answer)[0]);
    strbuf_free(&answer);
    return yes;
}

void chat_input_close(chat_input *input)
{
    if (!input) return;
    line_editor_close(input->editor);
    free(input);
}
