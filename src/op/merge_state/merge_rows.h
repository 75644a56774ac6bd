/* merge_state's aligned rows: declarations shared by host and kernel. See op/device_rows.h. */
#ifndef QUIPU_OP_MERGE_ROWS_H
#define QUIPU_OP_MERGE_ROWS_H

#include "op/device_rows.h"

/* Heads of a multiple of 8 elements, whose eights are a power of two of at most a warp's lanes. */
typedef struct merge_rows {
    device_rows v_a, v_b, v;
    device_rows s_a, s_b, s;      /* F32 */
    int64_t a_head, b_head, head; /* bytes from one head of v_a, v_b, v to the next */
    int64_t begin, end;           /* units */
    int32_t n_heads, eights;      /* eights: of a head */
} merge_rows;

enum { MERGE_THREADS = 256 };

#endif
