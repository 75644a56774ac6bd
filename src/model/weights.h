/* The weights that a model may have, by slot: what weights.def says of each. */
#pragma once

#include <stdbool.h>

typedef enum weight_slot {
#define WEIGHT(SLOT, per, role, rows, columns, gguf) WEIGHT_##SLOT,
#include "model/weights.def"
#undef WEIGHT
    WEIGHT_COUNT
} weight_slot;

typedef struct weight_info {
    const char *name; /* for people, GGUF's without "blk.N." and ".weight": "attn_q" */
    bool per_layer;
    bool per_expert; /* a matrix for each expert of a layer, one after the other */
    bool is_norm;    /* a vector; the others are matrices */
} weight_info;

const weight_info *weight_get_info(weight_slot slot);
