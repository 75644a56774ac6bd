/* The parameters of merge_state's kernel, shared by host and kernel: see op/device_rows.h. */
#pragma once

#include "op/device_rows.h"

typedef struct merge_rows {
    device_rows v_a, v_b, v, s_a, s_b, s; /* strides: of tokens */
    int64_t a_head, b_head, v_head;       /* bytes from one head to the next */
    uint32_t begin, end;                  /* eights of the call's heads */
    uint32_t shift;                       /* a head has 2^shift eights, at most those of a warp */
    uint32_t n_heads, inverse;            /* inverse: 2^32 / n_heads, rounded up; 0 for one head */
} merge_rows;
enum { MERGE_THREADS = 128 };
