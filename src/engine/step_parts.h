/* The parts of qp_step(): checks of a call, and batches of new tokens. The runs are in step.c. */
#ifndef QUIPU_ENGINE_STEP_PARTS_H
#define QUIPU_ENGINE_STEP_PARTS_H

#include "engine/engine.h"

static inline bool step_is_cancelled(const qp_sequence *s)
{
    return s->cancel && *s->cancel;
}

/* step_check.c: refuses a call that is wrong, before anything is run. Results of all sequences
 * become 0. */
qp_status step_check(qp_engine *engine, qp_sequence *all, size_t n, qp_error *error);

/* Refuses a row of logits, float32 [vocab_size], that are not numbers; they come after that token
 * of the "input" or the "session". */
qp_status step_check_logits(const qp_engine *engine, const float *logits, size_t token,
                            const char *of, qp_error *error);

/* step_batch.c: pages for all new tokens of the sequences, or for none. */
qp_status step_take_pages(qp_sequence *all, size_t n, qp_error *error);

/* The engine's batch, with parts and rows in its step_state: as many new tokens as it has room for.
 * Sequences with a single token first: that is what those that go on have. */
void step_fill_batch(qp_engine *engine, qp_sequence *all, size_t n);

/* After the run of the batch: the sessions hold its tokens. */
void step_finish_parts(qp_engine *engine, qp_sequence *all, size_t n);

/* Hands a part's rows to its receivers. `logits`: float32 (n_outputs, vocab_size) of the batch, or
 * NULL: none are needed. `hidden`: float32 (n_outputs, hidden_size), or NULL. */
qp_status step_hand_out_rows(const qp_engine *engine, const step_part *part, const float *logits,
                             const float *hidden, qp_error *error);

#endif
