/* The parts of qp_step(): see step.c. */
#pragma once

#include "engine/engine.h"

static inline bool step_is_cancelled(const qp_sequence *s)
{
    return (s->cancel && *s->cancel) || engine_is_closing(s->session->engine);
}

/* Whether the sequence has only its last token to read, and wants the next one chosen. */
static inline bool step_continues(const qp_sequence *s)
{
    return s->count == 1 && s->sampler && s->sampler->begun && !s->on_hidden && !s->like;
}

/* Whether the row's token is chosen on the CPU. */
static inline bool step_picks(const step_row *row)
{
    return row->of && row->of->sampler && sampler_picks(row->of->sampler);
}

/* Whether the CPU needs the logits of each pass. */
static inline bool step_reads_logits(const qp_sequence *s)
{
    return s->on_logits || (s->sampler && sampler_picks(s->sampler));
}

/* step.c: replaces the tokens, [n_rows], of rows whose tokens are chosen on the CPU. `logits`:
 * float32 (n_rows, vocab_size). */
qp_status step_pick(qp_engine *engine, const float *logits, int32_t *tokens, qp_error *error);

/* step.c: the next run of the engine's batch. Fill in what is missing, then begin it. */
engine_run *step_next_run(qp_engine *engine, int64_t passes);
qp_status step_begin_run(qp_engine *engine, engine_run *run, qp_error *error);

/* Waits for the oldest run. */
qp_status step_end_run(qp_engine *engine, int *passes, qp_error *error);

/* Updates what the slots hold after a run. Slots of continuing rows, which got all tokens, are
 * current; slots of other rows are stale. */
void step_note_slots(step_state *state, const engine_run *run);

/* Gives the tokens of a pass, [n_rows], to the rows. Returns whether any row wants more. */
bool step_hand_out(void *engine, const int32_t *tokens);

/* step_going.c: makes one row for each sequence; false: not all of them continue. */
bool step_make_rows(qp_engine *engine, qp_sequence *all, size_t n);

/* Whether the call's sequences are exactly those with passes in flight. */
bool step_match_rows(qp_engine *engine, qp_sequence *all, size_t n);

/* For a call in which all sequences continue, with passes in flight if `continues`. If several runs
 * may be in flight, the first has one pass, so that a GPU starts while the CPU prepares the next.
 * No passes are started ahead where proposals are to be verified next. */
qp_status step_going(qp_engine *engine, bool continues, bool proposes, qp_error *error);

/* The call has other sequences than the passes in flight: first gives out the tokens of those. */
qp_status step_drain(qp_engine *engine, bool *progress, qp_error *error);

/* step_pad.c: whether the batch of this call is one of new tokens of prompts, which then is all
 * that it has. Shapes are fixed. */
bool step_reads_prompts(const qp_sequence *all, size_t n);

/* Fills the batch to its fixed shape, if shapes are fixed. `passes`: how many of this batch run. */
void step_pad(qp_engine *engine, bool prompts, int64_t passes);

/* step_check.c: refuses an invalid call before anything runs. Sets the results of all sequences to
 * 0. */
qp_status step_check(qp_engine *engine, qp_sequence *all, size_t n, qp_error *error);

/* Refuses a row of logits, float32 [vocab_size], with a value that is not a number. The message
 * says after which token of the "input" or the "session". */
qp_status step_check_logits(const qp_engine *engine, const float *logits, size_t token,
                            const char *of, qp_error *error);

/* step_batch.c: takes pages for all new tokens of the sequences, or none at all; and for proposals
 * as far as there are pages. */
qp_status step_take_pages(qp_engine *engine, qp_sequence *all, size_t n, qp_error *error);

/* Fills the engine's batch with as many new tokens as it has room for, and step_state with their
 * parts and rows. Sequences with a single token come first, because those are decoding. */
void step_fill_batch(qp_engine *engine, qp_sequence *all, size_t n);

/* After the run of the batch: adds its tokens to the sessions. */
void step_finish_parts(qp_engine *engine, qp_sequence *all, size_t n);

/* Passes a part's rows to its receivers: its hidden states, and then its rows of `logits`, float32
 * (n_outputs, vocab_size) of the batch; NULL: no receiver needs these. */
qp_status step_hand_out_rows(const qp_engine *engine, const step_part *part, const float *logits,
                             qp_error *error);

/* step_hidden.c: whether hidden states of the call are no rows of logits. */
bool step_reads_hidden_apart(const qp_engine *engine, const qp_sequence *all, size_t n);

/* Whether hidden states of the batch are handed out. */
bool step_wants_hidden(const step_state *state);

/* If they are no rows of logits: requests those of the batch, after its rows of logits. */
void step_want_hidden(qp_engine *engine);

/* Makes a request end before logits; reads the hidden states after a run. */
void step_end_at_hidden(const qp_engine *engine, machine_request *request);
qp_status step_read_hidden(qp_engine *engine, qp_error *error);

/* Records that a row's next token was chosen and the previous one was read. */
void step_hand_out_token(step_state *state, step_row *row, int32_t token);

/* step_verify.c: adds the sequence's last token and its proposals to the batch, with a row of
 * logits for each. */
void step_add_proposals(qp_engine *engine, qp_sequence *sequence);

/* After the first rows of all sequences were handed out: accepts proposals as long as they were
 * chosen, and hands out what was chosen after each. `tokens`: of all rows; `logits`: of all rows,
 * float32 (n_rows, vocab_size), or NULL. */
qp_status step_accept(qp_engine *engine, const int32_t *tokens, const float *logits,
                      qp_error *error);
