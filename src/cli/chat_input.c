/* Lines from a person or a pipe: see chat_input.h. */
#include "cli/chat_input.h"

#include "base/option_cache.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "cli/cli.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 1000 };

struct chat_input {
    EditLine *editor; /* NULL: a pipe */
    History *history;
    bool continued; /* the prompt is for the rest of a message */
    char history_path[4096];
};

static char *prompt_text(EditLine *editor)
{
    static char first[] = "> ", more[] = ". ";
    chat_input *input;
    el_get(editor, EL_CLIENTDATA, &input);
    return input->continued ? more : first;
}

/* One byte of the terminal's: 1, or 0 at the end, or -1 with EINTR. SIGINT is let in only while
 * waiting, so that none slips in between a look at the flag and the wait. */
static int read_byte(char *byte)
{
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    int ready = -1;
    errno = EINTR;
    if (!cli_interrupted) {
        fd_set input;
        FD_ZERO(&input);
        FD_SET(STDIN_FILENO, &input);
        ready = pselect(STDIN_FILENO + 1, &input, NULL, NULL, NULL, &before);
    }
    int why = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return ready < 0 ? -1 : (int)read(STDIN_FILENO, byte, 1);
}

/* One character, for the editor; bytes that make none are passed over. */
static int read_character(EditLine *editor, wchar_t *out)
{
    (void)editor;
    mbstate_t state = {0};
    for (;;) {
        char byte;
        int count = read_byte(&byte);
        if (count <= 0) return count;
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-1)
            state = (mbstate_t){0};
        else if (used != (size_t)-2)
            return 1;
    }
}

/* Editing needs to know which bytes make a character. */
static void use_utf8(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

/* Failing is no loss but that of the history. */
static void make_folders(const char *path)
{
    char folder[4096];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
        mkdir(folder, 0777);
    }
}

static void open_history(chat_input *input)
{
    HistEvent event;
    input->history = history_init();
    if (!input->history) return;
    history(input->history, &event, H_SETSIZE, HISTORY_LINES);
    history(input->history, &event, H_SETUNIQUE, 1);
    el_set(input->editor, EL_HIST, history, input->history);
    if (!option_cache_path("history", input->history_path, sizeof input->history_path)) {
        *input->history_path = '\0';
        return;
    }
    make_folders(input->history_path);
    history(input->history, &event, H_LOAD, input->history_path);
}

qp_status chat_input_open(chat_input **out, qp_error *error)
{
    chat_input *input = calloc(1, sizeof *input);
    if (!input) return error_no_memory(error, "the input", sizeof *input);
    *out = input;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return QP_OK;
    use_utf8();
    input->editor = el_init("quipu", stdin, stdout, stderr);
    if (!input->editor) return error_set(error, QP_IO, "the terminal cannot be used for editing");
    el_set(input->editor, EL_CLIENTDATA, input);
    el_set(input->editor, EL_PROMPT, prompt_text);
    el_set(input->editor, EL_EDITOR, "emacs");
    el_set(input->editor, EL_SIGNAL, 0);
    el_set(input->editor, EL_GETCFN, read_character);
    open_history(input);
    cli_catch_interrupt();
    return QP_OK;
}

bool chat_input_is_terminal(const chat_input *input)
{
    return input->editor;
}

/* One line with its line break (or without, at the end of a pipe) appended to `text`; false at the
 * end. *interrupted: Ctrl-C was pressed instead. */
static bool read_line(chat_input *input, strbuf *text, bool *interrupted)
{
    *interrupted = false;
    if (input->editor) {
        int count;
        cli_catch_interrupt();
        const char *line = el_gets(input->editor, &count);
        if (!line && cli_interrupted) {
            *interrupted = true;
            el_reset(input->editor);
        }
        if (!line) fputs("\n", stderr); /* the next thing told begins on a line of its own */
        return line && count > 0 && strbuf_append(text, line, (size_t)count);
    }
    char *line = NULL;
    size_t capacity = 0;
    ssize_t count = getline(&line, &capacity, stdin);
    bool read = count > 0 && strbuf_append(text, line, (size_t)count);
    free(line);
    return read;
}

/* Removes the line break; true when a backslash before it says that the message goes on. */
static bool trim_line(strbuf *text)
{
    while (text->length && strchr("\r\n", text->data[text->length - 1]))
        text->data[--text->length] = '\0';
    if (!text->length || text->data[text->length - 1] != '\\') return false;
    text->data[text->length - 1] = '\n';
    return true;
}

/* Into the file at once, so that it is there however the program ends. */
static void remember(chat_input *input, const char *text)
{
    HistEvent event;
    history(input->history, &event, H_ENTER, text);
    if (!*input->history_path) return;
    mode_t mask = umask(077); /* what a person typed is theirs alone */
    history(input->history, &event, H_SAVE, input->history_path);
    umask(mask);
}

qp_status chat_input_read(chat_input *input, char **line, qp_error *error)
{
    strbuf text = {0};
    bool interrupted, more = true, read = true;
    *line = NULL;
    for (input->continued = false; more; input->continued = true) {
        read = read_line(input, &text, &interrupted);
        if (!read) break;
        more = trim_line(&text);
    }
    if (text.failed) {
        strbuf_free(&text);
        return error_no_memory(error, "the message", 0);
    }
    if (interrupted) strbuf_clear(&text);
    if (!read && !interrupted && text.length == 0) {
        strbuf_free(&text);
        return QP_OK;
    }
    if (input->history && text.length) remember(input, strbuf_text(&text));
    *line = strbuf_take(&text);
    return *line ? QP_OK : error_no_memory(error, "the message", 0);
}

void chat_input_close(chat_input *input)
{
    if (!input) return;
    if (input->history) history_end(input->history);
    if (input->editor) el_end(input->editor);
    free(input);
}
