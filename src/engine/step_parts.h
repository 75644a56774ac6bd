/* The parts of qp_step(): checks of a call, and batches of new tokens. The runs are in step.c. */
#ifndef QUIPU_ENGINE_STEP_PARTS_H
#define QUIPU_ENGINE_STEP_PARTS_H

#include "engine/engine.h"

static inline bool step_is_cancelled(const qp_sequence *s)
{
    return s->cancel && *s->cancel;
}

/* step_check.c: refuses an invalid call before anything runs. Sets the results of all sequences to
 * 0. */
qp_status step_check(qp_engine *engine, qp_sequence *all, size_t n, qp_error *error);

/* Refuses a row of logits, float32 [vocab_size], with a value that is not a number. The message
 * says after which token of the "input" or the "session". */
qp_status step_check_logits(const qp_engine *engine, const float *logits, size_t token,
                            const char *of, qp_error *error);

/* step_batch.c: takes pages for all new tokens of the sequences, or none at all. */
qp_status step_take_pages(qp_sequence *all, size_t n, qp_error *error);

/* Fills the engine's batch with as many new tokens as it has room for, and step_state with their
 * parts and rows. Sequences with a single token come first, because those are decoding. */
void step_fill_batch(qp_engine *engine, qp_sequence *all, size_t n);

/* After the run of the batch: adds its tokens to the sessions. */
void step_finish_parts(qp_engine *engine, qp_sequence *all, size_t n);

/* Passes a part's rows to its receivers. `logits`: float32 (n_outputs, vocab_size) of the batch;
 * `hidden`: float32 (n_outputs, hidden_size). Either is NULL if no receiver needs it. */
qp_status step_hand_out_rows(const qp_engine *engine, const step_part *part, const float *logits,
                             const float *hidden, qp_error *error);

#endif
