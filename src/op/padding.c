/* Where the tokens of a padded batch lie: see padding.h. */
#include "op/padding.h"

#include "base/hash.h"

int64_t padding_offsets(const int32_t *lengths, int64_t bs, int64_t max_length, int32_t *offsets)
{
    int64_t token = 0, padding = 0;
    for (int64_t b = 0; b < bs; b++) {
        for (int32_t i = 0; i < lengths[b]; i++)
            offsets[token++] = (int32_t)padding;
        padding += max_length - lengths[b];
    }
    return token;
}

int64_t padding_token(const int32_t *offsets, int64_t n_tokens, int64_t slot)
{
    int64_t low = 0, high = n_tokens; /* if a token has the slot, it is in [low, high) */
    while (low < high) {
        int64_t middle = low + (high - low) / 2, at = middle + offsets[middle];
        if (at == slot) return middle;
        if (at < slot)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

qp_status padding_check(const char *op, const tensor *offsets, int64_t bs, int64_t max_length,
                        qp_error *error)
{
    const int32_t *values = offsets->data;
    int32_t before = 0;
    for (int64_t t = 0; values && t < offsets->shape[0]; t++) {
        if (values[t] < before)
            return error_set(error, QP_INVALID,
                             "%s: padding_offsets[%lld] is %d, less than the %d before it", op,
                             (long long)t, values[t], before);
        before = values[t];
        if (t + before >= bs * max_length)
            return error_set(error, QP_INVALID,
                             "%s: padding_offsets[%lld] = %d puts the token outside the %lld slots",
                             op, (long long)t, before, (long long)(bs * max_length));
    }
    return QP_OK;
}

void padding_random_offsets(uint64_t seed, const tensor *offsets, int64_t bs, int64_t max_length)
{
    int32_t *offset = offsets->data;
    int64_t left = offsets->shape[0], padding = 0;
    for (int64_t b = 0; b < bs; b++) {
        /* At least what the following sequences cannot hold, at most what remains. */
        int64_t after = (bs - b - 1) * max_length;
        int64_t least = left > after ? left - after : 0;
        int64_t most = left < max_length ? left : max_length;
        uint64_t bits = hash_random(seed, 1, (uint64_t)b);
        int64_t length = least + (int64_t)(bits % (uint64_t)(most - least + 1));
        for (int64_t i = 0; i < length; i++)
            *offset++ = (int32_t)padding;
        padding += max_length - length;
        left -= length;
    }
}

qp_status index_check(const char *op, const char *what, const tensor *values, int64_t limit,
                      qp_error *error)
{
    const int32_t *value = values->data;
    for (int64_t i = 0; value && i < values->shape[0]; i++) {
        if (value[i] < 0 || value[i] >= limit)
            return error_set(error, QP_INVALID, "%s: %s[%lld] is %d, expected 0 .. %lld", op, what,
                             (long long)i, value[i], (long long)(limit - 1));
    }
    return QP_OK;
}

qp_status padding_check_slots(const char *op, const tensor *slots, int64_t bs, int64_t n_slots,
                              qp_error *error)
{
    if (slots->rank) return index_check(op, "slots", slots, n_slots, error);
    if (bs <= n_slots) return QP_OK;
    return error_set(error, QP_INVALID,
                     "%s: without slots the cache must have room for all %lld sequences, it has "
                     "room for %lld",
                     op, (long long)bs, (long long)n_slots);
}
