/* Sessions, and the evaluation of new tokens in batches. */
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

qp_status qp_session_open(qp_engine *engine, qp_session **out, qp_error *error)
{
    *out = NULL;
    if (engine->n_sessions == engine->max_sessions)
        return error_set(error, QP_INVALID,
                         "the engine was opened for %lld sessions, and all are in use; close one "
                         "or open it with more",
                         (long long)engine->max_sessions);
    const plan_options *o = &engine->plan.options;
    qp_session *s = calloc(1, sizeof *s);
    if (!s) return error_no_memory(error, "a session", sizeof *s);
    s->engine = engine;
    engine->n_sessions++;
    size_t vocab_bytes = (size_t)engine->plan.config.vocab_size * sizeof *s->logits;
    s->tokens = malloc((size_t)o->context * sizeof *s->tokens);
    s->logits = malloc(vocab_bytes);
    qp_status status =
        page_list_init(&s->pages, (o->context + o->page_size - 1) / o->page_size, error);
    if (status == QP_OK && (!s->tokens || !s->logits))
        status = error_no_memory(error, "a session", vocab_bytes);
    if (status == QP_OK)
        *out = s;
    else
        qp_session_close(s);
    return status;
}

/* Both hold the pages: K and V of the tokens are there once. */
void session_share(qp_session *to, const qp_session *from)
{
    const qp_engine *e = from->engine;
    memcpy(to->tokens, from->tokens, from->count * sizeof *to->tokens);
    memcpy(to->logits, from->logits, (size_t)e->plan.config.vocab_size * sizeof *to->logits);
    page_list_shrink(&to->pages, &to->engine->pages, 0);
    page_list_share(&to->pages, &from->pages, &to->engine->pages, (int64_t)from->count);
    to->count = from->count;
    to->rope_length = from->rope_length;
}

qp_status qp_session_fork(const qp_session *session, qp_session **out, qp_error *error)
{
    TRY(qp_session_open(session->engine, out, error));
    session_share(*out, session);
    return QP_OK;
}

void qp_session_close(qp_session *s)
{
    if (!s) return;
    page_list_free(&s->pages, &s->engine->pages);
    s->engine->n_sessions--;
    free(s->tokens);
    free(s->logits);
    free(s);
}

const int32_t *qp_session_tokens(const qp_session *s, size_t *count)
{
    *count = s->count;
    return s->tokens;
}

void qp_session_truncate(qp_session *s, size_t keep)
{
    if (keep >= s->count) return;
    s->count = keep;
    session_give_pages_back(s, 0);
}

qp_status session_take_pages(qp_session *s, size_t ahead, size_t n, qp_error *error)
{
    page_copy copy;
    const int64_t held = (int64_t)(s->count + ahead);
    TRY(page_list_grow(&s->pages, &s->engine->pages, held, held + (int64_t)n, &copy, error));
    if (!copy.needed) return QP_OK;
    return machine_copy_page(engine_memory(s->engine), copy.from, copy.to, error);
}

void session_give_pages_back(qp_session *s, size_t ahead)
{
    page_list_shrink(&s->pages, &s->engine->pages, (int64_t)(s->count + ahead));
}

/* Every session at most once, and of this engine: an input's pages are taken before any is run. */
static qp_status check_sessions(qp_engine *e, const qp_input *inputs, size_t n_inputs,
                                qp_error *error)
{
    e->evaluation++;
    for (size_t i = 0; i < n_inputs; i++) {
        qp_session *s = inputs[i].session;
        if (s->engine != e)
            return error_set(error, QP_INVALID, "the session of input %zu is another engine's", i);
        if (s->evaluation == e->evaluation)
            return error_set(error, QP_INVALID,
                             "input %zu names a session that an earlier input names too; give it "
                             "all its tokens in one input",
                             i);
        s->evaluation = e->evaluation;
    }
    return QP_OK;
}

static qp_status check_input(const qp_engine *e, const qp_input *input, qp_error *error)
{
    int64_t context = e->plan.options.context, vocab_size = e->plan.config.vocab_size;
    if (input->count > (size_t)context || input->session->count > (size_t)context - input->count)
        return error_set(error, QP_INVALID,
                         "the context is full: the session holds %zu tokens, %zu more were given, "
                         "and it has room for %lld in all (%s)",
                         input->session->count, input->count, (long long)context,
                         engine_about_context(e));
    for (size_t i = 0; i < input->count; i++) {
        if (input->tokens[i] >= 0 && input->tokens[i] < vocab_size) continue;
        return error_set(error, QP_INVALID,
                         "token %zu is %d, but the model's vocabulary has the ids 0 to %lld", i,
                         input->tokens[i], (long long)vocab_size - 1);
    }
    return QP_OK;
}

/* A part of an input that lies in the current batch. */
typedef struct batch_part {
    size_t input;
    size_t first_token, count; /* of the input */
    int64_t first_output, n_outputs;
} batch_part;

/* Fits as many tokens of one input into the batch as there is room for, in tokens and outputs. */
static batch_part add_part(qp_engine *e, const qp_input *input, size_t index, size_t done)
{
    batch *b = &e->batch;
    qp_session *s = input->session;
    size_t left = input->count - done;
    int64_t room = batch_room(b);
    int64_t outputs = e->plan.options.max_outputs - batch_outputs(b);
    batch_part part = {.input = index, .first_token = done, .first_output = batch_outputs(b)};
    part.count = left < (size_t)room ? left : (size_t)room;
    if (input->every_row && part.count > (size_t)outputs) part.count = (size_t)outputs;
    /* The last token needs a row of logits: without room for it, it waits for the next batch. */
    bool ends = left > 0 && part.count == left;
    if (!input->every_row && ends && outputs == 0) part.count = left - 1;
    if (part.count == 0) return part;
    int64_t row = batch_tokens(b);
    batch_add(b, input->tokens + done, (int64_t)part.count, (int64_t)s->count, s->pages.pages);
    batch_set_angles(b, row, (int64_t)s->count, (int64_t)part.count, s->rope_length);
    for (size_t i = 0; i < part.count; i++) {
        if (input->every_row || done + i + 1 == input->count) batch_want(b, row + (int64_t)i);
    }
    part.n_outputs = batch_outputs(b) - part.first_output;
    memcpy(s->tokens + s->count, input->tokens + done, part.count * sizeof *s->tokens);
    s->count += part.count;
    return part;
}

/* Damaged weights give logits that are no numbers, and of them any token could be made. Minus
 * infinity is a number here: the model excludes a token by it. */
static qp_status check_logits(const qp_engine *e, const float *logits, size_t token,
                              qp_error *error)
{
    int64_t n = e->plan.config.vocab_size, bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += !(logits[i] < INFINITY);
    if (bad == 0) return QP_OK;
    return error_set(
        error, QP_FORMAT,
        "the logits are not finite: %lld of %lld after token %zu of the input are NaN "
        "or infinite; the weights hold values that are not numbers, or too large ones: "
        "fetch or convert the model again",
        (long long)bad, (long long)n, token);
}

/* `logits`: (n_outputs, vocab_size) of the batch. */
static qp_status deliver(const qp_engine *e, const batch_part *part, const float *logits,
                         qp_logits_callback *on_logits, void *context, qp_error *error)
{
    size_t first = part->first_token + part->count - (size_t)part->n_outputs;
    for (int64_t i = 0; i < part->n_outputs && on_logits; i++) {
        const float *row = logits + (part->first_output + i) * e->plan.config.vocab_size;
        TRY(check_logits(e, row, first + (size_t)i, error));
        TRY(on_logits(context, part->input, first + (size_t)i, row));
    }
    return QP_OK;
}

static qp_status take_pages(const qp_input *inputs, size_t n_inputs, qp_error *error)
{
    for (size_t i = 0; i < n_inputs; i++) {
        qp_session *s = inputs[i].session;
        qp_status status = session_take_pages(s, 0, inputs[i].count, error);
        if (status == QP_OK) {
            s->rope_length = (int64_t)(s->count + inputs[i].count);
            continue;
        }
        for (size_t j = 0; j < i; j++)
            session_give_pages_back(inputs[j].session, 0);
        return status;
    }
    return QP_OK;
}

/* Progress is told of prompts, not of passes with a few tokens of each sequence: NULL then. */
static progress *begin_progress(qp_engine *e, const qp_input *inputs, size_t n_inputs)
{
    enum { PROMPT_TOKENS = 64 };
    uint64_t total = 0;
    bool prompt = false;
    for (size_t i = 0; i < n_inputs; i++) {
        total += inputs[i].count;
        prompt |= inputs[i].count >= PROMPT_TOKENS;
    }
    if (!prompt) return NULL;
    progress_begin_tokens(&e->progress, "reading the prompt", total);
    return &e->progress;
}

static qp_status run_inputs(qp_engine *e, const qp_input *inputs, size_t n_inputs,
                            qp_logits_callback *on_logits, void *context,
                            const volatile int *cancel, progress *told, qp_error *error)
{
    size_t input = 0, done = 0;
    while (input < n_inputs) {
        if (cancel && *cancel) return error_set(error, QP_CANCELLED, "cancelled");
        batch_clear(&e->batch);
        enum { MAX_PARTS = 512 };
        batch_part parts[MAX_PARTS];
        int n_parts = 0;
        while (input < n_inputs && n_parts < MAX_PARTS && batch_room(&e->batch) > 0) {
            parts[n_parts] = add_part(e, &inputs[input], input, done);
            size_t count = parts[n_parts].count;
            done += count;
            n_parts += count > 0;
            if (done < inputs[input].count) break;
            input++;
            done = 0;
        }
        if (n_parts == 0) continue;
        float *logits = NULL;
        TRY(engine_run_batch(e, on_logits ? &logits : NULL, error));
        for (int i = 0; i < n_parts; i++)
            TRY(deliver(e, &parts[i], logits, on_logits, context, error));
        progress_advance(told, (uint64_t)batch_tokens(&e->batch));
    }
    return QP_OK;
}

qp_status qp_eval(qp_engine *e, const qp_input *inputs, size_t n_inputs,
                  qp_logits_callback *on_logits, void *context, const volatile int *cancel,
                  qp_error *error)
{
    TRY(check_sessions(e, inputs, n_inputs, error));
    for (size_t i = 0; i < n_inputs; i++)
        TRY(check_input(e, &inputs[i], error));
    TRY(take_pages(inputs, n_inputs, error));
    progress *told = begin_progress(e, inputs, n_inputs);
    qp_status status = run_inputs(e, inputs, n_inputs, on_logits, context, cancel, told, error);
    progress_end(told);
    return status;
}
