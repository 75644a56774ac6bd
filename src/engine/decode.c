/* Decoding of many sessions, a token of each a pass: see decode.h, and qp_decode() in quipu.h.
 *
 * Where a machine feeds tokens back itself, logits stay where they are and the host is some passes
 * ahead: it knows all of them but their tokens.
 */
#include "engine/decode.h"

#include <string.h>

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
                         "for, and it has room for %zu in all (%s)",
                         i, s->count, d->count, context, engine_about_context(e));
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

/* Pages for `n` more tokens of every session after `ahead` that have them, or for none. */
static qp_status take_pages(const decoding *d, size_t ahead, size_t n, qp_error *error)
{
    for (size_t i = 0; i < d->n_sessions; i++) {
        qp_status status = session_take_pages(d->sessions[i], ahead, n, error);
        if (status == QP_OK) continue;
        for (size_t j = 0; j < i; j++)
            session_give_pages_back(d->sessions[j], ahead);
        return status;
    }
    return QP_OK;
}

/* The engine's batch for passes from the one `ahead` passes from now on, as the sessions stand;
 * what its tokens are may not be known yet. */
static void fill_batch(const decoding *d, size_t ahead, size_t n, const int32_t *tokens)
{
    qp_engine *e = d->engine;
    batch_clear(&e->batch);
    for (size_t i = 0; i < d->n_sessions; i++) {
        qp_session *s = d->sessions[i];
        int64_t past = (int64_t)(s->count + ahead);
        s->rope_length = past + (int64_t)n;
        batch_add_ahead(&e->batch, tokens[i], past, s->rope_length, s->pages.pages);
        batch_set_angles(&e->batch, (int64_t)i, past, 1, past + 1);
        batch_want(&e->batch, (int64_t)i);
        if (d->samplers) sampler_set_row(d->samplers[i], &e->batch, (int64_t)i, (size_t)past + 1);
    }
}

/* `n` passes have been run from row 0 of `tokens` on: the sessions hold what they read. */
static void put_down(const decoding *d, size_t n, const int32_t *tokens)
{
    for (size_t i = 0; i < d->n_sessions; i++) {
        qp_session *s = d->sessions[i];
        for (size_t pass = 0; pass < n; pass++)
            s->tokens[s->count++] = tokens[pass * d->n_sessions + i];
    }
}

/* ---- biases and penalties: the CPU chooses ------------------------------------------------- */

/* Rows of logits that threads change. */
typedef struct changing {
    const decoding *of;
    float *logits; /* (n_sessions, vocab_size) */
} changing;

/* A thread's share of the rows, as biases and penalties have them. */
static void change_rows(void *context, int worker, int n_workers)
{
    const changing *c = context;
    const int64_t vocab_size = c->of->engine->plan.config.vocab_size;
    int64_t begin, end;
    thread_share((int64_t)c->of->n_sessions, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        sampler_change(c->of->samplers[i], c->logits + i * vocab_size);
}

/* A pass whose tokens the CPU chooses. */
static qp_status run_pass(const decoding *d, int32_t *tokens, qp_error *error)
{
    qp_engine *e = d->engine;
    int32_t *next = tokens + d->n_sessions;
    changing c = {.of = d};
    TRY(take_pages(d, 0, 1, error));
    fill_batch(d, 0, 1, tokens);
    TRY(engine_run_batch(e, &c.logits, error));
    uint64_t begin = trace_begin_sampling(e->trace);
    thread_pool_run(e->pool, change_rows, &c);
    chooser_choose(&e->chooser, c.logits, &e->batch, next);
    for (size_t i = 0; i < d->n_sessions; i++)
        sampler_count(d->samplers[i], next[i]);
    trace_end_sampling(e->trace, begin);
    put_down(d, 1, tokens);
    return QP_OK;
}

static qp_status run_passes(const decoding *d, int32_t *tokens, const volatile int *cancel,
                            qp_error *error)
{
    for (size_t pass = 0; pass < d->count; pass++) {
        if (cancel && *cancel) return error_set(error, QP_CANCELLED, "cancelled");
        TRY(run_pass(d, tokens + pass * d->n_sessions, error));
    }
    return QP_OK;
}

/* ---- the machine chooses ------------------------------------------------------------------- */

/* Runs: passes until `queued` are under way, those until `done` in the sessions. */
typedef struct run_queue {
    machine_pace pace;
    size_t queued, done;
    int n_queued, n_done; /* runs */
    engine_run runs[MACHINE_MAX_RUNS];
    int32_t *tokens;
} run_queue;

static machine_choice choice_of(const decoding *d)
{
    return d->samplers ? MACHINE_SAMPLED : MACHINE_LIKELIEST;
}

/* Where several runs may be under way the first is one pass, so that a GPU begins while the others
 * are prepared. */
static size_t passes_from(const decoding *d, const run_queue *q, size_t first)
{
    const size_t most = first == 0 && q->pace.runs > 1 ? 1 : (size_t)q->pace.passes;
    return d->count - first < most ? d->count - first : most;
}

static qp_status queue_run(const decoding *d, run_queue *q, qp_error *error)
{
    qp_engine *e = d->engine;
    const size_t n = passes_from(d, q, q->queued), ahead = q->queued - q->done;
    engine_run *run = &q->runs[q->n_queued % MACHINE_MAX_RUNS];
    TRY(take_pages(d, ahead, n, error));
    fill_batch(d, ahead, n, q->tokens + q->done * d->n_sessions);
    run->request = (machine_request){.batch = &e->batch,
                                     .passes = (int)n,
                                     .continues = ahead > 0,
                                     .choice = choice_of(d),
                                     .tokens = q->tokens + (q->queued + 1) * d->n_sessions};
    TRY(engine_begin_run(e, run, error));
    q->queued += n;
    q->n_queued++;
    return QP_OK;
}

static qp_status end_run(const decoding *d, run_queue *q, qp_error *error)
{
    const size_t n = passes_from(d, q, q->done);
    TRY(engine_end_run(d->engine, &q->runs[q->n_done % MACHINE_MAX_RUNS], NULL, error));
    put_down(d, n, q->tokens + q->done * d->n_sessions);
    q->done += n;
    q->n_done++;
    return QP_OK;
}

/* All passes, a run under way while the next one is prepared. What is under way when something ends
 * it all is put down. */
static qp_status run_queued(const decoding *d, int32_t *tokens, const volatile int *cancel,
                            qp_error *error)
{
    run_queue q = {.pace = engine_pace(d->engine, (int64_t)d->n_sessions, choice_of(d)),
                   .tokens = tokens};
    qp_status status = QP_OK;
    while (status == QP_OK && q.done < d->count) {
        if (cancel && *cancel)
            status = error_set(error, QP_CANCELLED, "cancelled");
        else if (q.queued < d->count && q.n_queued - q.n_done < q.pace.runs)
            status = queue_run(d, &q, error);
        else
            status = end_run(d, &q, error);
    }
    while (q.done < q.queued)
        if (end_run(d, &q, NULL) != QP_OK) break;
    return status;
}

static bool changes_logits(const decoding *d)
{
    for (size_t i = 0; d->samplers && i < d->n_sessions; i++)
        if (sampler_changes(d->samplers[i])) return true;
    return false;
}

int64_t decode_passes(const decoding *d)
{
    if (changes_logits(d)) return 1;
    machine_pace pace = engine_pace(d->engine, (int64_t)d->n_sessions, choice_of(d));
    return pace.runs > 1 ? 1 + pace.runs * pace.passes : pace.passes;
}

qp_status decode(const decoding *d, int32_t *tokens, const volatile int *cancel, qp_error *error)
{
    TRY(check(d, tokens, error));
    if (d->n_sessions == 0) return QP_OK;
    if (changes_logits(d)) return run_passes(d, tokens, cancel, error);
    return run_queued(d, tokens, cancel, error);
}

qp_status qp_decode(qp_engine *e, qp_session *const *sessions, size_t n_sessions, size_t count,
                    int32_t *tokens, const volatile int *cancel, qp_error *error)
{
    const decoding d = {
        .engine = e, .sessions = sessions, .n_sessions = n_sessions, .count = count};
    return decode(&d, tokens, cancel, error);
}
