/* quipu logits: the model's logits after every token of a prompt. */
#include "cli/cli.h"

#include "base/status.h"
#include "text/json_string.h"
#include "text/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_ONCE = 64 };

typedef struct logits_output {
    const cli_call *call;
    const qp_vocabulary *vocabulary; /* may be NULL */
    const qp_tokens *tokens;
    int64_t vocab_size, top;
    int32_t *order; /* [top], ids of the largest */
    FILE *file;     /* the file of --out, or NULL */
} logits_output;

/* Whether token a comes before b: the larger logit, the lower id on ties. */
static bool comes_first(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Moves heap[at] down until it comes after all below it in the order; the root is the last of the
 * order. */
static void sift_down(const float *logits, int32_t *heap, int64_t n, int64_t at)
{
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && comes_first(logits, heap[child], heap[child + 1])) child++;
        if (!comes_first(logits, heap[at], heap[child])) return;
        int32_t swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
    }
}

/* Writes the first `top` ids, in order, to the front of `order`. Keeps a heap of the best so far;
 * its root is replaced when a better one is found. */
static void select_top(const float *logits, int32_t *order, int64_t n, int64_t top)
{
    for (int64_t i = 0; i < top; i++)
        order[i] = (int32_t)i;
    for (int64_t i = top / 2 - 1; i >= 0; i--)
        sift_down(logits, order, top, i);
    for (int64_t i = top; i < n; i++) {
        if (!comes_first(logits, (int32_t)i, order[0])) continue;
        order[0] = (int32_t)i;
        sift_down(logits, order, top, 0);
    }
    for (int64_t left = top - 1; left > 0; left--) {
        int32_t last = order[0];
        order[0] = order[left];
        order[left] = last;
        sift_down(logits, order, left, 0);
    }
}

static void describe_token(const logits_output *out, int32_t id, strbuf *text)
{
    char *piece = NULL;
    size_t length = 0;
    if (out->vocabulary) qp_detokenize(out->vocabulary, &id, 1, QP_SPECIAL, &piece, &length, NULL);
    json_put_string(text, piece ? piece : "", length);
    free(piece);
}

/* The token's text, padded to `width` characters. */
static void describe_padded(const logits_output *out, int32_t id, int width, strbuf *text)
{
    size_t start = text->length;
    describe_token(out, id, text);
    width -= (int)utf8_characters(text->data + start, text->length - start);
    strbuf_printf(text, "%*s", width > 0 ? width : 0, "");
}

/* "       4      1 \"the\"         260 \" cat\"     12.345 ...": the likeliest first. */
static void print_line(const logits_output *out, size_t position, const float *logits, int64_t top,
                       strbuf *text)
{
    if (position == 0) strbuf_puts(text, "position  token               the likeliest to follow\n");
    strbuf_printf(text, "%8zu %6d ", position, out->tokens->data[position]);
    describe_padded(out, out->tokens->data[position], 12, text);
    for (int64_t i = 0; i < top; i++) {
        strbuf_printf(text, " %7d ", out->order[i]);
        describe_padded(out, out->order[i], 10, text);
        strbuf_printf(text, " %7.3f", (double)logits[out->order[i]]);
    }
    strbuf_putc(text, '\n');
}

static void print_json(const logits_output *out, size_t position, const float *logits, int64_t top,
                       strbuf *text)
{
    strbuf_printf(text, "%s{\"position\": %zu, \"token\": %d, \"top\": [", position ? ",\n  " : "",
                  position, out->tokens->data[position]);
    for (int64_t i = 0; i < top; i++) {
        strbuf_printf(text, "%s{\"id\": %d, \"text\": ", i ? ", " : "", out->order[i]);
        describe_token(out, out->order[i], text);
        /* JSON has no infinities: a token that the model excludes gets null. */
        float logit = logits[out->order[i]];
        if (isfinite(logit))
            strbuf_printf(text, ", \"logit\": %.9g}", (double)logit);
        else
            strbuf_puts(text, ", \"logit\": null}");
    }
    strbuf_puts(text, "]}");
}

static qp_status print_row(logits_output *out, size_t position, const float *logits)
{
    int64_t top = out->top;
    select_top(logits, out->order, out->vocab_size, top);
    strbuf text = {0};
    if (out->call->settings->json)
        print_json(out, position, logits, top, &text);
    else
        print_line(out, position, logits, top, &text);
    qp_status status = text.failed ? error_no_memory(out->call->error, "a row", text.length)
                                   : cli_write(text.data, text.length, out->call->error);
    strbuf_free(&text);
    return status;
}

static qp_status on_logits(void *context, size_t input, size_t token, const float *logits)
{
    (void)input;
    logits_output *out = context;
    size_t n = (size_t)out->vocab_size;
    if (out->file && fwrite(logits, sizeof *logits, n, out->file) != n)
        return error_set(out->call->error, QP_IO, "%s: cannot be written: %s",
                         out->call->settings->out, strerror(errno));
    return print_row(out, token, logits);
}

static qp_status eval(qp_engine *engine, qp_session *session, logits_output *out)
{
    const cli_call *call = out->call;
    bool json = call->settings->json;
    qp_input input = {session, out->tokens->data, out->tokens->count, true};
    if (json) {
        strbuf head = {0};
        strbuf_printf(&head, "{\"vocab_size\": %lld, \"positions\": [\n  ",
                      (long long)out->vocab_size);
        qp_status status = cli_write(strbuf_text(&head), head.length, call->error);
        strbuf_free(&head);
        TRY(status);
    }
    TRY(qp_eval(engine, &input, 1, on_logits, out, &cli_interrupted, call->error));
    return json ? cli_write("\n]}\n", 4, call->error) : QP_OK;
}

static qp_status write_logits(qp_engine *engine, qp_session *session, logits_output *out)
{
    const cli_call *call = out->call;
    const char *path = call->settings->out;
    out->vocab_size = qp_engine_get_info(engine)->vocab_size;
    out->top = call->settings->top < out->vocab_size ? call->settings->top : out->vocab_size;
    out->order = malloc((size_t)out->top * sizeof *out->order);
    if (!out->order) return error_no_memory(call->error, "the order", (size_t)out->top);
    if (path && !(out->file = fopen(path, "wb"))) {
        free(out->order);
        return error_set(call->error, QP_IO, "%s: cannot be created: %s", path, strerror(errno));
    }
    cli_catch_interrupt();
    qp_status status = eval(engine, session, out);
    cli_release_interrupt();
    if (out->file && fclose(out->file) != 0 && status == QP_OK)
        status = error_set(call->error, QP_IO, "%s: cannot be written: %s", path, strerror(errno));
    if (out->file && status != QP_OK) cli_remove_partial(path);
    free(out->order);
    return status;
}

qp_status command_logits(const cli_call *call)
{
    qp_engine *engine = NULL;
    qp_session *session = NULL;
    qp_tokens tokens = {0};
    qp_status status = cli_open_engine_at_once(call, ROWS_AT_ONCE, &engine);
    if (status == QP_OK) status = qp_session_open(engine, &session, call->error);
    if (status == QP_OK) status = cli_read_tokens(call, qp_engine_vocabulary(engine), &tokens);
    logits_output out = {.call = call, .tokens = &tokens};
    if (status == QP_OK) {
        out.vocabulary = qp_engine_vocabulary(engine);
        status = write_logits(engine, session, &out);
    }
    qp_tokens_free(&tokens);
    qp_session_close(session);
    qp_engine_close(engine);
    return status;
}
