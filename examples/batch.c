/* Goes on with the lines of standard input, four at a time, as a server does: quipu as a library.
 *
 *     batch MODEL < lines
 * A line joins when another one has ended, and each step makes a token of every line that goes on.
 * Build it with: cc batch.c $(pkg-config --cflags --libs quipu) -o batch
 */
#include <quipu.h>
#include <stdio.h>
#include <string.h>

enum { AT_ONCE = 4, TOKENS = 40 };

typedef struct line {
    char prompt[512], text[4096];
    qp_tokens tokens;
    qp_text_stream *stream; /* NULL: the line is free */
    int32_t last;           /* the token that was chosen last */
} line;

/* Receives a token when it is chosen, and keeps its text. */
static qp_status take(void *context, int32_t token)
{
    line *l = context;
    qp_text_piece piece = {.size = sizeof piece};
    const qp_status status = qp_text_stream_add(l->stream, l->last = token, NULL);
    while (status == QP_OK && qp_text_stream_next(l->stream, &piece))
        snprintf(l->text + strlen(l->text), sizeof l->text - strlen(l->text), "%.*s",
                 (int)piece.length, piece.text);
    return qp_text_stream_ended(l->stream, NULL, NULL) ? QP_CANCELLED : status;
}

static qp_status join(qp_engine *engine, line *l, qp_sequence *s, qp_error *error)
{
    const qp_vocabulary *v = qp_engine_vocabulary(engine);
    qp_sampling sampling = {.size = sizeof sampling};
    const qp_text_stream_options text = {.size = sizeof text, .sampling = &sampling};
    l->tokens.count = 0, *l->text = l->prompt[strcspn(l->prompt, "\n")] = '\0';
    *s = (qp_sequence){.size = sizeof *s, .on_token = take, .context = l, .max_tokens = TOKENS};
    qp_status status = qp_tokenize(v, l->prompt, strlen(l->prompt), 0, &l->tokens, error);
    if (status == QP_OK) status = qp_sampling_defaults(engine, &sampling, error);
    if (status == QP_OK) status = qp_sampler_open(engine, &sampling, &s->sampler, error);
    if (status == QP_OK) status = qp_text_stream_open(v, &text, &l->stream, error);
    if (status == QP_OK) status = qp_session_open(engine, &s->session, error);
    s->tokens = l->tokens.data, s->count = l->tokens.count;
    return status;
}

int main(int argc, char **argv)
{
    static line lines[AT_ONCE];
    qp_sequence all[AT_ONCE];
    qp_error error = {0};
    qp_engine *engine = NULL;
    const qp_engine_options options = {
        .size = sizeof options, .model = argc > 1 ? argv[1] : "", .max_sessions = AT_ONCE};
    qp_status status = qp_engine_open(&options, &engine, &error);
    for (size_t n = 0, more = 1; status == QP_OK && (more || n > 0);) {
        for (line *l = lines; status == QP_OK && l < lines + AT_ONCE; l++)
            if (!l->stream && (more = fgets(l->prompt, sizeof l->prompt, stdin) != NULL) &&
                *l->prompt != '\n')
                status = join(engine, l, &all[n++], &error);
        if (status == QP_OK && n > 0) status = qp_step(engine, all, n, &error);
        for (size_t i = n; i-- > 0;) {
            qp_sequence *s = &all[i]; /* its next tokens: the rest of the prompt, or the last one */
            line *l = s->context;
            s->tokens = s->chosen ? &l->last : s->tokens + s->read;
            s->count = s->chosen ? 1 : s->count - s->read;
            s->max_tokens -= s->chosen;
            if (s->max_tokens > 0 && !qp_text_stream_ended(l->stream, NULL, NULL)) continue;
            printf("%s%s\n", l->prompt, l->text);
            qp_text_stream_close(l->stream), qp_session_close(s->session);
            qp_sampler_close(s->sampler), l->stream = NULL, *s = all[--n];
        }
    }
    if (status != QP_OK) fprintf(stderr, "batch: %s\n", error.message);
    for (int i = 0; i < AT_ONCE; i++)
        qp_tokens_free(&lines[i].tokens);
    qp_engine_close(engine);
    return status == QP_OK ? 0 : 1;
}
