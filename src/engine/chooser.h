/* Tokens chosen by the CPU from logits that are in this computer's memory, by the operator
 * "sampling": where biases and penalties change logits that no machine changes itself.
 */
#ifndef QUIPU_ENGINE_CHOOSER_H
#define QUIPU_ENGINE_CHOOSER_H

#include "base/buffer.h"
#include "base/threads.h"
#include "vm/batch.h"

typedef struct chooser {
    thread_pool *pool;
    uint32_t cpu_features;
    int64_t vocab_size, max_rows;
    buffer scratch;
    size_t scratch_bytes; /* of one thread */
    float *row;           /* [vocab_size]: of a choice from logits that must not change */
} chooser;

/* For as many rows as a batch of the plan has outputs. chooser_free() it, also after a failure. */
qp_status chooser_init(chooser *chooser, const program *plan, thread_pool *pool,
                       uint32_t cpu_features, qp_error *error);
void chooser_free(chooser *chooser);

/* How the token of one row is chosen, as the batch's arrays of these names have it. */
typedef struct choice_settings {
    int64_t seed;
    int32_t position, top_k;
    float temperature, top_p, min_p;
} choice_settings;

/* The token of chooser->row. */
int32_t chooser_choose_one(const chooser *chooser, const choice_settings *settings);

/* The tokens of logits, (n_outputs, vocab_size), as the batch's settings of each row say. */
void chooser_choose(const chooser *chooser, float *logits, const batch *batch, int32_t *ids);

#endif
