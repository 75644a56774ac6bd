/* Masks of attention: see mask.h. */
#include "op/attention/mask.h"

#include "base/hash.h"
#include "op/attention/ragged.h"

#include <math.h>
#include <string.h>

/* Words of the masks of sequences [0, n). */
static int64_t words_before(const attention_masks *masks, int64_t n)
{
    int64_t words = 0;
    for (int64_t b = 0; b < n; b++)
        words += (indptr_count(masks->qo_indptr, b) * masks->kv_length(masks->call, b) + 31) / 32;
    return words;
}

const uint32_t *attention_mask_of(const attention_masks *masks, int64_t b)
{
    if (!masks->mask->rank) return NULL;
    return (const uint32_t *)masks->mask->data + words_before(masks, b);
}

qp_status attention_masks_check(const char *op, const attention_masks *masks, qp_error *error)
{
    if (!masks->mask->data || !masks->qo_indptr->data) return QP_OK;
    int64_t needed = words_before(masks, indptr_sequences(masks->qo_indptr));
    if (masks->mask->shape[0] >= needed) return QP_OK;
    return error_set(error, QP_INVALID,
                     "%s: the masks of these sequences take %lld words of 32 bits, mask has %lld",
                     op, (long long)needed, (long long)masks->mask->shape[0]);
}

qp_status attention_check_limits(const char *op, double window, double soft_cap, qp_error *error)
{
    if (!(window >= 0 && window < 0x1p53 && window == floor(window)))
        return error_set(error, QP_INVALID,
                         "%s: window must be a whole number of positions, 0 for all, found %g", op,
                         window);
    if (!(soft_cap >= 0 && isfinite(soft_cap)))
        return error_set(error, QP_INVALID,
                         "%s: logits_soft_cap must be positive, or 0 for none, found %g", op,
                         soft_cap);
    return QP_OK;
}

/* One row: bits [first, first + count) of the words. */
static void fill_row(uint32_t *words, int64_t first, int64_t count, uint64_t seed)
{
    uint64_t kind = hash_random(seed, 0, 0);
    int64_t seen = kind % 4 == 0   ? 0
                   : kind % 4 == 1 ? (int64_t)(kind / 4 % (uint64_t)(count + 1))
                                   : count;
    for (int64_t j = 0; j < seen; j++) {
        bool set = kind % 4 == 1 || hash_random(seed, 1, (uint64_t)j) % 3;
        words[(first + j) / 32] |= (uint32_t)set << (first + j) % 32;
    }
}

void attention_masks_fill(const attention_masks *masks, uint64_t seed)
{
    const tensor *qo_indptr = masks->qo_indptr;
    if (!masks->mask->rank || attention_masks_check("", masks, NULL) != QP_OK) return;
    for (int64_t b = 0; b < indptr_sequences(qo_indptr); b++) {
        uint32_t *words = (uint32_t *)masks->mask->data + words_before(masks, b);
        int64_t kv_length = masks->kv_length(masks->call, b), n = indptr_count(qo_indptr, b);
        memset(words, 0, (size_t)((n * kv_length + 31) / 32) * sizeof *words);
        for (int64_t i = 0; i < n; i++)
            fill_row(words, i * kv_length, kv_length, hash_random(seed, (uint64_t)b, (uint64_t)i));
    }
}
