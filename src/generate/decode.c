/* Greedy decoding of many sessions, a token of each a pass: see qp_decode() in quipu.h.
 *
 * The GPU finds the likeliest tokens itself and reads them in the next pass, so that logits stay
 * where they are and the host is some passes ahead: it knows all of them but their tokens.
 */
#include "generate/engine.h"
#include "op/argmax/argmax.h"
#include "op/run.h"

/* One call of qp_decode(). */
typedef struct decoding {
    qp_engine *engine;
    qp_session *const *sessions;
    size_t n_sessions, count;
} decoding;

static qp_status check_session(const decoding *d, size_t i, int32_t token, qp_error *error)
{
    const qp_engine *e = d->engine;
    qp_session *s = d->sessions[i];
    const size_t context = (size_t)e->plan.options.context;
    if (s->engine != e) return error_set(error, QP_INVALID, "session %zu is another engine's", i);
    if (s->evaluation == e->evaluation)
        return error_set(error, QP_INVALID, "session %zu is given twice", i);
    s->evaluation = e->evaluation;
    if (d->count > context || s->count > context - d->count)
        return error_set(error, QP_INVALID,
                         "the context is full: session %zu holds %zu tokens, %zu more were asked "
                         "for, and it has room for %zu in all",
                         i, s->count, d->count, context);
    if (token >= 0 && token < e->plan.config.vocab_size) return QP_OK;
    return error_set(error, QP_INVALID,
                     "the token of session %zu is %d, but the model's vocabulary has the ids 0 to "
                     "%lld",
                     i, token, (long long)e->plan.config.vocab_size - 1);
}

static qp_status check(const decoding *d, const int32_t *tokens, qp_error *error)
{
    qp_engine *e = d->engine;
    const plan_options *o = &e->plan.options;
    int64_t most = o->max_outputs < o->max_sequences ? o->max_outputs : o->max_sequences;
    if ((int64_t)d->n_sessions > most)
        return error_set(error, QP_INVALID,
                         "the engine was opened for %lld sessions and rows of logits at once, but "
                         "%zu sessions were given",
                         (long long)most, d->n_sessions);
    e->evaluation++;
    for (size_t i = 0; i < d->n_sessions; i++)
        TRY(check_session(d, i, tokens[i], error));
    return QP_OK;
}

/* Pages for `n` more tokens of every session, or for none. */
static qp_status take_pages(const decoding *d, size_t n, qp_error *error)
{
    page_pool *pool = &d->engine->pages;
    for (size_t i = 0; i < d->n_sessions; i++) {
        qp_session *s = d->sessions[i];
        qp_status status = page_list_resize(&s->pages, pool, (int64_t)(s->count + n), error);
        if (status == QP_OK) continue;
        for (size_t j = 0; j < i; j++)
            page_list_resize(&d->sessions[j]->pages, pool, (int64_t)d->sessions[j]->count, NULL);
        return status;
    }
    return QP_OK;
}

/* Several passes by the megakernel, which feeds tokens back itself. */
static qp_status run_mega(const decoding *d, size_t n, int32_t *tokens, qp_error *error)
{
    qp_engine *e = d->engine;
    batch_clear(&e->batch);
    for (size_t i = 0; i < d->n_sessions; i++) {
        qp_session *s = d->sessions[i];
        s->rope_length = (int64_t)(s->count + n);
        batch_add_ahead(&e->batch, tokens[i], (int64_t)s->count, s->rope_length, &s->pages);
        batch_want(&e->batch, (int64_t)i);
    }
    int passes = (int)n;
    return cuda_mega_run(&e->mega, &e->batch, NULL, &passes, tokens + d->n_sessions, error);
}

/* The batch of the pass `ahead` passes from now; what its tokens are may not be known yet. */
static void fill_batch(const decoding *d, size_t ahead, const int32_t *tokens)
{
    qp_engine *e = d->engine;
    batch_clear(&e->batch);
    for (size_t i = 0; i < d->n_sessions; i++) {
        qp_session *s = d->sessions[i];
        int64_t past = (int64_t)(s->count + ahead);
        s->rope_length = past + 1;
        batch_add(&e->batch, &tokens[i], 1, past, &s->pages);
        if (e->plan.config.rope.scaling == ROPE_DYNAMIC)
            executor_set_rope_rows(&e->executor, (int64_t)i, past, 1, s->rope_length);
        batch_want(&e->batch, (int64_t)i);
    }
}

/* The likeliest token of each row of the executor's logits. */
static void find_likeliest(const qp_engine *e, int64_t n, int32_t *ids)
{
    const op_info *op = op_get(OP_ARGMAX);
    const op_variant *variant;
    op_call call = {.end = n};
    call.tensors[ARGMAX_LOGITS] =
        tensor_2d(executor_logits(&e->executor), DTYPE_F32, n, e->plan.config.vocab_size);
    call.tensors[ARGMAX_IDS] = tensor_1d(ids, DTYPE_I32, n);
    op_kernel *kernel = op_select(op, e->executor.cpu_features, &call, &variant);
    op_run(op, kernel, &call, e->pool, e->executor.scratch.data, e->executor.scratch_bytes);
}

/* `n` passes from row 0 of `tokens` on, whose next n rows they fill. */
static qp_status run_passes(const decoding *d, size_t n, int32_t *tokens, qp_error *error)
{
    qp_engine *e = d->engine;
    int64_t rows = (int64_t)d->n_sessions;
    if (!e->device.context) {
        fill_batch(d, 0, tokens);
        TRY(engine_run_batch(e, true, error));
        find_likeliest(e, rows, tokens + rows);
        return QP_OK;
    }
    for (size_t pass = 0; pass < n; pass++) {
        fill_batch(d, pass, tokens);
        TRY(cuda_executor_decode(&e->cuda, &e->batch, e->logits_end, (int)pass, error));
    }
    return cuda_executor_read_tokens(&e->cuda, rows, (int)n, tokens + rows, error);
}

/* Run, and put down what the sessions then hold. */
static qp_status decode_some(const decoding *d, size_t n, int32_t *tokens, qp_error *error)
{
    bool mega = cuda_mega_takes_rows(&d->engine->mega, (int64_t)d->n_sessions);
    TRY(take_pages(d, n, error));
    TRY((mega ? run_mega : run_passes)(d, n, tokens, error));
    for (size_t i = 0; i < d->n_sessions; i++) {
        qp_session *s = d->sessions[i];
        for (size_t pass = 0; pass < n; pass++)
            s->tokens[s->count++] = tokens[pass * d->n_sessions + i];
    }
    return QP_OK;
}

/* How many passes go ahead of what they make. */
static size_t passes_ahead(const qp_engine *e)
{
    return e->device.context && e->plan.config.rope.scaling != ROPE_DYNAMIC ? CUDA_MAX_AHEAD : 1;
}

qp_status qp_decode(qp_engine *e, qp_session *const *sessions, size_t n_sessions, size_t count,
                    int32_t *tokens, const volatile int *cancel, qp_error *error)
{
    const decoding d = {e, sessions, n_sessions, count};
    const size_t most = passes_ahead(e);
    TRY(check(&d, tokens, error));
    for (size_t done = 0; done < count && n_sessions > 0;) {
        if (cancel && *cancel) return error_set(error, QP_CANCELLED, "cancelled");
        size_t n = count - done < most ? count - done : most;
        TRY(decode_some(&d, n, tokens + done * n_sessions, error));
        done += n;
    }
    return QP_OK;
}
