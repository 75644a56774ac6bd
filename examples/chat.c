/* Talks with a model: quipu as a library.
 *
 *     chat MODEL        one question a line; Ctrl-C ends an answer, Ctrl-D the program
 *
 * Each answer reads only what is new. Thoughts are dimmed on a terminal. Build it with
 *
 *     cc chat.c $(pkg-config --cflags --libs quipu) -o chat
 */
#include <quipu.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile int cancelled;

static void cancel(int signal)
{
    (void)signal;
    cancelled = 1;
}

/* Receives an answer piece by piece. */
static qp_status print(void *context, const qp_text_piece *piece)
{
    const int *dims = context;
    const int thinks = *dims && piece->kind == QP_TEXT_THINKING;
    if (thinks) fputs("\033[2m", stdout);
    fwrite(piece->text, 1, piece->length, stdout);
    if (thinks) fputs("\033[0m", stdout);
    fflush(stdout);
    return QP_OK;
}

int main(int argc, char **argv)
{
    char line[4096];
    int dims = isatty(1);
    qp_engine *engine = NULL;
    qp_chat *chat = NULL;
    qp_error error = {0};
    const qp_engine_options model = {.size = sizeof model, .model = argc > 1 ? argv[1] : ""};
    const qp_chat_options options = {
        .size = sizeof options, .cancel = &cancelled, .on_text = print, .context = &dims};
    qp_status status = qp_engine_open(&model, &engine, &error);
    if (status == QP_OK) status = qp_chat_open(engine, &options, &chat, &error);
    signal(SIGINT, cancel);
    while (status == QP_OK && printf("> ") && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        cancelled = 0;
        status = qp_chat_ask(chat, line, NULL, &error);
        puts("");
    }
    if (status != QP_OK) fprintf(stderr, "chat: %s\n", error.message);
    qp_chat_close(chat);
    qp_engine_close(engine);
    return status == QP_OK ? 0 : 1;
}
