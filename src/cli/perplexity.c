/* quipu perplexity: how well a model predicts a text, measured as llama.cpp's tool does it.
 *
 * The text's tokens are cut into chunks of the context's length, and the first token of each chunk
 * is replaced by BOS where the model uses one. The second half of each chunk is scored: with n its
 * length, the logits after token j, n/2 <= j < n - 1, are compared with token j + 1.
 */
#include "cli/cli.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS_AT_ONCE = 128 };

typedef struct score {
    const int32_t *tokens; /* tokens of the scored part and the one after it */
    size_t count;          /* logits that are scored */
    int64_t vocab_size;
    double sum, sum_squares; /* of the negative log likelihoods */
    int64_t scored;
} score;

static qp_status on_logits(void *context, size_t input, size_t token, const float *logits)
{
    (void)input;
    score *s = context;
    if (token >= s->count) return QP_OK;
    float most = logits[0];
    for (int64_t i = 1; i < s->vocab_size; i++)
        most = logits[i] > most ? logits[i] : most;
    double sum = 0;
    for (int64_t i = 0; i < s->vocab_size; i++)
        sum += exp((double)(logits[i] - most));
    double nll = log(sum) - (double)(logits[s->tokens[token + 1]] - most);
    s->sum += nll;
    s->sum_squares += nll * nll;
    s->scored++;
    return QP_OK;
}

static double mean(const score *s)
{
    return s->sum / (double)s->scored;
}

/* Standard error of the perplexity: its derivative times the standard error of the mean. */
static double standard_error(const score *s)
{
    double variance = s->sum_squares / (double)s->scored - mean(s) * mean(s);
    return s->scored > 1 && variance > 0 ? sqrt(variance / (double)(s->scored - 1)) * exp(mean(s))
                                         : 0;
}

static qp_status score_chunk(qp_engine *engine, qp_session *session, const int32_t *tokens,
                             size_t n, score *s, qp_error *error)
{
    size_t first = n / 2;
    TRY(qp_session_truncate(session, 0, error));
    s->tokens = tokens + first;
    s->count = n - 1 - first;
    qp_input head = {.session = session, .tokens = tokens, .count = first};
    qp_input tail = {
        .session = session, .tokens = tokens + first, .count = n - first, .every_row = true};
    TRY(qp_eval(engine, &head, 1, NULL, NULL, &cli_interrupted, error));
    return qp_eval(engine, &tail, 1, on_logits, s, &cli_interrupted, error);
}

static qp_status report(const cli_call *call, const score *s, size_t chunks)
{
    strbuf text = {0};
    if (call->settings->json)
        strbuf_printf(&text,
                      "{\"perplexity\": %.6f, \"standard_error\": %.6f, \"chunks\": %zu, "
                      "\"tokens_scored\": %lld}\n",
                      exp(mean(s)), standard_error(s), chunks, (long long)s->scored);
    else
        strbuf_printf(&text, "perplexity %.4f +/- %.5f (%zu chunk%s, %lld tokens scored)\n",
                      exp(mean(s)), standard_error(s), chunks, chunks == 1 ? "" : "s",
                      (long long)s->scored);
    qp_status status = cli_write(strbuf_text(&text), text.length, call->error);
    strbuf_free(&text);
    return status;
}

static qp_status score_text(const cli_call *call, qp_engine *engine, qp_session *session,
                            qp_tokens *tokens, int32_t bos, size_t n)
{
    size_t chunks = tokens->count / n;
    if (call->settings->chunks && chunks > (size_t)call->settings->chunks)
        chunks = (size_t)call->settings->chunks;
    if (chunks == 0)
        return error_set(call->error, QP_INVALID,
                         "the text has %zu tokens, fewer than one chunk of %zu; give a longer text "
                         "or a smaller --context",
                         tokens->count, n);
    score s = {.vocab_size = qp_engine_get_info(engine)->vocab_size};
    for (size_t i = 0; i < chunks; i++) {
        int32_t *chunk = tokens->data + i * n;
        int32_t replaced = chunk[0];
        if (bos >= 0) chunk[0] = bos;
        qp_status status = score_chunk(engine, session, chunk, n, &s, call->error);
        chunk[0] = replaced;
        if (status != QP_OK) return status;
        fprintf(stderr, "[%zu/%zu] %.4f\n", i + 1, chunks, exp(mean(&s)));
    }
    return report(call, &s, chunks);
}

/* The BOS token that plain text begins with, or -1. */
static qp_status find_bos(const qp_vocabulary *vocabulary, int32_t *bos, qp_error *error)
{
    qp_tokens tokens = {0};
    qp_status status = qp_tokenize(vocabulary, "", 0, QP_BOS_DEFAULT, &tokens, error);
    *bos = status == QP_OK && tokens.count > 0 ? tokens.data[0] : -1;
    qp_tokens_free(&tokens);
    return status;
}

static qp_status run(const cli_call *call, qp_engine *engine, qp_session *session)
{
    const qp_vocabulary *vocabulary = qp_engine_vocabulary(engine);
    if (!vocabulary)
        return error_set(call->error, QP_INVALID,
                         "the model has no vocabulary to read a text with");
    char *text = NULL;
    size_t length;
    int32_t bos;
    qp_tokens tokens = {0};
    qp_status status = cli_read_input(call->settings->file, &text, &length, call->error);
    if (status == QP_OK) status = find_bos(vocabulary, &bos, call->error);
    if (status == QP_OK)
        status = qp_tokenize(vocabulary, text, length, QP_BOS_DEFAULT, &tokens, call->error);
    cli_catch_interrupt();
    if (status == QP_OK)
        status = score_text(call, engine, session, &tokens, bos,
                            (size_t)qp_engine_get_info(engine)->context);
    cli_release_interrupt();
    qp_tokens_free(&tokens);
    free(text);
    return status;
}

qp_status command_perplexity(const cli_call *call)
{
    qp_engine *engine = NULL;
    qp_session *session = NULL;
    qp_status status = cli_open_engine(call, ROWS_AT_ONCE, &engine);
    if (status == QP_OK) status = qp_session_open(engine, &session, call->error);
    if (status == QP_OK) status = run(call, engine, session);
    qp_session_close(session);
    qp_engine_close(engine);
    return status;
}
