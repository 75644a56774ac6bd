/* The batch state: what changes from one forward pass to the next.
 *
 * Host arrays in FlashInfer's meaning (qo_indptr, kv_indptr, kv_indices, kv_last_page_len), sized
 * once for the program's capacity. A batch is filled sequence by sequence. The length of a sequence
 * (kv_seqlens of other engines) is not stored: (its pages - 1) * page_size + kv_last_page_len.
 */
#pragma once

#include "plan/program.h"

typedef struct batch {
    const program *program;
    program_sizes sizes; /* of the batch so far; pages and positions are the program's */
    /* Arrays of the program's inputs, by plan_tensor_id; one allocation. */
    void *of[PLAN_NAMED];
    void *memory;
    size_t memory_bytes;
    /* The RoPE angles of the batch's rows, (n_tokens, rotary_dim), if they depend on the length of
     * the sequence; a pass then uses them as its RoPE table. NULL otherwise. */
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

/* Adds one token, as batch_add() does. The pages are those of the sequence's first `positions`
 * positions, so that later passes can write there. */
void batch_add_ahead(batch *batch, int32_t token, int64_t past, int64_t positions,
                     const int32_t *pages);

/* Sets the angles of `count` rows, beginning at `row`. Their positions begin at `past`, in a
 * sequence that has `length` positions after this batch. Does nothing if angles do not depend on
 * the length. */
void batch_set_angles(batch *batch, int64_t row, int64_t past, int64_t count, int64_t length);

/* An adapter of a sequence's tokens, and the factor of what its matrices add. */
typedef struct batch_adapter {
    int32_t adapter;
    float share;
} batch_adapter;

/* Sets the adapters, [n], of `count` rows, beginning at `row`; rows that were added have none. */
void batch_set_adapters(batch *batch, int64_t row, int64_t count, const batch_adapter *adapters,
                        int64_t n);

/* Whether every sequence has one token, and the logits of all are requested in the order of the
 * sequences. The next pass can then read the chosen tokens. */
bool batch_decodes(const batch *batch);

/* Whether the logits of any row are changed before a token is chosen. */
bool batch_adjusts(const batch *batch);

/* Makes `out` the batch that runs `pass` passes after `first`. `first` must decode
 * (batch_decodes()) and have the pages of all these passes. Each sequence is `pass` positions
 * further and reads tokens[i] (NULL: the tokens of `first`). */
void batch_make_later(const batch *first, int pass, const int32_t *tokens, batch *out);

/* Requests the logits of a row of the batch. Logits are returned in the order of the requests. */
void batch_want(batch *batch, int64_t row);

/* Requests the last hidden state of a row, after all rows of logits: it is the row of x_out after
 * those. */
void batch_want_hidden(batch *batch, int64_t row);

static inline int64_t batch_tokens(const batch *batch)
{
    return batch->sizes.of[AXIS_TOKENS];
}
static inline int64_t batch_outputs(const batch *batch)
{
    return batch->sizes.of[AXIS_OUTPUTS];
}
