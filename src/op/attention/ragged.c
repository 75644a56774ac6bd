/* Index tensors of ragged and paged operators: see ragged.h. */
#include "op/attention/ragged.h"

#include "base/hash.h"

#include <string.h>

enum { STREAM_CUT = 1, STREAM_PAGE, STREAM_LAST };

int64_t indptr_find(const tensor *indptr, int64_t i)
{
    const int32_t *border = indptr->data;
    int64_t low = 0, high = indptr_sequences(indptr); /* border[low] <= i < border[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (border[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int64_t page_table_length(const page_table *table, int64_t b)
{
    const int32_t *last = table->kv_last_page_len->data;
    int64_t pages = indptr_count(table->kv_indptr, b);
    return pages ? (pages - 1) * table->k_cache->shape[1] + last[b] : 0;
}

double page_table_total(const page_table *table)
{
    double total = 0;
    for (int64_t b = 0; b < indptr_sequences(table->kv_indptr); b++)
        total += (double)page_table_length(table, b);
    return total;
}

op_columns page_columns(const tensor *cache, int64_t begin, int64_t end)
{
    int64_t head = cache->shape[1] * cache->shape[3];
    if (cache->stride[2] <= cache->stride[1]) return (op_columns){0, head * cache->shape[2]};
    return (op_columns){begin * head, end * head};
}

qp_status indptr_check(const char *op, const char *name, const tensor *indptr, int64_t total,
                       qp_error *error)
{
    const int32_t *border = indptr->data;
    int64_t n = indptr_sequences(indptr);
    if (!border) return QP_OK;
    if (border[0] != 0)
        return error_set(error, QP_INVALID, "%s: %s[0] must be 0, found %d", op, name, border[0]);
    for (int64_t b = 0; b < n; b++) {
        if (border[b + 1] < border[b])
            return error_set(error, QP_INVALID, "%s: %s must not fall, found %d after %d at %lld",
                             op, name, border[b + 1], border[b], (long long)b + 1);
    }
    if (border[n] != total)
        return error_set(error, QP_INVALID, "%s: %s must end at %lld, found %d", op, name,
                         (long long)total, border[n]);
    return QP_OK;
}

qp_status page_table_check(const char *op, const page_table *table, qp_error *error)
{
    const int32_t *indices = table->kv_indices->data, *last = table->kv_last_page_len->data;
    int64_t n_indices = table->kv_indices->shape[0];
    int64_t n_pages = table->k_cache->shape[0], page_size = table->k_cache->shape[1];
    if (!page_table_has_data(table)) return QP_OK;

    TRY(indptr_check(op, "kv_indptr", table->kv_indptr, n_indices, error));
    for (int64_t i = 0; indices && i < n_indices; i++) {
        if (indices[i] < 0 || indices[i] >= n_pages)
            return error_set(error, QP_INVALID, "%s: kv_indices[%lld] = %d, there are %lld pages",
                             op, (long long)i, indices[i], (long long)n_pages);
    }
    for (int64_t b = 0; b < indptr_sequences(table->kv_indptr); b++) {
        int64_t least = indptr_count(table->kv_indptr, b) > 0, most = least ? page_size : 0;
        if (last[b] < least || last[b] > most)
            return error_set(error, QP_INVALID,
                             "%s: kv_last_page_len[%lld] must be in %lld .. %lld, found %d", op,
                             (long long)b, (long long)least, (long long)most, last[b]);
    }
    return QP_OK;
}

/* Adds `total` to counts[n]: evenly where it divides evenly, else in random portions. */
static void deal(int32_t *counts, int64_t n, int64_t total, uint64_t seed)
{
    for (int64_t b = 0, left = total; b < n; b++) {
        uint64_t bits = hash_random(seed, STREAM_CUT, (uint64_t)b);
        int64_t part = (int64_t)(bits % (uint64_t)(left + 1));
        if (total % n == 0) part = total / n;
        if (b == n - 1) part = left;
        counts[b] += (int32_t)part;
        left -= part;
    }
}

/* Turns border[1 ..] from counts into borders. */
static void accumulate(int32_t *border, int64_t n)
{
    border[0] = 0;
    for (int64_t b = 0; b < n; b++)
        border[b + 1] += border[b];
}

void indptr_fill(const tensor *indptr, int64_t total, uint64_t seed)
{
    int32_t *border = indptr->data;
    int64_t n = indptr_sequences(indptr);
    for (int64_t b = 0; b < n; b++)
        border[b + 1] = 0;
    deal(border + 1, n, total, seed);
    accumulate(border, n);
}

/* The number of pages that the new tokens of a sequence need at least. */
static int64_t pages_needed(const tensor *qo_indptr, int64_t b, int64_t page_size)
{
    return qo_indptr ? (indptr_count(qo_indptr, b) + page_size - 1) / page_size : 0;
}

static int64_t greatest_common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A permutation of the pages without memory: i -> (start + i * step) mod n_pages. */
static void shuffle_pages(const page_table *table, uint64_t seed)
{
    int32_t *indices = table->kv_indices->data;
    int64_t n_pages = table->k_cache->shape[0];
    if (n_pages == 0) return;
    int64_t start = (int64_t)(hash_random(seed, STREAM_PAGE, 0) % (uint64_t)n_pages);
    int64_t step = 1 + (int64_t)(hash_random(seed, STREAM_PAGE, 1) % (uint64_t)n_pages);
    while (greatest_common_divisor(step, n_pages) != 1)
        step++;
    for (int64_t i = 0; i < table->kv_indices->shape[0]; i++)
        indices[i] = (int32_t)((start + i * step) % n_pages);
}

void page_table_fill(const page_table *table, const tensor *qo_indptr, uint64_t seed)
{
    int32_t *border = table->kv_indptr->data, *last = table->kv_last_page_len->data;
    int64_t n = indptr_sequences(table->kv_indptr), page_size = table->k_cache->shape[1];
    int64_t n_indices = table->kv_indices->shape[0], needed = 0;
    for (int64_t b = 0; b < n; b++)
        needed += pages_needed(qo_indptr, b, page_size);
    if (needed > n_indices) {
        qo_indptr = NULL;
        needed = 0;
    }
    for (int64_t b = 0; b < n; b++)
        border[b + 1] = (int32_t)pages_needed(qo_indptr, b, page_size);
    deal(border + 1, n, n_indices - needed, seed);
    for (int64_t b = 0; b < n; b++) {
        int64_t least = 1, tokens = qo_indptr ? indptr_count(qo_indptr, b) : 0;
        if (border[b + 1] > 0 && tokens > (border[b + 1] - 1) * page_size)
            least = tokens - (border[b + 1] - 1) * page_size;
        uint64_t bits = hash_random(seed, STREAM_LAST, (uint64_t)b);
        last[b] = (int32_t)(least + (int64_t)(bits % (uint64_t)(page_size - least + 1)));
        if (border[b + 1] == 0) last[b] = 0;
    }
    accumulate(border, n);
    shuffle_pages(table, seed);
}

qp_status paged_check(const char *op, const tensor *q, const tensor *qo_indptr,
                      const page_table *table, qp_error *error)
{
    TRY(attention_check_heads(op, q->shape[1], table->k_cache->shape[2], error));
    TRY(indptr_check(op, "qo_indptr", qo_indptr, q->shape[0], error));
    return page_table_check(op, table, error);
}

double paged_derive(const tensor *qo_indptr, const page_table *table, const attention_rule *rule,
                    const char *axis)
{
    if (!qo_indptr->data || !page_table_has_data(table)) return 0;
    if (strcmp(axis, "kv_tokens") == 0) return page_table_total(table);
    double pairs = 0;
    for (int64_t b = 0; b < indptr_sequences(qo_indptr); b++)
        pairs += attention_pairs(rule, indptr_count(qo_indptr, b), page_table_length(table, b));
    return pairs;
}
