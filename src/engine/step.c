/* Progress for any set of sequences: see qp_step() in quipu.h.
 *
 *     sequences -> batch of parts and rows -> runs on a machine -> tokens and logits
 *
 * A part is a range of new tokens of one sequence. A row is one row of logits of the batch. If
 * every sequence only continues from its last chosen token, a run has several passes, and a GPU
 * executes the next run while the caller reads the tokens of this one. The rows record which
 * sequence each token in flight belongs to. Between calls they keep ids of sessions and samplers,
 * not pointers, because the caller may close those.
 */
#include "engine/step_parts.h"

#include "op/adjust_logits/adjust_logits.h"

#include <stdlib.h>

qp_status step_init(step_state *st, const program *p, qp_error *error)
{
    const size_t outputs = (size_t)p->options.max_outputs;
    const size_t sequences = (size_t)p->options.max_sequences;
    const size_t tokens = MACHINE_MAX_RUNS * STEP_MAX_PASSES * outputs;
    *st = (step_state){0};
    st->parts = calloc(sequences, sizeof *st->parts);
    st->rows = calloc(outputs, sizeof *st->rows);
    st->tokens = calloc(tokens, sizeof *st->tokens);
    st->slots = calloc(sequences, sizeof *st->slots);
    st->logit_rows = calloc(outputs, sizeof *st->logit_rows);
    st->scratch = calloc((size_t)p->config.vocab_size, 4);
    if (st->parts && st->rows && st->tokens && st->slots && st->logit_rows && st->scratch)
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
    free(st->hidden);
    *st = (step_state){0};
}

/* ---- runs ---------------------------------------------------------------------------------- */

void step_hand_out_token(step_row *row, int32_t token)
{
    qp_sequence *s = row->of;
    if (row->going) s->session->tokens[s->session->count++] = row->last;
    s->read = row->going && !s->read ? 1 : s->read;
    row->going = true;
    row->last = token;
    s->chosen++;
    row->wanted = !s->on_token || s->on_token(s->context, token);
    if (s->max_tokens && s->chosen >= s->max_tokens) row->wanted = false;
}

/* Gives the tokens of a pass, [n_rows], to the rows. Returns whether any row wants more. */
static bool hand_out(void *engine, const int32_t *tokens)
{
    step_state *st = &((qp_engine *)engine)->step;
    bool wanted = false;
    for (size_t i = 0; i < st->n_rows; i++) {
        step_row *row = &st->rows[i];
        if (!row->of || !row->wanted) continue;
        if (step_is_cancelled(row->of))
            row->wanted = false;
        else
            step_hand_out_token(row, tokens[i]);
        wanted |= row->wanted;
    }
    return wanted;
}

/* How many further passes every row can use. */
static int64_t passes_wanted(const qp_engine *e)
{
    const step_state *st = &e->step;
    int64_t least = STEP_MAX_PASSES;
    for (size_t i = 0; i < st->n_rows; i++) {
        const qp_sequence *s = st->rows[i].of;
        int64_t room = e->program.options.context - (int64_t)s->session->count - st->passes_ahead;
        int64_t wanted = s->max_tokens ? (int64_t)s->max_tokens - (int64_t)s->chosen : room;
        if (s->max_tokens) wanted -= st->passes_ahead;
        if (s->interval && (int64_t)s->interval < wanted) wanted = (int64_t)s->interval;
        if (s->sampler->allowed || s->on_logits) wanted = st->passes_ahead ? 0 : 1;
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
        batch_set_angles(b, (int64_t)i, past, 1, past + 1);
        batch_want(b, (int64_t)i);
        sampler_set_row(row->of->sampler, b, (int64_t)i, row->slot, (size_t)past + 1);
        if (ahead && batch_i32(b, PLAN_USES)[i] & ADJUST_PENALISE)
            batch_i32(b, PLAN_USES)[i] |= ADJUST_COUNT;
    }
    step_pad(e, false, passes);
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

static engine_run *next_run(qp_engine *e, int64_t passes)
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

static qp_status begin(qp_engine *e, engine_run *run, qp_error *error)
{
    step_state *st = &e->step;
    if (st->reads_hidden)
        run->machine = engine_memory(e); /* other machines do not keep hidden states */
    else
        TRY(engine_find_run(e, run, error));
    if (!run->request.continues) TRY(prepare_rows(e, run->machine, error));
    TRY(engine_begin_run(e, run, error));
    st->n_begun++;
    st->passes_ahead += run->request.passes;
    return QP_OK;
}

/* Updates what the slots hold after a run of `passes`. Slots of continuing rows, which got all
 * tokens, are current; slots of other rows are stale. */
static void note_slots(step_state *st, const engine_run *run)
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

/* Waits for the oldest run. */
static qp_status end(qp_engine *e, int *passes, qp_error *error)
{
    step_state *st = &e->step;
    const engine_run *run = &st->runs[st->n_ended++ % MACHINE_MAX_RUNS];
    st->passes_ahead -= run->request.passes;
    return engine_end_run(e, run, passes, error);
}

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
        TRY(s->on_logits(s->context, 0, own));
    }
    hand_out(e, run->request.tokens);
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
    qp_status status = end(e, &passes, error);
    if (status == QP_OK && run->request.logit_rows && passes > 0)
        status = hand_out_logits(e, run, error);
    else if (status == QP_OK && run->request.logits)
        status = check_going(e, run, error);
    note_slots(st, run);
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

void step_drop(qp_engine *e)
{
    step_state *st = &e->step;
    int passes;
    for (size_t i = 0; i < st->n_rows; i++) {
        st->rows[i].of = NULL;
        if (st->rows[i].sampler) st->slots[st->rows[i].slot].counted = -1;
    }
    while (st->n_ended < st->n_begun)
        if (end(e, &passes, NULL) != QP_OK) break;
    st->n_ended = st->n_begun;
    st->passes_ahead = 0;
    st->n_rows = 0;
}

/* ---- calls --------------------------------------------------------------------------------- */

/* The sequence of this call that a row in flight belongs to; NULL: none. The search starts at *from
 * and advances it, because sequences usually keep their order from call to call. */
static qp_sequence *find_row(const step_row *row, qp_sequence *all, size_t n, size_t *from)
{
    for (size_t k = 0; row->session && k < n; k++) {
        const size_t i = (*from + k) % n;
        qp_sequence *s = &all[i];
        if (s->session->id != row->session) continue;
        if (!step_continues(s) || s->on_logits || s->sampler->id != row->sampler ||
            s->session->count != row->held || s->tokens[0] != row->last)
            return NULL;
        *from = i + 1;
        return step_is_cancelled(s) ? NULL : s;
    }
    return NULL;
}

/* Whether the call's sequences are exactly those with passes in flight. */
static bool match_rows(qp_engine *e, qp_sequence *all, size_t n)
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

/* Starts as many passes as the machine's pace and the sequences allow, perhaps none. */
static qp_status begin_going(qp_engine *e, machine_pace pace, int64_t most, qp_error *error)
{
    step_state *st = &e->step;
    int64_t passes = passes_wanted(e);
    if (passes > most) passes = most;
    if (passes < 1 || st->n_begun - st->n_ended >= pace.runs) return QP_OK;
    TRY(take_pages_ahead(e, passes, error));
    fill_going(e, passes);
    engine_run *run = next_run(e, passes);
    run->request.logits = st->n_logit_rows > 0 || (passes == 1 && !e->device.context); /* to check
                                                         them: on a CPU they cost nothing */
    if (st->n_logit_rows > 0) {
        run->request.logit_rows = st->logit_rows;
        run->request.n_logit_rows = st->n_logit_rows;
    } else {
        run->request.on_tokens = hand_out;
    }
    set_end(st, &pace, &run->request);
    return begin(e, run, error);
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

/* For a call in which all sequences continue. If several runs may be in flight, the first has one
 * pass, so that a GPU starts while the CPU prepares the next. No passes are started ahead where
 * proposals are to be verified next. */
static qp_status step_going(qp_engine *e, bool continues, bool proposes, qp_error *error)
{
    step_state *st = &e->step;
    const int64_t n_rows = st->fixed.rows ? st->fixed.rows : (int64_t)st->n_rows;
    const machine_pace pace = engine_pace(e, n_rows, st->choice);
    const bool runs_ahead = pace.runs > 1 && !e->trace && !proposes;
    const int64_t most = pace.passes > 0 ? pace.passes : 1;
    if (!continues) TRY(begin_going(e, pace, runs_ahead ? 1 : most, error));
    if (runs_ahead) TRY(run_ahead(e, pace, most, error));
    return end_going(e, error);
}

/* The call has other sequences than the passes in flight: first gives out the tokens of those. */
static qp_status drain(qp_engine *e, bool *progress, qp_error *error)
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

/* Makes one row for each sequence; false: not all of them continue. */
static bool make_rows(qp_engine *e, qp_sequence *all, size_t n)
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
        if (s->on_logits) st->logit_rows[st->n_logit_rows++] = (int32_t)i;
    }
    return true;
}

enum { FEW_ROWS = 8 };

/* Whether the CPU needs the logits: for a receiver, or to check those that an answer starts with,
 * and others where that costs nothing. */
static bool wants_logits(const step_state *st, bool on_gpu)
{
    for (size_t i = 0; i < st->n_parts; i++)
        if (st->parts[i].n_outputs > 0 && st->parts[i].of->on_logits) return true;
    if (st->n_parts > 0 && st->parts[0].verifies) return !on_gpu; /* no answer starts */
    return st->chooses && st->n_rows > 0 && st->n_rows <= FEW_ROWS;
}

/* Lists the rows of logits that a machine must keep: those of receivers if rows are many, else all
 * that are not there to fill the pass. Returns whether it is all of these. */
static bool list_logit_rows(step_state *st, machine_request *r)
{
    bool all = st->n_rows <= FEW_ROWS;
    st->n_logit_rows = 0;
    for (size_t i = 0; i < st->n_parts; i++)
        all |= st->parts[i].verifies;
    for (size_t i = 0; all && i < st->n_rows; i++)
        st->logit_rows[st->n_logit_rows++] = (int32_t)i;
    for (size_t i = 0; !all && i < st->n_parts; i++)
        for (int64_t k = 0; st->parts[i].of->on_logits && k < st->parts[i].n_outputs; k++)
            st->logit_rows[st->n_logit_rows++] = (int32_t)(st->parts[i].first_output + k);
    r->logit_rows = st->logit_rows;
    r->n_logit_rows = st->n_logit_rows;
    return all;
}

static bool wants_hidden(const step_state *st)
{
    for (size_t i = 0; i < st->n_parts; i++)
        if (st->parts[i].n_outputs > 0 && st->parts[i].of->on_hidden) return true;
    return false;
}

/* How many steps compute the last hidden states: all but those that make logits of them. */
static int hidden_steps(const program *p)
{
    int n = p->n_steps;
    while (n > 0 && !program_step_access(p, n - 1, PLAN_X_OUT).write)
        n--;
    return n;
}

/* The hidden states of the last run's rows of logits. */
static qp_status read_hidden(qp_engine *e, const float **out, qp_error *error)
{
    step_state *st = &e->step;
    const size_t row = (size_t)e->program.config.hidden_size * sizeof(float);
    const size_t most = (size_t)e->program.options.max_outputs * row;
    if (!st->hidden) st->hidden = malloc(most);
    if (!st->hidden) return error_no_memory(error, "hidden states", most);
    *out = st->hidden;
    return machine_read(engine_memory(e), PLAN_X_OUT, 0, st->hidden,
                        (size_t)batch_outputs(&e->batch) * row, error);
}

/* Reads new tokens of any number of sequences. */
static qp_status step_batch(qp_engine *e, qp_sequence *all, size_t n, qp_error *error)
{
    step_state *st = &e->step;
    int passes = 0;
    TRY(step_take_pages(e, all, n, error));
    step_fill_batch(e, all, n);
    if (st->n_parts == 0) return QP_OK;
    st->choice = MACHINE_LOGITS;
    for (size_t i = 0; i < st->n_rows; i++)
        if (st->rows[i].of) st->choice = MACHINE_SAMPLED;
    engine_run *run = next_run(e, 1);
    run->request.logits = wants_logits(st, e->device.context);
    const bool all_rows = list_logit_rows(st, &run->request);
    st->reads_hidden = wants_hidden(st);
    if (st->reads_hidden && st->choice == MACHINE_LOGITS && !run->request.logits &&
        !e->device.context) /* a GPU has its passes as graphs, whole */
        run->request.last = hidden_steps(&e->program);
    TRY(begin(e, run, error));
    TRY(end(e, &passes, error));
    const float *logits = run->request.logits ? machine_logits(run->machine) : NULL, *hidden = NULL;
    if (st->reads_hidden) TRY(read_hidden(e, &hidden, error));
    const size_t n_parts = st->n_parts;
    step_finish_parts(e, all, n);
    for (size_t i = 0; (logits || hidden) && i < n_parts; i++)
        TRY(step_hand_out_rows(e, &st->parts[i],
                               all_rows || st->parts[i].of->on_logits ? logits : NULL, hidden,
                               error));
    hand_out(e, run->request.tokens);
    qp_status status = step_accept(e, run->request.tokens, logits, error);
    note_slots(st, run);
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
        if (match_rows(e, all, n)) return step_going(e, true, proposes, error);
        TRY(drain(e, &progress, error));
        if (progress) return QP_OK;
        proposes = false;
    }
    if (!proposes && make_rows(e, all, n)) return step_going(e, false, false, error);
    return step_batch(e, all, n, error);
}

qp_status step_sequences(qp_engine *e, qp_sequence *all, size_t n, qp_error *error)
{
    bool proposes;
    TRY(step_check(e, all, n, error));
    TRY(speculation_propose(e, all, n, &proposes, error));
    TRY(step_once(e, all, n, proposes, error));
    speculation_measure(e, all, n);
    return QP_OK;
}
