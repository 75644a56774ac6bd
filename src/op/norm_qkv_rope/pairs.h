/* The units of norm_qkv_rope: pairs of output features, in the order of KV heads. The same
 * arithmetic on every machine.
 *
 *     unit   0 ..                                              (group + 2) * half - 1
 *            | query head 0 | ... | query head group - 1 | key head 0 | value head 0 |  KV head 0
 *            | query head group | ...                                                |  KV head 1
 *
 * A head has half = head_dim / 2 pairs, a KV head group = n_heads / n_kv_heads query heads. A pair
 * is the two features that RoPE turns together, (i, i + rotary_dim / 2) or interleaved (2i, 2i +
 * 1); features that do not turn, and all of a value head, pair with their neighbour: (2i, 2i + 1).
 */
#pragma once

#include "op/portable.h"

#include <stdint.h>

enum { PAIR_QUERY, PAIR_KEY, PAIR_VALUE };

typedef struct pair_place {
    int kind;     /* PAIR_QUERY, PAIR_KEY or PAIR_VALUE */
    int64_t head; /* of its kind */
    int64_t pair; /* of the head */
} pair_place;

OP_FN pair_place pair_place_of(int64_t unit, int64_t group, int64_t half)
{
    int64_t kv_head = unit / ((group + 2) * half), rest = unit % ((group + 2) * half);
    int64_t member = rest / half;
    pair_place place = {PAIR_QUERY, kv_head * group + member, rest % half};
    if (member >= group) {
        place.kind = member == group ? PAIR_KEY : PAIR_VALUE;
        place.head = kv_head;
    }
    return place;
}

/* Whether RoPE turns the pair's features. */
OP_FN int pair_turns(int kind, int64_t pair, int64_t rotary_dim)
{
    return kind != PAIR_VALUE && 2 * pair < rotary_dim;
}

/* The features of a pair, of those of its head. */
OP_FN void pair_features(int kind, int interleaved, int64_t pair, int64_t rotary_dim,
                         int64_t features[2])
{
    int apart = !interleaved && pair_turns(kind, pair, rotary_dim);
    features[0] = apart ? pair : 2 * pair;
    features[1] = apart ? pair + rotary_dim / 2 : 2 * pair + 1;
}

/* The features of the pairs [begin, end) of a head as ranges, at most three, without empty ones;
 * the number of them. */
OP_FN int pair_ranges(int kind, int interleaved, int64_t begin, int64_t end, int64_t rotary_dim,
                      int64_t ranges[3][2])
{
    int64_t half = kind == PAIR_VALUE || interleaved ? 0 : rotary_dim / 2, n = 0;
    int64_t apart = end < half ? end : half, beside = begin > half ? begin : half;
    if (begin < apart) {
        ranges[0][0] = begin;
        ranges[0][1] = apart;
        ranges[1][0] = begin + half;
        ranges[1][1] = apart + half;
        n = 2;
    }
    if (beside < end) {
        ranges[n][0] = 2 * beside;
        ranges[n++][1] = 2 * end;
    }
    return (int)n;
}
