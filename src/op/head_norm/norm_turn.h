/* Parameters of head_norm, rope and kv_append in one launch (norm_turn.cu). */
#pragma once

#include "op/device_rows.h"

enum { NORM_TURN_WARPS = 4, NORM_TURN_HEAD = 128 /* elements of a head at most: four a lane */ };

typedef struct norm_turn {
    rope_rows rope; /* of whole heads in float32, by halves */
    append_rows append;
    device_rows q_weight, k_weight; /* one row each */
    float eps;
} norm_turn;
