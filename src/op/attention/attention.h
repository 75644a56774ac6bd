/* The attention of one head of one token: softmax(q K^T * sm_scale) V over the first positions of
 * one sequence. Ragged prefill, paged prefill and paged decode share it.
 *
 * Positions are processed in order, in tiles counted from position 0, with a running maximum and
 * sum in float64. The result depends only on q and on the keys and values seen, not on pages,
 * chunks of the prompt or other sequences of the batch. No buffer grows with the context.
 */
#pragma once

#include "base/status.h"
#include "tensor/tensor.h"

#include <stdbool.h>
#include <stddef.h>

/* Keys and values of one sequence. A ragged sequence is one page of all its tokens. */
typedef struct attention_source {
    tensor k, v;          /* (n_pages, page_size, n_kv_heads, head_dim), any strides */
    const int32_t *pages; /* page of each page_size positions */
} attention_source;

/* What decides which positions the queries of a sequence see. */
typedef struct attention_rule {
    bool causal;          /* none after the query's own; without effect where there is a mask */
    int64_t window;       /* how many of the latest, with the query's own; 0: all */
    const uint32_t *mask; /* (qo_length * kv_length) bits, row by row: bit b of word w is number
                           * 32 w + b; or NULL */
} attention_rule;

/* The positions that one query sees: those of [first, end) whose bit is set. */
typedef struct attention_range {
    int64_t first, end;
    const uint32_t *mask; /* position j has the bit number first_bit + j; NULL: all are set */
    int64_t first_bit;
} attention_range;

/* One head of one token: its tensors q and out (may be q) and where its log-sum-exp goes. */
typedef struct attention_row {
    const tensor *q, *out; /* (n, n_heads, head_dim) */
    const tensor *lse;     /* (n, n_heads), any strides; rank 0: not wanted */
    int64_t token, head;
    attention_range range; /* positions of the source */
    double sm_scale;       /* 0: 1 / sqrt(head_dim) */
    double soft_cap;       /* scores s become soft_cap * tanh(s / soft_cap); 0: they stay */
} attention_row;

/* scratch: 3 * head_dim doubles; attention_tile_scratch() of tile.h is enough. */
void attention_compute(const attention_source *source, const attention_row *row, void *scratch);

/* Whether the query heads form equal groups, one for each KV head. */
qp_status attention_check_heads(const char *op, int64_t n_heads, int64_t n_kv_heads,
                                qp_error *error);

/* Whether a query sees position j of its range. */
static inline bool attention_sees(const attention_range *range, int64_t j)
{
    if (j < range->first || j >= range->end) return false;
    int64_t bit = range->first_bit + j;
    return !range->mask || range->mask[bit / 32] >> bit % 32 & 1;
}

/* The number of the kv_length positions that query i of qo_length sees. The causal mask is aligned
 * at the bottom right: the last query sees all positions. */
int64_t attention_visible(bool causal, int64_t i, int64_t qo_length, int64_t kv_length);

/* The positions that query i of qo_length sees by a rule; its own is kv_length - qo_length + i. */
attention_range attention_range_of(const attention_rule *rule, int64_t i, int64_t qo_length,
                                   int64_t kv_length);

/* The number of pairs of a query and a position that it sees, over one sequence. */
double attention_pairs(const attention_rule *rule, int64_t qo_length, int64_t kv_length);
