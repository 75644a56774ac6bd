/* Progress for any set of sequences: see qp_step() in quipu.h.
 *
 *     sequences -> batch of parts and rows -> runs on a machine -> tokens and logits
 *
 * A part is a range of new tokens of one sequence. A row is one row of logits of the batch. If
 * every sequence only continues from its last chosen token, a run has several passes
 * (step_going.c). The rows record which sequence each token in flight belongs to. Between calls
 * they keep ids of sessions and samplers, not pointers, because the caller may close those.
 */
#include "engine/step_parts.h"

#include <stdlib.h>

qp_status step_init(step_state *st, const program *p, qp_error *error)
{
    const size_t outputs = (size_t)p->options.max_outputs;
    const size_t sequences = (size_t)p->options.max_sequences;
    const size_t tokens = MACHINE_MAX_RUNS * STEP_MAX_PASSES * outputs;
    const size_t batch = (size_t)p->options.max_tokens;
    *st = (step_state){0};
    st->parts = calloc(sequences, sizeof *st->parts);
    st->rows = calloc(outputs, sizeof *st->rows);
    st->tokens = calloc(tokens, sizeof *st->tokens);
    st->slots = calloc(sequences, sizeof *st->slots);
    st->logit_rows = calloc(outputs, sizeof *st->logit_rows);
    st->hidden_rows = calloc(batch, sizeof *st->hidden_rows);
    st->scratch = calloc((size_t)p->config.vocab_size, 4);
    if (st->parts && st->rows && st->tokens && st->slots && st->logit_rows && st->hidden_rows &&
        st->scratch)
        return QP_OK;
    return error_no_memory(error, "decoding", tokens * sizeof *st->tokens);
}

void step_free(step_state *st)
{
    free(st->parts);
    free(st->rows);
    free(st->tokens);
    free(st->slots);
    free(st->logit_rows);
    free(st->fixed.zeros);
    free(st->fixed.pages);
    free(st->scratch);
    free(st->picks.candidates);
    free(st->picks.counts);
    free(st->picks.text);
    free(st->hidden);
    free(st->hidden_rows);
    *st = (step_state){0};
}

/* ---- runs ---------------------------------------------------------------------------------- */

void step_hand_out_token(step_state *st, step_row *row, int32_t token)
{
    qp_sequence *s = row->of;
    if (row->going) s->session->tokens[s->session->count++] = row->last;
    s->read = row->going && !s->read ? 1 : s->read;
    row->going = true;
    row->last = token;
    s->chosen++;
    const qp_status status = s->on_token ? s->on_token(s->context, token) : QP_OK;
    row->wanted = status == QP_OK;
    if (status != QP_OK && status != QP_CANCELLED && st->refused == QP_OK) st->refused = status;
    if (s->max_tokens && s->chosen >= s->max_tokens) row->wanted = false;
}

bool step_hand_out(void *engine, const int32_t *tokens)
{
    step_state *st = &((qp_engine *)engine)->step;
    bool wanted = false;
    for (size_t i = 0; i < st->n_rows; i++) {
        step_row *row = &st->rows[i];
        if (!row->of || !row->wanted) continue;
        if (step_is_cancelled(row->of))
            row->wanted = false;
        else
            step_hand_out_token(st, row, tokens[i]);
        wanted |= row->wanted;
    }
    return wanted;
}

qp_status step_pick(qp_engine *e, const float *logits, int32_t *tokens, qp_error *error)
{
    const step_state *st = &e->step;
    for (size_t i = 0; i < st->n_rows; i++) {
        const step_row *row = &st->rows[i];
        if (!step_picks(row) || !row->wanted || step_is_cancelled(row->of)) continue;
        const qp_session *s = row->of->session;
        TRY(sampler_pick(row->of->sampler, logits + i * (size_t)e->program.config.vocab_size,
                         s->tokens, s->count, row->going ? row->last : -1, &tokens[i], error));
    }
    return QP_OK;
}

/* Updates the rows' sampler slots from their sessions. For a run that starts while none is in
 * flight. */
static qp_status prepare_rows(qp_engine *e, const machine *m, qp_error *error)
{
    step_state *st = &e->step;
    for (size_t i = 0; i < st->n_rows; i++) {
        const step_row *row = &st->rows[i];
        const qp_sequence *s = row->of;
        if (!row->sampler || batch_i32(&e->batch, PLAN_USES)[i] == 0) continue;
        const qp_sequence *from = s->like ? s->like : s;
        const sampler_history history = {.held = from->session->tokens,
                                         .n_held = from->session->count,
                                         .more = row->going ? &row->last : from->tokens,
                                         .n_more = row->going ? 1 : from->count,
                                         .shared = row->proposed > 0};
        TRY(sampler_prepare(s->sampler, &st->slots[row->slot], &history, m, &e->batch, (int64_t)i,
                            st->scratch, error));
    }
    return QP_OK;
}

engine_run *step_next_run(qp_engine *e, int64_t passes)
{
    step_state *st = &e->step;
    const int number = st->n_begun % MACHINE_MAX_RUNS;
    engine_run *run = &st->runs[number];
    const size_t pitch = STEP_MAX_PASSES * (size_t)e->program.options.max_outputs;
    *run = (engine_run){.request = {.batch = &e->batch,
                                    .passes = (int)passes,
                                    .continues = st->passes_ahead > 0,
                                    .choice = st->choice,
                                    .tokens = st->tokens + (size_t)number * pitch,
                                    .context = e}};
    return run;
}

qp_status step_begin_run(qp_engine *e, engine_run *run, qp_error *error)
{
    step_state *st = &e->step;
    if (st->reads_hidden || e->observer.receive)
        run->machine = engine_memory(e); /* other machines do not keep all tensors */
    else
        TRY(engine_find_run(e, run, error));
    if (!run->request.continues) TRY(prepare_rows(e, run->machine, error));
    TRY(engine_begin_run(e, run, error));
    st->n_begun++;
    st->passes_ahead += run->request.passes;
    return QP_OK;
}

void step_note_slots(step_state *st, const engine_run *run)
{
    const bool alone = st->n_rows == 1 && st->fixed.rows <= 1;
    const bool counted = run->machine->type->counts_chosen && alone;
    for (size_t i = 0; i < st->n_rows; i++) {
        const step_row *row = &st->rows[i];
        if (!row->sampler) continue;
        const bool known = row->of && row->wanted;
        if (known && row->proposed) continue; /* the slot lacks what was accepted */
        st->slots[row->slot].counted = known ? (int64_t)row->of->session->count + counted : -1;
    }
}

qp_status step_end_run(qp_engine *e, int *passes, qp_error *error)
{
    step_state *st = &e->step;
    const engine_run *run = &st->runs[st->n_ended++ % MACHINE_MAX_RUNS];
    st->passes_ahead -= run->request.passes;
    return engine_end_run(e, run, passes, error);
}

void step_drop(qp_engine *e)
{
    step_state *st = &e->step;
    int passes;
    for (size_t i = 0; i < st->n_rows; i++) {
        st->rows[i].of = NULL;
        if (st->rows[i].sampler) st->slots[st->rows[i].slot].counted = -1;
    }
    while (st->n_ended < st->n_begun)
        if (step_end_run(e, &passes, NULL) != QP_OK) break;
    st->n_ended = st->n_begun;
    st->passes_ahead = 0;
    st->n_rows = 0;
}

/* ---- calls --------------------------------------------------------------------------------- */

enum { FEW_ROWS = 8 };

/* Whether the batch has proposals. */
static bool verifies(const step_state *st)
{
    for (size_t i = 0; i < st->n_parts; i++)
        if (st->parts[i].verifies) return true;
    return false;
}

/* Whether the CPU needs the logits: for a receiver, or to check those that an answer starts with,
 * and others where that costs nothing. */
static bool wants_logits(const step_state *st, bool on_gpu)
{
    for (size_t i = 0; i < st->n_parts; i++)
        if (st->parts[i].n_outputs > 0 && st->parts[i].of->on_logits) return true;
    for (size_t i = 0; i < st->n_rows; i++)
        if (step_picks(&st->rows[i])) return true;
    if (verifies(st)) return !on_gpu; /* no answer starts */
    return st->chooses && st->n_rows > 0 && st->n_rows <= FEW_ROWS;
}

/* Lists the rows of logits that a machine must keep: those of receivers, and of tokens that are
 * chosen on the CPU, if rows are many, else all
 * that are not there to fill the pass. Returns whether it is all of these. */
static bool list_logit_rows(step_state *st, machine_request *r)
{
    const bool all = st->n_rows <= FEW_ROWS || verifies(st);
    st->n_logit_rows = 0;
    for (size_t i = 0; all && i < st->n_rows; i++)
        st->logit_rows[st->n_logit_rows++] = (int32_t)i;
    for (size_t i = 0; !all && i < st->n_parts; i++)
        for (int64_t k = 0; st->parts[i].of->on_logits && k < st->parts[i].n_outputs; k++)
            st->logit_rows[st->n_logit_rows++] = (int32_t)(st->parts[i].first_output + k);
    for (size_t i = 0; !all && i < st->n_rows; i++)
        if (step_picks(&st->rows[i]) && (!st->rows[i].of->on_logits || st->rows[i].of->like))
            st->logit_rows[st->n_logit_rows++] = (int32_t)i;
    r->logit_rows = st->logit_rows;
    r->n_logit_rows = st->n_logit_rows;
    return all;
}

/* Runs the batch. */
static qp_status run_batch(qp_engine *e, engine_run **run, bool *all_rows, qp_error *error)
{
    step_state *st = &e->step;
    int passes = 0;
    engine_run *r = *run = step_next_run(e, 1);
    r->request.verifies = verifies(st);
    r->request.logits = wants_logits(st, e->device.context);
    *all_rows = list_logit_rows(st, &r->request);
    if (st->reads_hidden && st->choice == MACHINE_LOGITS && !r->request.logits)
        step_end_at_hidden(e, &r->request);
    TRY(step_begin_run(e, r, error));
    return step_end_run(e, &passes, error);
}

/* Reads new tokens of any number of sequences. */
static qp_status step_batch(qp_engine *e, qp_sequence *all, size_t n, qp_error *error)
{
    step_state *st = &e->step;
    engine_run *run;
    bool all_rows = false;
    TRY(step_take_pages(e, all, n, error));
    st->hidden_apart = step_reads_hidden_apart(e, all, n);
    step_fill_batch(e, all, n);
    if (st->n_parts == 0) return QP_OK;
    st->choice = MACHINE_LOGITS;
    for (size_t i = 0; i < st->n_rows; i++)
        if (st->rows[i].of) st->choice = MACHINE_SAMPLED;
    st->reads_hidden = step_wants_hidden(st);
    if (st->hidden_apart) step_want_hidden(e);
    TRY(run_batch(e, &run, &all_rows, error));
    const float *logits = run->request.logits ? machine_logits(run->machine) : NULL;
    if (st->reads_hidden) TRY(step_read_hidden(e, error));
    const size_t n_parts = st->n_parts;
    step_finish_parts(e, all, n);
    for (size_t i = 0; (logits || st->reads_hidden) && i < n_parts; i++)
        TRY(step_hand_out_rows(e, &st->parts[i],
                               all_rows || st->parts[i].of->on_logits ? logits : NULL, error));
    if (logits) TRY(step_pick(e, logits, run->request.tokens, error));
    step_hand_out(e, run->request.tokens);
    qp_status status = step_accept(e, run->request.tokens, logits, error);
    step_note_slots(st, run);
    st->n_rows = 0;
    return status;
}

/* `proposes`: proposals of the sequences are to be verified. */
static qp_status step_once(qp_engine *e, qp_sequence *all, size_t n, bool proposes, qp_error *error)
{
    step_state *st = &e->step;
    bool progress = false;
    if (st->n_ended < st->n_begun) {
        speculation_put_off(e);
        if (step_match_rows(e, all, n)) return step_going(e, true, proposes, error);
        TRY(step_drain(e, &progress, error));
        if (progress) return QP_OK;
        proposes = false;
    }
    if (!proposes && step_make_rows(e, all, n)) return step_going(e, false, false, error);
    return step_batch(e, all, n, error);
}

qp_status step_sequences(qp_engine *e, qp_sequence *all, size_t n, qp_error *error)
{
    bool proposes;
    e->step.refused = QP_OK;
    TRY(step_check(e, all, n, error));
    TRY(speculation_propose(e, all, n, &proposes, error));
    TRY(step_once(e, all, n, proposes, error));
    speculation_measure(e, all, n);
    return error_of_callback(e->step.refused, error);
}
