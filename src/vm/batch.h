/* The batch state: what changes from one forward pass to the next.
 *
 * Host arrays in FlashInfer's meaning (qo_indptr, kv_indptr, kv_indices, kv_last_page_len), sized
 * once for the plan's capacity. A batch is filled sequence by sequence.
 */
#ifndef QUIPU_VM_BATCH_H
#define QUIPU_VM_BATCH_H

#include "plan/program.h"

typedef struct batch {
    const program *program;
    program_sizes sizes; /* of the batch so far; pages and positions are the plan's */
    /* Arrays of the plan's inputs, by plan_tensor_id; one allocation. */
    void *of[PLAN_TENSOR_COUNT];
    void *memory;
    size_t memory_bytes;
    /* RoPE's angles of the batch's rows, (n_tokens, rotary_dim), where they depend on the length of
     * the sequence: they are what the RoPE table holds in the pass. Else NULL. */
    float *angles;
} batch;

static inline int32_t *batch_i32(const batch *batch, plan_tensor_id id)
{
    return batch->of[id];
}

/* Bytes of the arrays of a batch. */
size_t batch_count_bytes(const program *program);

qp_status batch_init(batch *batch, const program *program, qp_error *error);
void batch_free(batch *batch);

/* Starts an empty batch. */
void batch_clear(batch *batch);

/* How many more tokens fit. */
int64_t batch_room(const batch *batch);

/* Adds `count` tokens of a sequence that holds `past` positions already; `pages` are those of past
 * + count positions, in their order. The tokens' rows in the batch begin at the number of tokens
 * before the call. */
void batch_add(batch *batch, const int32_t *tokens, int64_t count, int64_t past,
               const int32_t *pages);

/* Adds one token, as batch_add() does, with the pages of the sequence's first `positions`, which
 * later passes write. */
void batch_add_ahead(batch *batch, int32_t token, int64_t past, int64_t positions,
                     const int32_t *pages);

/* The angles of `count` rows from `row` on, at positions from `past` on, of a sequence that is made
 * `length` positions long. Nothing where angles do not depend on that. */
void batch_set_angles(batch *batch, int64_t row, int64_t past, int64_t count, int64_t length);

/* Whether every sequence has one token, and the logits of each are asked for in that order: then
 * the tokens chosen can be read by a next pass. */
bool batch_decodes(const batch *batch);

/* Whether the logits of any row are changed before a token is chosen. */
bool batch_adjusts(const batch *batch);

/* Makes `out` the batch of the pass that comes `pass` passes after that of `first`, which
 * decodes: each sequence is `pass` positions further and reads tokens[i] (NULL: those of `first`).
 * `first` has the pages. */
void batch_make_later(const batch *first, int pass, const int32_t *tokens, batch *out);

/* Asks for the logits of a row of the batch; they come in the order asked. */
void batch_want(batch *batch, int64_t row);

static inline int64_t batch_tokens(const batch *batch)
{
    return batch->sizes.of[AXIS_TOKENS];
}
static inline int64_t batch_outputs(const batch *batch)
{
    return batch->sizes.of[AXIS_OUTPUTS];
}

#endif
