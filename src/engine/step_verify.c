/* Rows that verify proposals: see speculate.h.
 *
 *     rows     0: last token    1: proposal 0    2: proposal 1    ...
 *     chosen   token 0          token 1          token 2
 *
 * Row j + 1 counts only if token j is proposal j, because then the row has read the text as it is.
 * The positions of other proposals are not the session's: later passes write over them.
 */
#include "engine/step_parts.h"

#include "op/adjust_logits/adjust_logits.h"
#include "op/adjust_logits/adjust_proposed.h"

/* The row's settings, for the token that follows `read` tokens after the session's. */
static void set_row(qp_engine *e, const qp_sequence *s, int64_t output, size_t read)
{
    batch *b = &e->batch;
    sampler_set_row(s->sampler, b, output, s->session->slot, s->session->count + read);
    int32_t *uses = &batch_i32(b, PLAN_USES)[output];
    if (read > 1 && *uses & ADJUST_PENALISE) *uses |= ADJUST_PROPOSED;
}

void step_add_proposals(qp_engine *e, qp_sequence *s)
{
    step_state *st = &e->step;
    batch *b = &e->batch;
    const speculated *p = speculation_of(e, s);
    const int64_t first = batch_tokens(b), output = batch_outputs(b), count = 1 + p->n;
    int32_t tokens[1 + SPECULATE_MOST] = {s->tokens[0]};
    for (int i = 0; i < p->n; i++)
        tokens[1 + i] = p->tokens[i];
    batch_add(b, tokens, count, (int64_t)s->session->count, s->session->pages.pages);
    session_adapt_rows(s->session, first, count);
    for (int64_t i = 0; i < count; i++) {
        batch_want(b, first + i);
        set_row(e, s, output + i, (size_t)i + 1);
        st->rows[st->n_rows++] = (step_row){0};
    }
    st->rows[output] = (step_row){.of = s,
                                  .wanted = true,
                                  .session = s->session->id,
                                  .sampler = s->sampler->id,
                                  .slot = s->session->slot,
                                  .proposed = p->n};
    st->parts[st->n_parts++] = (step_part){.of = s,
                                           .count = 1,
                                           .ends = true,
                                           .first_output = output,
                                           .n_outputs = 1,
                                           .verifies = true};
    s->proposed = (size_t)p->n;
}

/* Hands out what was chosen after accepted proposals: `tokens` and `logits` of the sequence's rows.
 */
static qp_status accept(qp_engine *e, step_row *row, const int32_t *tokens, const float *logits,
                        qp_error *error)
{
    qp_sequence *s = row->of;
    const size_t vocab_size = (size_t)e->program.config.vocab_size;
    const speculated *p = speculation_of(e, s);
    for (int i = 0; i < row->proposed && row->wanted; i++) {
        if (tokens[i] != p->tokens[i] || step_is_cancelled(s)) break;
        const float *own = logits ? logits + (size_t)(i + 1) * vocab_size : NULL;
        s->accepted++;
        s->session->tokens[s->session->count++] = tokens[i];
        row->going = false; /* the session has the row's last token */
        if (own) TRY(step_check_logits(e, own, s->session->count - 1, "session", error));
        if (own && s->on_logits) TRY(s->on_logits(s->context, (size_t)i + 1, own));
        step_hand_out_token(&e->step, row, tokens[i + 1]);
    }
    session_give_pages_back(s->session, 0);
    return QP_OK;
}

qp_status step_accept(qp_engine *e, const int32_t *tokens, const float *logits, qp_error *error)
{
    step_state *st = &e->step;
    const size_t vocab_size = (size_t)e->program.config.vocab_size;
    for (size_t i = 0; i < st->n_rows; i++) {
        step_row *row = &st->rows[i];
        if (!row->of || row->proposed == 0) continue;
        TRY(accept(e, row, tokens + i, logits ? logits + i * vocab_size : NULL, error));
    }
    return QP_OK;
}
