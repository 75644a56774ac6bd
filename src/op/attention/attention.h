/* The attention of one head of one token, which ragged prefill, paged prefill and paged decode
 * share: softmax(q K^T * sm_scale) V over the first positions of one sequence.
 *
 * Positions are taken in order, in tiles counted from position 0, with a running maximum and sum in
 * float64. The result depends on q and on the keys and values seen, never on pages, chunks of the
 * prompt or neighbours in the batch, and nothing is as long as the context.
 */
#ifndef QUIPU_OP_ATTENTION_ATTENTION_H
#define QUIPU_OP_ATTENTION_ATTENTION_H

#include "base/status.h"
#include "tensor/tensor.h"

#include <stdbool.h>
#include <stddef.h>

/* Keys and values of one sequence. A ragged sequence is one page of all its tokens. */
typedef struct attention_source {
    tensor k, v;          /* (n_pages, page_size, n_kv_heads, head_dim), any strides */
    const int32_t *pages; /* page of each page_size positions */
} attention_source;

/* One head of one token: its tensors q and out (may be q) and where its log-sum-exp goes. */
typedef struct attention_row {
    const tensor *q, *out; /* (n, n_heads, head_dim) */
    const tensor *lse;     /* (n, n_heads), any strides; rank 0: not wanted */
    int64_t token, head;
    int64_t n_visible; /* positions [0, n_visible) of the source are seen */
    double sm_scale;   /* 0: 1 / sqrt(head_dim) */
} attention_row;

/* scratch: 3 * head_dim doubles; attention_tile_scratch() of tile.h is enough. */
void attention_compute(const attention_source *source, const attention_row *row, void *scratch);

/* Whether query heads fall into equal groups, one for each KV head. */
qp_status attention_check_heads(const char *op, int64_t n_heads, int64_t n_kv_heads,
                                qp_error *error);

/* How many of kv_length positions query i of qo_length sees: causal is aligned at the bottom right,
 * the last query sees all. */
int64_t attention_visible(bool causal, int64_t i, int64_t qo_length, int64_t kv_length);

/* Pairs of a query and a position that it sees, over one sequence. */
double attention_pairs(bool causal, int64_t qo_length, int64_t kv_length);

#endif
