/* What qp_step() refuses: see quipu.h. */
#include "engine/step_parts.h"

#include <math.h>

static qp_status check_session(qp_engine *e, const qp_sequence *s, size_t i, qp_error *error)
{
    if (s->session->engine != e)
        return error_set(error, QP_INVALID, "the session of sequence %zu is another engine's", i);
    if (s->sampler && s->sampler->engine != e)
        return error_set(error, QP_INVALID, "the sampler of sequence %zu is another engine's", i);
    if (s->session->evaluation == e->evaluation)
        return error_set(error, QP_INVALID,
                         "sequence %zu names a session that is given twice; give it all its tokens "
                         "at once",
                         i);
    s->session->evaluation = e->evaluation;
    return QP_OK;
}

static qp_status check_tokens(const qp_engine *e, const qp_sequence *s, qp_error *error)
{
    const int64_t vocab_size = e->program.config.vocab_size;
    const size_t context = (size_t)e->program.options.context, held = s->session->count;
    if (s->count > context || held > context - s->count)
        return error_set(error, QP_INVALID,
                         "the context is full: the session holds %zu tokens, %zu more were given, "
                         "and it has room for %zu in all (%s)",
                         held, s->count, context, engine_about_context(e));
    for (size_t i = 0; i < s->count; i++) {
        if (s->tokens[i] >= 0 && s->tokens[i] < vocab_size) continue;
        return error_set(error, QP_INVALID,
                         "token %zu is %d, but the model's vocabulary has the ids 0 to %lld", i,
                         s->tokens[i], (long long)vocab_size - 1);
    }
    return QP_OK;
}

static qp_status check_like(const qp_sequence *all, size_t n, size_t i, qp_error *error)
{
    const qp_sequence *s = &all[i], *like = s->like;
    if (like < all || like >= all + n || like == s || like->like)
        return error_set(error, QP_INVALID,
                         "sequence %zu is to be like another of the call that reads its own tokens",
                         i);
    if (s->session->count == 0) return QP_OK;
    return error_set(error, QP_INVALID,
                     "sequence %zu is to be like another, but its session is not empty", i);
}

qp_status step_check(qp_engine *e, qp_sequence *all, size_t n, qp_error *error)
{
    int64_t choosing = 0;
    e->evaluation++;
    e->step.likes = false;
    for (size_t i = 0; i < n; i++) {
        qp_sequence *s = &all[i];
        s->read = s->chosen = s->passes = 0;
        s->proposed = s->accepted = 0;
        choosing += s->sampler != NULL;
        e->step.likes |= s->like != NULL;
        TRY(check_session(e, s, i, error));
        TRY(s->like ? check_like(all, n, i, error) : check_tokens(e, s, error));
        if (s->on_hidden && e->program.tensors[PLAN_X_OUT].kind == PLAN_ABSENT)
            return error_set(error, QP_UNSUPPORTED,
                             "sequence %zu asks for hidden states, which fused operators do not "
                             "keep: open the engine without `fuse`",
                             i);
    }
    e->step.chooses = choosing > 0;
    if (choosing <= e->program.options.max_outputs) return QP_OK;
    return error_set(error, QP_INVALID,
                     "the engine was opened for %lld rows of logits at once, but tokens of %lld "
                     "sequences are to be chosen",
                     (long long)e->program.options.max_outputs, (long long)choosing);
}

/* Damaged weights give NaN or plus infinity, from which any token could be chosen. Minus infinity
 * is valid: the model excludes a token by it. */
qp_status step_check_logits(const qp_engine *e, const float *logits, size_t token, const char *of,
                            qp_error *error)
{
    int64_t n = e->program.config.vocab_size, bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += !(logits[i] < INFINITY);
    if (bad == 0 || e->partial) return QP_OK;
    return error_set(
        error, QP_FORMAT,
        "the logits are not finite: %lld of %lld after token %zu of the %s are NaN "
        "or infinite; the weights hold values that are not numbers, or too large ones: "
        "fetch or convert the model again",
        (long long)bad, (long long)n, token, of);
}
