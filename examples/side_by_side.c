/* Goes on with several texts at once: quipu as a library.
 *
 *     side_by_side MODEL TEXT...
 *
 * Every text is a session of its own, and a forward pass reads a token of each, on a GPU where
 * there is one. Build it with
 *
 *     cc side_by_side.c $(pkg-config --cflags --libs quipu) -o side_by_side
 */
#include "quipu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, TOKENS = 40 };

/* A text, and the tokens that follow it. */
typedef struct continuation {
    qp_tokens prompt;
    qp_generate_options options;
    char text[16 * TOKENS];
    size_t length;
} continuation;

/* Receives it piece by piece, in whole characters. */
static qp_status keep_text(void *context, int32_t token, const char *text, size_t length)
{
    continuation *c = context;
    (void)token;
    if (length >= sizeof c->text - c->length) return QP_NO_MEMORY;
    memcpy(c->text + c->length, text, length);
    c->length += length;
    return QP_OK;
}

/* Opens a session for each text, and goes on with all of them, each with the settings of the
 * model's files. */
static qp_status go_on(qp_engine *engine, char **texts, size_t n, continuation *all,
                       qp_answer *answers, qp_error *error)
{
    const qp_vocabulary *vocabulary = qp_engine_vocabulary(engine);
    qp_status status = QP_OK;
    for (size_t i = 0; i < n && status == QP_OK; i++) {
        continuation *c = &all[i];
        status =
            qp_tokenize(vocabulary, texts[i], strlen(texts[i]), QP_BOS_DEFAULT, &c->prompt, error);
        if (status == QP_OK) status = qp_session_open(engine, &answers[i].session, error);
        c->options = (qp_generate_options){.size = sizeof(qp_generate_options),
                                           .prompt = c->prompt.data,
                                           .n_prompt = c->prompt.count,
                                           .max_tokens = TOKENS,
                                           .on_token = keep_text,
                                           .context = c};
        answers[i].options = &c->options;
    }
    return status == QP_OK ? qp_generate_together(answers, n, error) : status;
}

int main(int argc, char **argv)
{
    static continuation all[MOST];
    static qp_answer answers[MOST];
    const size_t n = argc > 2 ? (size_t)argc - 2 : 0;
    qp_error error = {0};
    qp_engine *engine = NULL;
    if (n < 1 || n > MOST) {
        fprintf(stderr, "usage: side_by_side MODEL TEXT... (at most %d)\n", MOST);
        return 2;
    }
    const qp_engine_options options = {.size = sizeof options,
                                       .model = argv[1],
                                       .device = "auto",
                                       .context = 1024,
                                       .max_sessions = (int64_t)n};
    qp_status status = qp_engine_open(&options, &engine, &error);
    if (status == QP_OK) status = go_on(engine, argv + 2, n, all, answers, &error);
    for (size_t i = 0; i < n; i++) {
        if (status == QP_OK) printf("%s%.*s\n", argv[i + 2], (int)all[i].length, all[i].text);
        qp_session_close(answers[i].session);
        qp_tokens_free(&all[i].prompt);
    }
    qp_engine_close(engine);
    if (status != QP_OK) fprintf(stderr, "side_by_side: %s\n", error.message);
    return status == QP_OK ? 0 : 1;
}
