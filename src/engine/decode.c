/* Decoding of many sessions, a token of each a pass: see decode.h, and qp_decode() in quipu.h.
 *
 * The GPU chooses tokens itself and reads them in the next pass, so that logits stay where they are
 * and the host is some passes ahead: it knows all of them but their tokens.
 */
#include "engine/decode.h"

#include "op/argmax/argmax.h"
#include "op/run.h"

#include <string.h>

enum { MEGA_PASSES = 16 }; /* of a launch */

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

/* Several passes by the megakernel, which feeds tokens back itself. */
static qp_status run_mega(const decoding *d, size_t n, int32_t *tokens, qp_error *error)
{
    qp_engine *e = d->engine;
    batch_clear(&e->batch);
    for (size_t i = 0; i < d->n_sessions; i++) {
        qp_session *s = d->sessions[i];
        s->rope_length = (int64_t)(s->count + n);
        batch_add_ahead(&e->batch, tokens[i], (int64_t)s->count, s->rope_length, s->pages.pages);
        batch_want(&e->batch, (int64_t)i);
    }
    int passes = (int)n;
    return cuda_mega_run(&e->mega, &e->batch, NULL, &passes, tokens + d->n_sessions, error);
}

/* The batch of the pass `ahead` passes from now, as the sessions stand; what its tokens are may not
 * be known yet. */
static void fill_batch(const decoding *d, size_t ahead, const int32_t *tokens)
{
    qp_engine *e = d->engine;
    batch_clear(&e->batch);
    for (size_t i = 0; i < d->n_sessions; i++) {
        qp_session *s = d->sessions[i];
        int64_t past = (int64_t)(s->count + ahead);
        s->rope_length = past + 1;
        batch_add(&e->batch, &tokens[i], 1, past, s->pages.pages);
        if (e->plan.config.rope.scaling == ROPE_DYNAMIC)
            executor_set_rope_rows(&e->executor, (int64_t)i, past, 1, s->rope_length);
        batch_want(&e->batch, (int64_t)i);
        if (d->samplers)
            sampler_set_row(d->samplers[i], &e->batch, (int64_t)i, (size_t)s->rope_length);
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

/* A thread's share of the rows, as biases and penalties have them. */
static void change_rows(void *context, int worker, int n_workers)
{
    const decoding *d = context;
    const qp_engine *e = d->engine;
    int64_t begin, end;
    thread_share((int64_t)d->n_sessions, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        sampler_change(d->samplers[i],
                       executor_logits(&e->executor) + i * e->plan.config.vocab_size);
}

/* The tokens that samplers pick from the executor's logits, all at once. */
static void choose(const decoding *d, int32_t *ids)
{
    qp_engine *e = d->engine;
    uint64_t begin = trace_begin_sampling(e->trace);
    thread_pool_run(e->pool, change_rows, (void *)d);
    executor_run(&e->executor, &e->batch, e->sample_step, e->sample_step + 1);
    memcpy(ids, e->executor.memory.data[PLAN_NEXT], d->n_sessions * sizeof *ids);
    for (size_t i = 0; i < d->n_sessions; i++)
        sampler_count(d->samplers[i], ids[i]);
    trace_end_sampling(e->trace, begin);
}

/* A pass whose tokens the CPU chooses. */
static qp_status run_pass(const decoding *d, size_t n, int32_t *tokens, qp_error *error)
{
    qp_engine *e = d->engine;
    int32_t *next = tokens + d->n_sessions;
    (void)n;
    fill_batch(d, 0, tokens);
    TRY(engine_run_batch(e, true, error));
    if (d->samplers)
        choose(d, next);
    else
        find_likeliest(e, (int64_t)d->n_sessions, next);
    return QP_OK;
}

/* A pass of the megakernel, behind which the GPU's kernel of the step "sample" chooses. */
static qp_status run_drawn(const decoding *d, size_t n, int32_t *tokens, qp_error *error)
{
    qp_engine *e = d->engine;
    (void)n;
    fill_batch(d, 0, tokens);
    TRY(engine_run_batch(e, false, error));
    TRY(cuda_executor_run(&e->cuda, &e->batch, e->sample_step, e->sample_step + 1, error));
    return cuda_executor_read(&e->cuda, PLAN_NEXT, 0, tokens + d->n_sessions,
                              d->n_sessions * sizeof *tokens, error);
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

/* All passes by `run`, `most` of them at a time. */
typedef qp_status run_some(const decoding *d, size_t n, int32_t *tokens, qp_error *error);
static qp_status run_in_turn(const decoding *d, run_some *run, size_t most, int32_t *tokens,
                             const volatile int *cancel, qp_error *error)
{
    for (size_t done = 0; done < d->count;) {
        if (cancel && *cancel) return error_set(error, QP_CANCELLED, "cancelled");
        size_t n = d->count - done < most ? d->count - done : most;
        int32_t *at = tokens + done * d->n_sessions;
        TRY(take_pages(d, 0, n, error));
        TRY(run(d, n, at, error));
        put_down(d, n, at);
        done += n;
    }
    return QP_OK;
}

/* ---- operator by operator on the GPU ------------------------------------------------------- */

/* Passes in groups: those until `queued` are in the stream, those until `done` in the sessions. */
typedef struct groups {
    size_t most; /* passes of one */
    size_t queued, done;
    int n_queued, n_done; /* groups */
    int32_t *tokens;
} groups;

/* The first group is one pass, so that the GPU begins while the others are prepared. */
static size_t group_of(const decoding *d, const groups *g, size_t first)
{
    if (first == 0) return 1;
    return d->count - first < g->most ? d->count - first : g->most;
}

static qp_status queue_group(const decoding *d, groups *g, qp_error *error)
{
    qp_engine *e = d->engine;
    const size_t n = group_of(d, g, g->queued), ahead = g->queued - g->done;
    const int group = g->n_queued % CUDA_GROUPS;
    TRY(take_pages(d, ahead, n, error));
    for (size_t pass = 0; pass < n; pass++) {
        fill_batch(d, ahead + pass, g->tokens + g->done * d->n_sessions);
        TRY(cuda_executor_stage(&e->cuda, &e->batch, group, (int)pass, error));
    }
    TRY(cuda_executor_decode(&e->cuda, &e->batch, e->logits_end, d->samplers ? e->sample_step : 0,
                             group, (int)n, ahead > 0, error));
    g->queued += n;
    g->n_queued++;
    return QP_OK;
}

static qp_status end_group(const decoding *d, groups *g, qp_error *error)
{
    const size_t n = group_of(d, g, g->done), rows = d->n_sessions;
    int32_t *at = g->tokens + g->done * rows;
    TRY(cuda_executor_read_tokens(&d->engine->cuda, g->n_done % CUDA_GROUPS, (int64_t)rows, (int)n,
                                  at + rows, error));
    put_down(d, n, at);
    g->done += n;
    g->n_done++;
    return QP_OK;
}

/* All passes, a group on its way while the one behind it is prepared. What is in the stream when
 * something ends it all is put down. */
static qp_status run_groups(const decoding *d, int32_t *tokens, const volatile int *cancel,
                            qp_error *error)
{
    const int most = cuda_executor_group(&d->engine->cuda, (int64_t)d->n_sessions);
    groups g = {.most = (size_t)most, .tokens = tokens};
    qp_status status = QP_OK;
    while (status == QP_OK && g.done < d->count) {
        if (cancel && *cancel)
            status = error_set(error, QP_CANCELLED, "cancelled");
        else if (g.queued < d->count && g.n_queued - g.n_done < (most > 1 ? CUDA_GROUPS : 1))
            status = queue_group(d, &g, error);
        else
            status = end_group(d, &g, error);
    }
    while (g.done < g.queued)
        if (end_group(d, &g, NULL) != QP_OK) break;
    return status;
}

static bool changes_logits(const decoding *d)
{
    for (size_t i = 0; d->samplers && i < d->n_sessions; i++)
        if (sampler_changes(d->samplers[i])) return true;
    return false;
}

static bool is_of_mega(const decoding *d)
{
    return cuda_mega_takes_rows(&d->engine->mega, (int64_t)d->n_sessions);
}

int64_t decode_passes(const decoding *d)
{
    const qp_engine *e = d->engine;
    if (!e->device.context || changes_logits(d)) return 1;
    if (is_of_mega(d)) return d->samplers ? 1 : MEGA_PASSES;
    return 1 + CUDA_GROUPS * cuda_executor_group(&e->cuda, (int64_t)d->n_sessions);
}

qp_status decode(const decoding *d, int32_t *tokens, const volatile int *cancel, qp_error *error)
{
    qp_engine *e = d->engine;
    TRY(check(d, tokens, error));
    if (d->n_sessions == 0) return QP_OK;
    if (!e->device.context || changes_logits(d))
        return run_in_turn(d, run_pass, 1, tokens, cancel, error);
    if (!is_of_mega(d)) return run_groups(d, tokens, cancel, error);
    if (d->samplers) return run_in_turn(d, run_drawn, 1, tokens, cancel, error);
    bool stays = e->plan.config.rope.scaling != ROPE_DYNAMIC; /* the RoPE table */
    return run_in_turn(d, run_mega, stays ? MEGA_PASSES : 1, tokens, cancel, error);
}

qp_status qp_decode(qp_engine *e, qp_session *const *sessions, size_t n_sessions, size_t count,
                    int32_t *tokens, const volatile int *cancel, qp_error *error)
{
    const decoding d = {
        .engine = e, .sessions = sessions, .n_sessions = n_sessions, .count = count};
    return decode(&d, tokens, cancel, error);
}
