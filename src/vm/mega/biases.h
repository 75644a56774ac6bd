/* What host and GPU share of the biases in the megakernel's order, and of the kernel that makes it.
 */
#pragma once

#include "op/norm_qkv_rope/pairs.h"
#include "tensor/dtype.h"

/* Vectors as stored, which follow each other as float; of q, k and v by pairs of features
 * (op/norm_qkv_rope/pairs.h), two each. */
typedef struct bias_vectors {
    uint64_t from[3], to; /* addresses; 0: the vector is zero */
    int32_t type[3];      /* dtype */
    int32_t count[3];     /* elements */
    int32_t group;        /* of q, k and v: query heads to a KV head; 0: others */
    int32_t head_dim, interleaved;
} bias_vectors;

/* Where element i of the result comes from. */
typedef struct bias_place {
    int32_t vector, element;
} bias_place;

OP_FN bias_place bias_place_of(const bias_vectors *b, int64_t i)
{
    bias_place p = {0, (int32_t)i};
    if (b->group) {
        int64_t features[2];
        const pair_place at = pair_place_of(i / 2, b->group, b->head_dim / 2);
        pair_features(at.kind, b->interleaved, at.pair, b->head_dim, features);
        p.vector = at.kind;
        p.element = (int32_t)(at.head * b->head_dim + features[i % 2]);
        return p;
    }
    while (p.vector < 2 && p.element >= b->count[p.vector])
        p.element -= b->count[p.vector++];
    return p;
}
