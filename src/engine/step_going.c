/* Runs of sequences that only continue from their last tokens: for step.c.
 *
 * Such a run has several passes, and a GPU executes the next run while the caller reads the tokens
 * of this one. The rows of step_state record which sequence each token in flight belongs to.
 */
#include "engine/step_parts.h"

#include "op/adjust_logits/adjust_logits.h"

/* ---- beginning ----------------------------------------------------------------------------- */

/* The smaller of the two: a caller's count may be larger than any int64_t. */
static int64_t at_most(int64_t passes, size_t count)
{
    return count < (size_t)passes ? (int64_t)count : passes;
}

/* How many further passes every row can use. */
static int64_t passes_wanted(const qp_engine *e)
{
    const step_state *st = &e->step;
    int64_t least = STEP_MAX_PASSES;
    for (size_t i = 0; i < st->n_rows; i++) {
        const qp_sequence *s = st->rows[i].of;
        const int64_t room_now = e->program.options.context - (int64_t)s->session->count;
        const int64_t room = room_now - st->passes_ahead;
        int64_t wanted = room;
        if (s->max_tokens) wanted = at_most(room_now, s->max_tokens - s->chosen) - st->passes_ahead;
        if (s->interval && wanted > 0) wanted = at_most(wanted, s->interval);
        if (s->sampler->allowed || step_reads_logits(s)) wanted = st->passes_ahead ? 0 : 1;
        wanted = wanted < room ? wanted : room;
        least = wanted < least ? wanted : least;
    }
    return least;
}

/* Takes pages for this many further passes of all continuing sequences, or none at all. */
static qp_status take_pages_ahead(qp_engine *e, int64_t passes, qp_error *error)
{
    const step_state *st = &e->step;
    const size_t ahead = (size_t)st->passes_ahead;
    for (size_t i = 0; i < st->n_rows; i++) {
        qp_status status =
            session_take_pages(st->rows[i].of->session, ahead, (size_t)passes, error);
        if (status == QP_OK) continue;
        for (size_t j = 0; j < i; j++)
            session_give_pages_back(st->rows[j].of->session, ahead);
        return status;
    }
    return QP_OK;
}

/* Fills the engine's batch for the passes of continuing sequences that follow those in flight. */
static void fill_going(qp_engine *e, int64_t passes)
{
    step_state *st = &e->step;
    batch *b = &e->batch;
    const bool ahead = st->passes_ahead > 0;
    batch_clear(b);
    for (size_t i = 0; i < st->n_rows; i++) {
        const step_row *row = &st->rows[i];
        qp_session *s = row->of->session;
        const int64_t past = (int64_t)s->count + st->passes_ahead;
        s->rope_length = past + passes;
        batch_add_ahead(b, row->last, past, s->rope_length, s->pages.pages);
        session_adapt_rows(s, (int64_t)i, 1);
        batch_set_angles(b, (int64_t)i, past, 1, past + 1);
        batch_want(b, (int64_t)i);
        sampler_set_row(row->of->sampler, b, (int64_t)i, row->slot, (size_t)past + 1);
        if (ahead && batch_i32(b, PLAN_USES)[i] & ADJUST_PENALISE)
            batch_i32(b, PLAN_USES)[i] |= ADJUST_COUNT;
    }
    step_pad(e, false, passes);
}

/* The cancel flag, if all rows have the same one. The machine also checks it, if the run has one
 * sequence and was not started before its call. */
static void set_end(const step_state *st, const machine_pace *pace, machine_request *r)
{
    const qp_sequence *s = st->rows[0].of;
    if (st->n_rows != 1 || batch_outputs(r->batch) != 1) return;
    if (!s || !s->sampler || (pace && pace->runs > 1)) return;
    r->cancel = s->cancel;
    r->stops = s->sampler->stops;
    r->n_stops = s->sampler->n_stops;
}

/* Starts as many passes as the machine's pace and the sequences allow, perhaps none. */
static qp_status begin_going(qp_engine *e, machine_pace pace, int64_t most, qp_error *error)
{
    step_state *st = &e->step;
    int64_t passes = passes_wanted(e);
    if (passes > most) passes = most;
    if (passes < 1 || st->n_begun - st->n_ended >= pace.runs) return QP_OK;
    TRY(take_pages_ahead(e, passes, error));
    fill_going(e, passes);
    engine_run *run = step_next_run(e, passes);
    run->request.logits = st->n_logit_rows > 0 || (passes == 1 && !e->device.context); /* to check
                                                         them: on a CPU they cost nothing */
    if (st->n_logit_rows > 0) {
        run->request.logit_rows = st->logit_rows;
        run->request.n_logit_rows = st->n_logit_rows;
    } else {
        run->request.on_tokens = step_hand_out;
    }
    set_end(st, &pace, &run->request);
    return step_begin_run(e, run, error);
}

/* Starts the passes of the next call if there are pages for them. If not, that call reports it. */
static qp_status run_ahead(qp_engine *e, machine_pace pace, int64_t most, qp_error *error)
{
    qp_error why;
    qp_status status = begin_going(e, pace, most, &why);
    if (status == QP_OK || status == QP_NO_MEMORY) return QP_OK;
    if (error) *error = why;
    return status;
}

/* ---- ending -------------------------------------------------------------------------------- */

/* Gives the logits of a pass of continuing sequences to their receivers, and then its tokens. */
static qp_status hand_out_logits(qp_engine *e, const engine_run *run, qp_error *error)
{
    const step_state *st = &e->step;
    const float *logits = machine_logits(run->machine);
    for (int64_t i = 0; i < st->n_logit_rows; i++) {
        const int32_t at = st->logit_rows[i];
        const step_row *row = &st->rows[at];
        const qp_sequence *s = row->of;
        const float *own = logits + at * e->program.config.vocab_size;
        if (!s || !row->wanted || step_is_cancelled(s)) continue;
        TRY(step_check_logits(e, own, s->session->count, "session", error));
        if (s->on_logits) TRY(s->on_logits(s->context, 0, own));
    }
    TRY(step_pick(e, logits, run->request.tokens, error));
    step_hand_out(e, run->request.tokens);
    return QP_OK;
}

/* The logits from which the last tokens of continuing sequences were chosen. */
static qp_status check_going(const qp_engine *e, const engine_run *run, qp_error *error)
{
    const float *logits = machine_logits(run->machine);
    for (size_t i = 0; i < e->step.n_rows; i++) {
        const qp_sequence *s = e->step.rows[i].of;
        if (s && s->chosen > 0)
            TRY(step_check_logits(e, logits + i * (size_t)e->program.config.vocab_size,
                                  s->session->count - 1, "session", error));
    }
    return QP_OK;
}

static qp_status end_going(qp_engine *e, qp_error *error)
{
    step_state *st = &e->step;
    const engine_run *run = &st->runs[st->n_ended % MACHINE_MAX_RUNS];
    int passes = 0;
    qp_status status = step_end_run(e, &passes, error);
    if (status == QP_OK && run->request.logit_rows && passes > 0)
        status = hand_out_logits(e, run, error);
    else if (status == QP_OK && run->request.logits)
        status = check_going(e, run, error);
    step_note_slots(st, run);
    for (size_t i = 0; i < st->n_rows; i++) {
        step_row *row = &st->rows[i];
        if (row->of) row->of->passes += (size_t)passes;
        if (row->of && row->wanted)
            row->held = row->of->session->count;
        else
            row->session = 0; /* its tokens in flight are lost */
        if (row->of && !row->wanted) session_give_pages_back(row->of->session, 0);
    }
    return status;
}

/* ---- calls --------------------------------------------------------------------------------- */

qp_status step_going(qp_engine *e, bool continues, bool proposes, qp_error *error)
{
    step_state *st = &e->step;
    const int64_t least = st->fixed.rows, rows = (int64_t)st->n_rows;
    const machine_pace pace = engine_pace(e, rows < least ? least : rows, st->choice);
    const bool runs_ahead = pace.runs > 1 && !e->trace && !proposes;
    int64_t most = pace.passes > 0 ? pace.passes : 1;
    if (pace.runs == 1) most = speculation_passes(e, most);
    if (!continues) TRY(begin_going(e, pace, runs_ahead ? 1 : most, error));
    if (runs_ahead) TRY(run_ahead(e, pace, most, error));
    return end_going(e, error);
}

qp_status step_drain(qp_engine *e, bool *progress, qp_error *error)
{
    step_state *st = &e->step;
    qp_status status = QP_OK;
    while (status == QP_OK && st->n_ended < st->n_begun)
        status = end_going(e, error);
    for (size_t i = 0; i < st->n_rows; i++)
        *progress |= st->rows[i].of != NULL;
    if (status != QP_OK) step_drop(e);
    return status;
}

/* The sequence of this call that a row in flight belongs to; NULL: none. The search starts at *from
 * and advances it, because sequences usually keep their order from call to call. */
static qp_sequence *find_row(const step_row *row, qp_sequence *all, size_t n, size_t *from)
{
    for (size_t k = 0; row->session && k < n; k++) {
        const size_t i = (*from + k) % n;
        qp_sequence *s = &all[i];
        if (s->session->id != row->session) continue;
        if (!step_continues(s) || step_reads_logits(s) || s->sampler->id != row->sampler ||
            s->session->count != row->held || s->tokens[0] != row->last)
            return NULL;
        *from = i + 1;
        return step_is_cancelled(s) ? NULL : s;
    }
    return NULL;
}

bool step_match_rows(qp_engine *e, qp_sequence *all, size_t n)
{
    step_state *st = &e->step;
    bool same = st->n_rows == n;
    size_t from = 0;
    for (size_t i = 0; i < st->n_rows; i++) {
        step_row *row = &st->rows[i];
        row->of = find_row(row, all, n, &from);
        row->wanted = row->of != NULL;
        same &= i < n && row->of == &all[i];
    }
    return same;
}

bool step_make_rows(qp_engine *e, qp_sequence *all, size_t n)
{
    step_state *st = &e->step;
    const plan_options *o = &e->program.options;
    if (n == 0 || n > (size_t)o->max_outputs || n > (size_t)o->max_sequences) return false;
    for (size_t i = 0; i < n; i++)
        if (!step_continues(&all[i]) || step_is_cancelled(&all[i])) return false;
    st->n_rows = n;
    st->n_parts = 0;
    st->n_logit_rows = 0;
    st->choice = MACHINE_LIKELIEST;
    st->reads_hidden = false;
    for (size_t i = 0; i < n; i++) {
        qp_sequence *s = &all[i];
        st->rows[i] = (step_row){.of = s,
                                 .wanted = true,
                                 .session = s->session->id,
                                 .sampler = s->sampler->id,
                                 .slot = s->session->slot,
                                 .last = s->tokens[0],
                                 .going = true,
                                 .held = s->session->count};
        if (sampler_chooses(s->sampler) || s->on_logits) st->choice = MACHINE_SAMPLED;
        if (step_reads_logits(s)) st->logit_rows[st->n_logit_rows++] = (int32_t)i;
    }
    return true;
}
