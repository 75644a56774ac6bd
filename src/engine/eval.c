/* qp_eval() and qp_decode() of quipu.h: they call qp_step() until all tokens are read, or made. */
#include "engine/engine.h"

#include <stdlib.h>

/* ---- logits of given tokens ---------------------------------------------------------------- */

/* An input, for the callback that receives its logits. */
typedef struct evaluated {
    qp_logits_callback *on_logits;
    void *context;
    size_t input, done; /* number of tokens that earlier calls have read */
} evaluated;

static qp_status hand_on(void *context, size_t token, const float *logits)
{
    const evaluated *x = context;
    return x->on_logits(x->context, x->input, x->done + token, logits);
}

void engine_begin_reading(qp_engine *e, const qp_sequence *sequences, size_t n)
{
    enum { PROMPT_TOKENS = 64 };
    uint64_t total = 0;
    bool prompt = false;
    for (size_t i = 0; i < n; i++) {
        if (sequences[i].like) continue;
        total += sequences[i].count;
        prompt |= sequences[i].count >= PROMPT_TOKENS;
    }
    if (!prompt) return;
    progress_begin_tokens(&e->progress, "reading the prompt", total);
    e->reading = &e->progress;
}

void engine_end_reading(qp_engine *e)
{
    progress_end(e->reading);
    e->reading = NULL;
}

/* Reads the remaining tokens of all inputs; inputs that are done have count 0. */
static qp_status read_all(qp_engine *e, qp_sequence *sequences, evaluated *inputs, size_t n,
                          const volatile int *cancel, qp_error *error)
{
    for (size_t left = 1; left > 0;) {
        if (engine_is_closing(e) || (cancel && *cancel))
            return error_set(error, QP_CANCELLED, "cancelled");
        TRY(engine_step(e, sequences, n, error));
        left = 0;
        for (size_t i = 0; i < n; i++) {
            qp_sequence *s = &sequences[i];
            s->tokens += s->read;
            s->count -= s->read;
            inputs[i].done += s->read;
            left += s->count;
        }
    }
    return QP_OK;
}

static qp_status eval(qp_engine *e, const qp_input *inputs, size_t n_inputs,
                      qp_logits_callback *on_logits, void *context, const volatile int *cancel,
                      qp_error *error)
{
    qp_sequence *sequences = calloc(n_inputs + 1, sizeof *sequences);
    evaluated *places = calloc(n_inputs + 1, sizeof *places);
    for (size_t i = 0; sequences && places && i < n_inputs; i++) {
        places[i] = (evaluated){.on_logits = on_logits, .context = context, .input = i};
        sequences[i] = (qp_sequence){.size = sizeof(qp_sequence),
                                     .session = inputs[i].session,
                                     .tokens = inputs[i].tokens,
                                     .count = inputs[i].count,
                                     .every_row = inputs[i].every_row,
                                     .on_logits = on_logits ? hand_on : NULL,
                                     .context = &places[i]};
    }
    if (sequences) engine_begin_reading(e, sequences, n_inputs);
    qp_status status = sequences && places
                           ? read_all(e, sequences, places, n_inputs, cancel, error)
                           : error_no_memory(error, "the evaluation", n_inputs * sizeof *places);
    engine_end_reading(e);
    free(sequences);
    free(places);
    return status;
}

qp_status qp_eval(qp_engine *e, const qp_input *inputs, size_t n_inputs,
                  qp_logits_callback *on_logits, void *context, const volatile int *cancel,
                  qp_error *error)
{
    TRY(engine_enter(e, error));
    const qp_status status = eval(e, inputs, n_inputs, on_logits, context, cancel, error);
    engine_leave(e);
    return status;
}

/* ---- the likeliest tokens ------------------------------------------------------------------ */

/* A session's column of the table of tokens. */
typedef struct column {
    int32_t *next; /* where its next token is stored */
    size_t pitch, left;
} column;

static qp_status put_token(void *context, int32_t token)
{
    column *c = context;
    *c->next = token;
    c->next += c->pitch;
    return --c->left > 0 ? QP_OK : QP_CANCELLED;
}

static qp_status check_room(const qp_engine *e, qp_session *const *sessions, size_t n, size_t count,
                            qp_error *error)
{
    const size_t context = (size_t)e->program.options.context;
    for (size_t i = 0; i < n; i++)
        if (count > context || sessions[i]->count > context - count)
            return error_set(error, QP_INVALID,
                             "the context is full: session %zu holds %zu tokens, %zu more were "
                             "asked for, and it has room for %zu in all (%s)",
                             i, sessions[i]->count, count, context, engine_about_context(e));
    return QP_OK;
}

/* Runs until every session has its tokens; `columns`: the columns of the sequences. */
static qp_status make_tokens(qp_engine *e, qp_sequence *sequences, const column *columns, size_t n,
                             const volatile int *cancel, qp_error *error)
{
    for (size_t left = 1; left > 0;) {
        if (engine_is_closing(e) || (cancel && *cancel))
            return error_set(error, QP_CANCELLED, "cancelled");
        left = 0;
        for (size_t i = 0; i < n; i++) {
            const column *c = &columns[i];
            sequences[i].tokens = c->next - c->pitch;
            sequences[i].count = c->left > 0;
            sequences[i].max_tokens = c->left;
            left += c->left;
        }
        if (left > 0) TRY(engine_step(e, sequences, n, error));
    }
    return QP_OK;
}

static qp_status decode(qp_engine *e, qp_session *const *sessions, size_t n, size_t count,
                        int32_t *tokens, const volatile int *cancel, qp_error *error)
{
    if (n == 0) return QP_OK;
    TRY(check_room(e, sessions, n, count, error));
    qp_sequence *sequences = calloc(n, sizeof *sequences);
    column *columns = calloc(n, sizeof *columns);
    for (size_t i = 0; sequences && columns && i < n; i++) {
        columns[i] = (column){.next = tokens + n + i, .pitch = n, .left = count};
        sequences[i] = (qp_sequence){.size = sizeof(qp_sequence),
                                     .session = sessions[i],
                                     .sampler = e->greedy,
                                     .on_token = put_token,
                                     .context = &columns[i]};
    }
    qp_status status = sequences && columns
                           ? make_tokens(e, sequences, columns, n, cancel, error)
                           : error_no_memory(error, "decoding", n * sizeof *sequences);
    free(sequences);
    free(columns);
    return status;
}

qp_status qp_decode(qp_engine *e, qp_session *const *sessions, size_t n, size_t count,
                    int32_t *tokens, const volatile int *cancel, qp_error *error)
{
    TRY(engine_enter(e, error));
    const qp_status status = decode(e, sessions, n, count, tokens, cancel, error);
    engine_leave(e);
    return status;
}
