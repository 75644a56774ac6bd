/* Batches of new tokens for qp_step(): which parts of the sequences' tokens a batch has, and the
 * rows of logits that they need.
 */
#include "engine/step_parts.h"

#include <string.h>

/* Where there are too few pages, a sequence's proposals are not verified. */
static void take_pages_of_proposals(qp_engine *e, const qp_sequence *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        speculated *p = speculation_of(e, &all[i]);
        if (p && session_take_pages(all[i].session, 1, (size_t)p->n, NULL) != QP_OK) p->n = 0;
    }
}

qp_status step_take_pages(qp_engine *e, qp_sequence *all, size_t n, qp_error *error)
{
    for (size_t i = 0; i < n; i++) {
        qp_session *s = all[i].session;
        if (all[i].like || all[i].count == 0) continue;
        qp_status status = session_take_pages(s, 0, all[i].count, error);
        if (status == QP_OK) {
            s->rope_length = (int64_t)(s->count + all[i].count);
            continue;
        }
        for (size_t j = 0; j < i; j++)
            if (!all[j].like) session_give_pages_back(all[j].session, 0);
        return status;
    }
    take_pages_of_proposals(e, all, n);
    return QP_OK;
}

/* Requests a row of logits after token `row` of the batch. `s` (may be NULL) is the sequence that
 * chooses a token from it, for position `position`. */
static void add_row(qp_engine *e, int64_t row, qp_sequence *s, size_t position)
{
    step_state *st = &e->step;
    const int64_t output = batch_outputs(&e->batch);
    batch_want(&e->batch, row);
    st->rows[st->n_rows] = (step_row){0};
    if (s && s->sampler) {
        st->rows[st->n_rows] = (step_row){.of = s,
                                          .wanted = true,
                                          .session = s->session->id,
                                          .sampler = s->sampler->id,
                                          .slot = s->session->slot};
        sampler_set_row(s->sampler, &e->batch, output, s->session->slot, position);
        if (!s->sampler->begun) s->sampler->answer = position;
        s->sampler->begun = true;
    }
    st->n_rows++;
}

/* Whether what a sequence receives needs rows of logits. */
static bool receives_rows(const qp_engine *e, const qp_sequence *s)
{
    return s->on_logits || (s->on_hidden && !e->step.hidden_apart);
}

/* Adds the rows of a part whose hidden states are handed out. */
static void add_hidden(qp_engine *e, step_part *part, int64_t row)
{
    step_state *st = &e->step;
    const qp_sequence *s = part->of;
    part->first_hidden = st->hidden_apart ? st->n_hidden : part->first_output;
    if (!s->on_hidden) return;
    part->n_hidden =
        st->hidden_apart ? (int64_t)(s->every_row ? part->count : part->ends) : part->n_outputs;
    for (int64_t i = (int64_t)part->count - part->n_hidden;
         st->hidden_apart && i < (int64_t)part->count; i++)
        st->hidden_rows[st->n_hidden++] = (int32_t)(row + i);
}

/* How many rows of logits the end of a sequence's new tokens needs. */
static int64_t rows_at_end(const qp_engine *e, const qp_sequence *all, size_t n,
                           const qp_sequence *s)
{
    int64_t rows = s->sampler || receives_rows(e, s) ? 1 : 0;
    for (size_t i = 0; e->step.likes && i < n; i++)
        rows += all[i].like == s && all[i].sampler;
    return rows;
}

/* Adds as many of a sequence's tokens as the batch has room for, in tokens and in rows of logits.
 * The last token goes into the next batch if its rows do not fit. */
static size_t tokens_that_fit(const qp_engine *e, const qp_sequence *s, int64_t at_end)
{
    const size_t room = (size_t)batch_room(&e->batch);
    const int64_t rows = e->program.options.max_outputs - batch_outputs(&e->batch);
    const bool every_row = s->every_row && receives_rows(e, s);
    size_t count = s->count < room ? s->count : room;
    if (every_row && count > (size_t)rows) count = (size_t)rows;
    const int64_t before = every_row ? (int64_t)count - 1 : 0;
    if (count == s->count && count > 0 && before + at_end > rows) count--;
    return count;
}

static void add_part(qp_engine *e, qp_sequence *all, size_t n, qp_sequence *s)
{
    batch *b = &e->batch;
    const int64_t row = batch_tokens(b), first = batch_outputs(b);
    const size_t held = s->session->count;
    const size_t count = tokens_that_fit(e, s, rows_at_end(e, all, n, s));
    if (count == 0) return;
    const bool ends = count == s->count;
    batch_add(b, s->tokens, (int64_t)count, (int64_t)held, s->session->pages.pages);
    session_adapt_rows(s->session, row, (int64_t)count);
    batch_set_angles(b, row, (int64_t)held, (int64_t)count, s->session->rope_length);
    for (size_t i = 0; s->every_row && receives_rows(e, s) && i + ends < count; i++)
        add_row(e, row + (int64_t)i, NULL, 0);
    const int64_t last = row + (int64_t)count - 1;
    const bool has_row = batch_outputs(b) < e->program.options.max_outputs;
    const bool wants_row = s->sampler || receives_rows(e, s);
    if (ends && (wants_row || (has_row && !e->step.chooses && !s->on_hidden)))
        add_row(e, last, s, held + count);
    step_part *part = &e->step.parts[e->step.n_parts++];
    *part = (step_part){.of = s,
                        .count = count,
                        .ends = ends,
                        .first_output = first,
                        .n_outputs = batch_outputs(b) - first};
    add_hidden(e, part, row);
    for (size_t i = 0; ends && e->step.likes && i < n; i++)
        if (all[i].like == s && all[i].sampler) add_row(e, last, &all[i], held + count);
}

void step_fill_batch(qp_engine *e, qp_sequence *all, size_t n)
{
    const bool fixed = e->step.fixed.rows > 0, prompts = !fixed || step_reads_prompts(all, n);
    batch_clear(&e->batch);
    e->step.n_parts = e->step.n_rows = 0;
    e->step.n_hidden = 0;
    for (int single = 1; single >= 0; single--)
        for (size_t i = 0; i < n; i++) {
            qp_sequence *s = &all[i];
            if (s->like || s->count == 0 || (s->count == 1) != single || step_is_cancelled(s))
                continue;
            if (fixed && step_continues(s) == prompts) continue;
            if (speculation_of(e, s))
                step_add_proposals(e, s);
            else if (batch_room(&e->batch) > 0)
                add_part(e, all, n, s);
        }
    step_pad(e, prompts, 1);
}

void step_finish_parts(qp_engine *e, qp_sequence *all, size_t n)
{
    step_state *st = &e->step;
    for (size_t p = 0; p < st->n_parts; p++) {
        const step_part *part = &st->parts[p];
        qp_session *s = part->of->session;
        memcpy(s->tokens + s->count, part->of->tokens, part->count * sizeof *s->tokens);
        s->count += part->count;
        part->of->read = part->count;
        progress_advance(e->reading, part->count);
        part->of->passes++;
        for (size_t i = 0; part->ends && st->likes && i < n; i++) {
            if (all[i].like != part->of) continue;
            session_share(all[i].session, s);
            all[i].read = s->count;
        }
    }
    st->n_parts = 0;
}

qp_status step_hand_out_rows(const qp_engine *e, const step_part *part, const float *logits,
                             qp_error *error)
{
    const qp_sequence *s = part->of;
    const model_config *c = &e->program.config;
    const size_t first_hidden = part->count - (size_t)part->n_hidden;
    const size_t first = part->count - (size_t)part->n_outputs;
    const int64_t first_row =
        part->first_hidden + (e->step.hidden_apart ? batch_outputs(&e->batch) : 0);
    for (int64_t i = 0; i < part->n_hidden; i++)
        TRY(s->on_hidden(s->context, first_hidden + (size_t)i,
                         e->step.hidden + (first_row + i) * c->hidden_size));
    for (int64_t i = 0; logits && i < part->n_outputs; i++) {
        const float *row = logits + (part->first_output + i) * c->vocab_size;
        const size_t token = first + (size_t)i;
        /* Even without a receiver: an answer starts from these logits. */
        TRY(step_check_logits(e, row, token, "input", error));
        if (s->on_logits) TRY(s->on_logits(s->context, token, row));
    }
    return QP_OK;
}
