/* "/edit" and "/copy" of quipu chat: a message in the person's editor, and an answer in the
 * clipboard. */
#include "cli/chat.h"

#include "base/files.h"
#include "base/option_cache.h"
#include "base/status.h"
#include "cli/terminal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGE_MOST = 16 << 20 /* bytes */ };

/* ---- /edit --------------------------------------------------------------------------------- */

/* Runs the editor on the file, with the terminal as it was found; its exit status. */
static int run_editor(const char *editor, const char *path)
{
    int status = -1;
    terminal_set_mode(TERMINAL_AS_FOUND);
    const pid_t child = fork();
    if (child == 0) {
        char command[512];
        signal(SIGINT, SIG_DFL);
        snprintf(command, sizeof command, "%s \"$1\"", editor); /* "code --wait" is one, too */
        execl("/bin/sh", "sh", "-c", command, "sh", path, (char *)NULL);
        _exit(127);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    terminal_set_mode(TERMINAL_ANSWERING);
    cli_catch_answers_interrupt(); /* an interrupt was the editor's */
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The text of the last message of the user, to free(); "" where there is none. */
static char *last_question(const chat *c)
{
    cJSON *messages;
    const char *text = "";
    if (chat_messages(c, &messages) != QP_OK) return NULL;
    for (const cJSON *message = messages->child; message; message = message->next)
        if (strcmp(chat_message_text(message, "role"), "user") == 0)
            text = chat_message_text(message, "content");
    char *copy = strdup(text);
    cJSON_Delete(messages);
    return copy;
}

static qp_status edit_file(const chat *c, int file, const char *path, const char *text,
                           strbuf *message)
{
    const char *editor = option_editor();
    const size_t length = strlen(text);
    if (write(file, text, length) != (ssize_t)length)
        return error_set(c->call->error, QP_IO, "%s: cannot be written: %s", path, strerror(errno));
    const int status = run_editor(editor, path);
    if (status != 0)
        return error_set(c->call->error, QP_INVALID,
                         "Nothing was sent: the editor '%s' ended with status %d. $VISUAL or "
                         "$EDITOR names another",
                         editor, status);
    return files_read(path, MESSAGE_MOST, message, c->call->error);
}

qp_status chat_edit(chat *c, const char *argument)
{
    char path[] = "/tmp/quipu-XXXXXX.md";
    strbuf message = {0};
    if (!chat_input_is_terminal(c->input))
        return error_set(c->call->error, QP_INVALID, "/edit needs a terminal");
    char *text = *argument ? strdup(argument) : last_question(c);
    const int file = text ? mkstemps(path, 3) : -1;
    qp_status status = file >= 0 ? edit_file(c, file, path, text, &message)
                                 : error_set(c->call->error, QP_IO, "%s: cannot be made: %s", path,
                                             strerror(errno));
    if (file >= 0) close(file);
    if (file >= 0) unlink(path);
    free(text);
    while (message.length && strchr(" \n\r\t", message.data[message.length - 1]))
        message.data[--message.length] = '\0';
    if (status == QP_OK && message.length == 0) terminal_say("Nothing was sent.");
    if (status == QP_OK && message.length > 0) {
        terminal_note(2, strbuf_text(&message));
        status = chat_say(c, message.data);
    }
    strbuf_free(&message);
    return status;
}

/* ---- /copy --------------------------------------------------------------------------------- */

static void put_base64(const strbuf *bytes, strbuf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes->length; i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (i + k < bytes->length ? (uint8_t)bytes->data[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            strbuf_putc(out, i + k <= bytes->length ? digits[bits >> (18 - 6 * k) & 63] : '=');
    }
}

/* The terminal puts it into the clipboard by OSC 52, also from another host. */
qp_status chat_copy(chat *c, const char *argument)
{
    (void)argument;
    const strbuf *answer = &c->view.content;
    if (answer->length == 0)
        return error_set(c->call->error, QP_INVALID, "There is no answer yet to copy");
    if (!terminal_draws())
        return error_set(c->call->error, QP_INVALID,
                         "/copy needs a terminal; here the answer is on standard output");
    strbuf sequence = {0};
    strbuf_puts(&sequence, "\x1b]52;c;");
    put_base64(answer, &sequence);
    strbuf_puts(&sequence, "\a");
    if (!sequence.failed) terminal_write(sequence.data, sequence.length);
    strbuf_free(&sequence);
    terminal_say("The last answer (%zu bytes) was handed to the terminal's clipboard.",
                 answer->length);
    return QP_OK;
}
