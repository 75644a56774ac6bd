/* A draft model: see draft.h. */
#include "engine/draft.h"

#include "base/clock.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

/* Tokens that the draft may lack after a pass that verified its proposals: the last of them, what
 * was chosen after it, and all that other sequences' passes made meanwhile. */
enum { FEW_TOKENS = SPECULATE_MOST + 1 };

/* The draft's side of a session of the target. */
typedef struct draft_session {
    qp_session *session;
    qp_sampler *sampler; /* a copy of the request's */
    uint64_t copied;     /* the request's sampler */
    int32_t lacks[FEW_TOKENS];
    size_t n_lacks;
    speculated *slot; /* of this call: receives the proposals */
    int wanted;       /* proposals; 0: the call makes none for the session */
} draft_session;

typedef struct draft {
    proposer proposer;
    qp_engine *engine;
    draft_session *sessions; /* [n_sessions]: by the slot of the target's session */
    int64_t n_sessions;
    qp_sequence *calls; /* [n_sessions] */
} draft;

/* ---- opening ------------------------------------------------------------------------------- */

static void close_draft(proposer *self)
{
    draft *d = (draft *)self;
    for (int64_t i = 0; d->sessions && i < d->n_sessions; i++) {
        qp_session_close(d->sessions[i].session);
        qp_sampler_close(d->sessions[i].sampler);
    }
    free(d->sessions);
    free(d->calls);
    qp_engine_close(d->engine);
    free(d);
}

/* Whether ids mean the same to both. Models of one family may have different numbers of rows of
 * logits, with padding after the vocabulary. */
static qp_status check_vocabulary(const qp_engine *target, const qp_engine *drafting,
                                  const char *model, qp_error *error)
{
    const qp_vocabulary *a = target->vocabulary, *b = drafting->vocabulary;
    const int64_t rows = target->program.config.vocab_size;
    const int64_t own = drafting->program.config.vocab_size;
    const int32_t n = qp_vocabulary_size(a);
    if (!a != !b)
        return error_set(error, QP_INVALID,
                         "the draft model %s must have the vocabulary of %s, but only %s has one",
                         model, model_path(target->model), b ? "the draft model" : "the other");
    if (qp_vocabulary_size(b) != n || (!a && rows != own) || own < n)
        return error_set(error, QP_INVALID,
                         "the draft model %s must have the vocabulary of %s: it has %lld tokens, "
                         "not %lld",
                         model, model_path(target->model),
                         (long long)(b ? qp_vocabulary_size(b) : own), (long long)(a ? n : rows));
    const int32_t id = a ? tokenizer_difference(a->tokenizer, b->tokenizer) : -1;
    if (id < 0) return QP_OK;
    return error_set(error, QP_INVALID,
                     "the draft model %s must have the vocabulary of %s: token %d is another text",
                     model, model_path(target->model), id);
}

static qp_status open_engine(qp_engine *target, const qp_engine_options *given, qp_engine **out,
                             qp_error *error)
{
    const plan_options *o = &target->program.options;
    const qp_engine_options options = {.size = sizeof options,
                                       .model = given->draft,
                                       .threads = given->threads,
                                       .context = o->context,
                                       .max_sessions = o->max_sequences,
                                       .page_size = o->page_size,
                                       .pages = given->pages,
                                       .kv_type = given->kv_type,
                                       .device = target->device.context ? "cuda" : "cpu",
                                       .cpu_mask = given->cpu_mask,
                                       .progress = given->progress,
                                       .progress_context = given->progress_context};
    qp_error why;
    qp_status status = qp_engine_open(&options, out, &why);
    if (status == QP_OK) return check_vocabulary(target, *out, given->draft, error);
    return error_set(error, status, "the draft model: %.*s", QP_ERROR_SIZE - 32, why.message);
}

/* ---- the text ------------------------------------------------------------------------------ */

/* Token `at` of the sequence's text. */
static int32_t token_at(const qp_sequence *s, size_t at)
{
    return at < s->session->count ? s->session->tokens[at] : s->tokens[0];
}

/* Makes the draft's session a beginning of the text, as long as it can be without the last token.
 */
static void shorten(draft_session *d, const qp_sequence *s)
{
    const size_t held = d->session->count;
    size_t common = 0;
    while (common < held && common < s->session->count &&
           d->session->tokens[common] == s->session->tokens[common])
        common++;
    if (common < held) session_truncate(d->session, common);
}

/* Reads the text but for its last few tokens. */
static qp_status read_text(draft *d, draft_session *session, const qp_sequence *s, qp_error *error)
{
    while (s->session->count - session->session->count >= FEW_TOKENS) {
        const size_t held = session->session->count;
        qp_sequence call = {.size = sizeof call,
                            .session = session->session,
                            .tokens = s->session->tokens + held,
                            .count = s->session->count - held,
                            .cancel = s->cancel};
        TRY(qp_step(d->engine, &call, 1, error));
        if (call.read == 0 || engine_is_closing(s->session->engine))
            return error_set(error, QP_CANCELLED, "cancelled");
    }
    return QP_OK;
}

static qp_status copy_sampler(draft *d, draft_session *session, const qp_sampler *from,
                              qp_error *error)
{
    if (session->copied == from->id) return QP_OK;
    qp_sampler_close(session->sampler);
    session->sampler = NULL;
    qp_sampling settings = {
        .size = sizeof settings, .logit_bias = from->biases, .n_logit_bias = from->n_biases};
    memcpy(settings.value, from->value, sizeof from->value);
    TRY(qp_sampler_open(d->engine, &settings, &session->sampler, error));
    session->sampler->begun = true;
    session->copied = from->id;
    return QP_OK;
}

/* Brings the draft's side of a sequence to where it can propose. */
static qp_status follow(draft *d, draft_session *session, const qp_sequence *s, qp_error *error)
{
    if (!session->session) TRY(qp_session_open(d->engine, &session->session, error));
    TRY(copy_sampler(d, session, s->sampler, error));
    session->sampler->answer = s->sampler->answer;
    shorten(session, s);
    TRY(read_text(d, session, s, error));
    session->n_lacks = 0;
    for (size_t at = session->session->count; at <= s->session->count; at++)
        session->lacks[session->n_lacks++] = token_at(s, at);
    return QP_OK;
}

/* ---- proposals ----------------------------------------------------------------------------- */

static qp_status take(void *context, int32_t token)
{
    draft_session *session = context;
    speculated *p = session->slot;
    p->tokens[p->n_found++] = token;
    return p->n_found < session->wanted ? QP_OK : QP_CANCELLED;
}

static qp_sequence call_of(draft_session *session)
{
    speculated *p = session->slot;
    const bool begun = p->n_found > 0;
    return (qp_sequence){.size = sizeof(qp_sequence),
                         .session = session->session,
                         .tokens = begun ? &p->tokens[p->n_found - 1] : session->lacks,
                         .count = begun ? 1 : session->n_lacks,
                         .sampler = session->sampler,
                         .max_tokens = (size_t)(session->wanted - p->n_found),
                         .on_token = take,
                         .context = session};
}

/* A pass for all sessions that want more; *more: there was one. */
static qp_status propose_next(draft *d, bool *more, qp_error *error)
{
    size_t n = 0;
    for (int64_t i = 0; i < d->n_sessions; i++) {
        draft_session *session = &d->sessions[i];
        if (session->wanted && session->slot->n_found < session->wanted)
            d->calls[n++] = call_of(session);
    }
    *more = n > 0;
    return n ? qp_step(d->engine, d->calls, n, error) : QP_OK;
}

/* Plans the proposals of a call, and reads the texts up to their last few tokens. *depth: the most
 * proposals of a sequence. */
static qp_status prepare(draft *d, const speculated_sequence *all, size_t n, int most, int *depth,
                         qp_error *error)
{
    for (int64_t i = 0; i < d->n_sessions; i++)
        d->sessions[i].wanted = 0;
    for (size_t i = 0; i < n; i++) {
        draft_session *session = &d->sessions[all[i].of->session->slot];
        session->slot = all[i].slot;
        session->slot->n_found = 0;
        session->wanted = all[i].slot->n < most ? all[i].slot->n : most;
        if (session->wanted > *depth) *depth = session->wanted;
    }
    for (size_t i = 0; i < n; i++) {
        draft_session *session = &d->sessions[all[i].of->session->slot];
        if (session->wanted > 0) TRY(follow(d, session, all[i].of, error));
    }
    return QP_OK;
}

/* Sessions that the call has no proposals for give their pages back; their texts are read again. */
static void forget_others(draft *d)
{
    for (int64_t i = 0; i < d->n_sessions; i++)
        if (d->sessions[i].session && d->sessions[i].wanted == 0)
            session_truncate(d->sessions[i].session, 0);
}

static qp_status propose(proposer *self, const speculated_sequence *all, size_t n, int most,
                         qp_error *error)
{
    draft *d = (draft *)self;
    int depth = 0;
    qp_status status = prepare(d, all, n, most, &depth, error);
    const uint64_t begin = clock_ns();
    for (bool more = true; status == QP_OK && more;)
        status = propose_next(d, &more, error);
    if (status == QP_NO_MEMORY) forget_others(d);
    self->made_ns = (double)(clock_ns() - begin);
    if (status != QP_OK || depth == 0) return status;
    self->step_ns += (self->made_ns / depth - self->step_ns) / (self->step_ns > 0 ? 8 : 1);
    return QP_OK;
}

qp_status draft_open(qp_engine *target, const qp_engine_options *options, proposer **out,
                     qp_error *error)
{
    draft *d = calloc(1, sizeof *d);
    *out = (proposer *)d;
    if (!d) return error_no_memory(error, "the draft model", sizeof *d);
    d->proposer = (proposer){.propose = propose, .close = close_draft, .passes = true};
    d->n_sessions = target->max_sessions;
    d->sessions = calloc((size_t)d->n_sessions, sizeof *d->sessions);
    d->calls = calloc((size_t)d->n_sessions, sizeof *d->calls);
    if (!d->sessions || !d->calls)
        return error_no_memory(error, "the draft model", (size_t)d->n_sessions * sizeof *d->calls);
    return open_engine(target, options, &d->engine, error);
}
