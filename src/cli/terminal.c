/* The terminal of a conversation: see terminal.h. */
#include "cli/terminal.h"

#include "base/option_cache.h"
#include "base/option_world.h"
#include "cli/cli.h"
#include "cli/edit_keys.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <termios.h>
#include <unistd.h>

/* Bracketed paste: the terminal sends sequences before and after pasted text. */
static const char paste_on[] = "\x1b[?2004h", paste_off[] = "\x1b[?2004l";

static struct termios modes[3]; /* indexed by terminal_mode */
static volatile sig_atomic_t is_open, current;
static volatile sig_atomic_t resized;

/* State that signal handlers use. */
static void apply_mode(terminal_mode mode)
{
    const char *paste = mode == TERMINAL_AS_FOUND ? paste_off : paste_on;
    if ((mode == TERMINAL_AS_FOUND) != (current == TERMINAL_AS_FOUND)) {
        ssize_t ignored = write(STDOUT_FILENO, paste, strlen(paste));
        (void)ignored;
    }
    tcsetattr(STDIN_FILENO, TCSADRAIN, &modes[mode]);
    current = mode;
}

static void on_end(int number)
{
    if (is_open) apply_mode(TERMINAL_AS_FOUND);
    signal(number, SIG_DFL);
    raise(number);
}

/* A shell may have changed the mode while the process was stopped. In the background the terminal
 * belongs to another process. */
static void on_continue(int number)
{
    (void)number;
    int why = errno;
    if (is_open && tcgetpgrp(STDIN_FILENO) == getpgrp())
        tcsetattr(STDIN_FILENO, TCSADRAIN, &modes[current]);
    resized = 1; /* what was drawn must be drawn again */
    errno = why;
}

static void on_resize(int number)
{
    (void)number;
    resized = 1;
}

static void catch_signal(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};
    sigaction(number, &action, NULL);
}

bool terminal_can_edit(void)
{
    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && option_terminal_has_sequences();
}

qp_status terminal_open(qp_error *error)
{
    if (tcgetattr(STDIN_FILENO, &modes[TERMINAL_AS_FOUND]) != 0)
        return error_set(error, QP_IO, "the terminal cannot be used for editing: %s",
                         strerror(errno));
    struct termios *editing = &modes[TERMINAL_EDITING], *answering = &modes[TERMINAL_ANSWERING];
    *editing = modes[TERMINAL_AS_FOUND];
    editing->c_iflag &= ~(tcflag_t)(BRKINT | ICRNL | INLCR | IGNCR | INPCK | ISTRIP | IXON);
    editing->c_lflag &= ~(tcflag_t)(ECHO | ICANON | IEXTEN | ISIG);
    editing->c_cc[VMIN] = 1;
    editing->c_cc[VTIME] = 0;
    *answering = *editing;
    answering->c_lflag |= ISIG;
    is_open = 1;
    atexit(terminal_close);
    catch_signal(SIGTERM, on_end);
    catch_signal(SIGHUP, on_end);
    catch_signal(SIGQUIT, on_end);
    catch_signal(SIGCONT, on_continue);
    catch_signal(SIGWINCH, on_resize);
    return QP_OK;
}

void terminal_set_mode(terminal_mode mode)
{
    if (is_open) apply_mode(mode);
}

void terminal_close(void)
{
    if (!is_open) return;
    apply_mode(TERMINAL_AS_FOUND);
    is_open = 0;
}

void terminal_size(int *columns, int *lines)
{
    struct winsize size = {0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) size = (struct winsize){0};
    *columns = size.ws_col > 3 ? size.ws_col : size.ws_col ? 4 : 80;
    *lines = size.ws_row ? size.ws_row : 24;
}

void terminal_use_utf8(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

/* mpirun gives its processes a terminal without a width, wherever its own output goes. */
static bool output_wraps(void)
{
    int rank, size;
    return isatty(STDOUT_FILENO) && option_terminal_has_sequences() && !option_world(&rank, &size);
}

bool terminal_draws(void)
{
    static bool looked, wraps;
    if (!looked) wraps = output_wraps();
    if (!looked && wraps) terminal_use_utf8();
    looked = true;
    return wraps;
}

qp_status terminal_show_text(word_wrap *wrap, const char *text, size_t length, qp_error *error)
{
    if (!terminal_draws()) return cli_write(text, length, error);
    strbuf shown = {0};
    int columns, lines;
    terminal_size(&columns, &lines);
    word_wrap_put(wrap, text, length, columns, &shown);
    qp_status status = shown.failed ? error_no_memory(error, "the answer", length)
                                    : cli_write(strbuf_text(&shown), shown.length, error);
    strbuf_free(&shown);
    return status;
}

void terminal_note(int indent, const char *text)
{
    strbuf shown = {0};
    word_wrap wrap = {.indent = indent};
    int columns, lines;
    terminal_size(&columns, &lines);
    if (isatty(STDERR_FILENO) && option_terminal_has_sequences())
        word_wrap_put(&wrap, text, strlen(text), columns, &shown);
    fprintf(stderr, "%s\n", shown.length && !shown.failed ? strbuf_text(&shown) : text);
    word_wrap_free(&wrap);
    strbuf_free(&shown);
}

void terminal_say(const char *format, ...)
{
    strbuf text = {0};
    va_list arguments;
    va_start(arguments, format);
    strbuf_vprintf(&text, format, arguments);
    va_end(arguments);
    terminal_note(0, strbuf_text(&text));
    strbuf_free(&text);
}

void terminal_note_row(const char *name, const char *help)
{
    int columns, lines;
    strbuf row = {0};
    terminal_size(&columns, &lines);
    strbuf_printf(&row, "  %-18s %s", name, help);
    terminal_note(columns < 60 ? 4 : 21, strbuf_text(&row));
    strbuf_free(&row);
}

void terminal_suspend(void)
{
    terminal_mode mode = (terminal_mode)current;
    terminal_set_mode(TERMINAL_AS_FOUND);
    kill(0, SIGTSTP);
    terminal_set_mode(mode);
}

int terminal_read_byte(void *context, int timeout_ms)
{
    (void)context;
    struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    sigset_t watched, before;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGWINCH);
    sigaddset(&watched, SIGCONT);
    sigprocmask(SIG_BLOCK, &watched, &before);
    /* Signals are unblocked only during the wait, so that none is missed between the check and the
     * wait. */
    bool signalled = timeout_ms < 0 && (cli_interrupted || resized);
    int ready = -1;
    if (!signalled) {
        fd_set input;
        FD_ZERO(&input);
        FD_SET(STDIN_FILENO, &input);
        ready =
            pselect(STDIN_FILENO + 1, &input, NULL, NULL, timeout_ms < 0 ? NULL : &limit, &before);
        signalled = ready < 0 && errno == EINTR;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (signalled) resized = 0;
    if (signalled) return BYTE_SIGNAL;
    if (ready == 0) return BYTE_TIMEOUT;
    unsigned char byte;
    return ready > 0 && read(STDIN_FILENO, &byte, 1) == 1 ? byte : BYTE_END;
}

void terminal_write(const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t count = write(STDOUT_FILENO, bytes, length);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return; /* the terminal was closed: reading reports it */
        bytes += count;
        length -= (size_t)count;
    }
}
