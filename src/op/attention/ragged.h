/* Index tensors of ragged and paged operators, in FlashInfer's meaning: checks of their contents,
 * lookups, and contents for test calls.
 *
 * Borders: indptr[n_sequences + 1] starts at 0 and never falls; sequence b has the entries
 * [indptr[b], indptr[b + 1]). Page table: sequence b's keys and values lie in the pages
 * kv_indices[kv_indptr[b] .. kv_indptr[b + 1]), in order; all are full but the last, which holds
 * kv_last_page_len[b] in 1 .. page_size (0 when the sequence has no page).
 */
#pragma once

#include "base/status.h"
#include "op/attention/attention.h"
#include "op/op.h"
#include "tensor/tensor.h"

#include <stdbool.h>
#include <stdint.h>

/* Views of one page table and its cache. */
typedef struct page_table {
    const tensor *kv_indptr;        /* (n_sequences + 1) */
    const tensor *kv_indices;       /* (n_kv_indices) */
    const tensor *kv_last_page_len; /* (n_sequences) */
    const tensor *k_cache;          /* (n_pages, page_size, n_kv_heads, head_dim) */
} page_table;

/* The same tensors as operators describe them. */
#define TENSOR_QO_INDPTR                                                                           \
    {                                                                                              \
        "qo_indptr", OP_IN, OP_TYPE(I32), "n_sequences + 1", false,                                \
            "sequence b has the tokens qo_indptr[b] .. qo_indptr[b + 1] - 1"                       \
    }
#define TENSOR_KV_INDPTR                                                                           \
    {                                                                                              \
        "kv_indptr", OP_IN, OP_TYPE(I32), "n_sequences + 1", false,                                \
            "sequence b has the entries kv_indptr[b] .. kv_indptr[b + 1] - 1 of kv_indices"        \
    }
#define TENSOR_KV_INDICES                                                                          \
    {                                                                                              \
        "kv_indices", OP_IN, OP_TYPE(I32), "n_kv_indices", false,                                  \
            "the pages of each sequence, in the order of positions"                                \
    }
#define TENSOR_KV_LAST_PAGE_LEN(which)                                                             \
    {                                                                                              \
        "kv_last_page_len", OP_IN, OP_TYPE(I32), "n_sequences", false,                             \
            "positions in use in the sequence's last page, " which "; 0 without pages"             \
    }
#define TENSOR_K_CACHE(direction)                                                                  \
    {                                                                                              \
        "k_cache", direction, OP_CACHES, "n_pages, page_size, n_kv_heads, head_dim", false,        \
            "any strides of pages, positions and heads: NHD storage has heads inside positions, "  \
            "HND positions inside heads; the shape is the same"                                    \
    }
#define TENSOR_V_CACHE(direction)                                                                  \
    {                                                                                              \
        "v_cache", direction, OP_CACHES, "n_pages, page_size, n_kv_heads, head_dim", false,        \
            "as k_cache"                                                                           \
    }

static inline int64_t indptr_sequences(const tensor *indptr)
{
    return indptr->shape[0] - 1;
}

/* Entries of sequence b. */
static inline int64_t indptr_count(const tensor *indptr, int64_t b)
{
    const int32_t *border = (const int32_t *)indptr->data;
    return border[b + 1] - border[b];
}

/* The sequence that entry `i` belongs to. */
int64_t indptr_find(const tensor *indptr, int64_t i);

/* Tokens in the cache of sequence b. */
int64_t page_table_length(const page_table *table, int64_t b);

/* Tokens in the caches of all sequences. */
double page_table_total(const page_table *table);

/* Whether the table's contents are known: a plan binds and costs calls without data. */
static inline bool page_table_has_data(const page_table *table)
{
    return table->kv_indptr->data && table->kv_last_page_len->data;
}

/* The pages of sequence b. */
static inline const int32_t *page_table_pages(const page_table *table, int64_t b)
{
    return (const int32_t *)table->kv_indices->data + ((const int32_t *)table->kv_indptr->data)[b];
}

/* Where the heads [begin, end) lie in a page of a cache (n_pages, page_size, n_kv_heads, head_dim),
 * in elements in the order of memory. The whole page where heads lie inside positions. */
op_columns page_columns(const tensor *cache, int64_t begin, int64_t end);

/* Checks that the borders start at 0, never fall and end at `total`; QP_INVALID names operator and
 * tensor. Views without data pass: a plan binds its calls before the batch is known. */
qp_status indptr_check(const char *op, const char *name, const tensor *indptr, int64_t total,
                       qp_error *error);

/* Checks that every page exists and that every last page's length is possible. */
qp_status page_table_check(const char *op, const page_table *table, qp_error *error);

/* The check() of an operator with ragged queries q (n_tokens, n_heads, head_dim) over a page table.
 */
qp_status paged_check(const char *op, const tensor *q, const tensor *qo_indptr,
                      const page_table *table, qp_error *error);

/* The derive() of these operators: "kv_tokens", or the pairs of a query and a key that it sees; 0
 * without data. */
double paged_derive(const tensor *qo_indptr, const page_table *table, const attention_rule *rule,
                    const char *axis);

/* Test contents: distributes `total` entries over the sequences, evenly where that is possible,
 * else cut at random places, so that some sequences may be empty. */
void indptr_fill(const tensor *indptr, int64_t total, uint64_t seed);

/* Test contents: uses all kv_indices, with pages in shuffled order. Each sequence gets as many
 * pages as its tokens of qo_indptr (NULL: none) need, and the rest evenly or at random as
 * indptr_fill() does. Where there are too few pages for the tokens, the tokens are ignored. */
void page_table_fill(const page_table *table, const tensor *qo_indptr, uint64_t seed);
