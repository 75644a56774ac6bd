/* The attention of one head of one token: softmax(q K^T * sm_scale) V over the first positions of
 * one sequence. Ragged prefill, paged prefill and paged decode share it.
 *
 * Positions are processed in order, in tiles counted from position 0, with a running maximum and
 * sum in float64. The result depends only on q and on the keys and values seen, not on pages,
 * chunks of the prompt or other sequences of the batch. No buffer grows with the context.
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

/* Whether the query heads form equal groups, one for each KV head. */
qp_status attention_check_heads(const char *op, int64_t n_heads, int64_t n_kv_heads,
                                qp_error *error);

/* The number of the kv_length positions that query i of qo_length sees. The causal mask is aligned
 * at the bottom right: the last query sees all positions. */
int64_t attention_visible(bool causal, int64_t i, int64_t qo_length, int64_t kv_length);

/* The number of pairs of a query and a position that it sees, over one sequence. */
double attention_pairs(bool causal, int64_t qo_length, int64_t kv_length);

#endif
