/* rms_norm for products that take x in FP8: its output is stored only so. Shared by host and
 * kernel.
 */
#pragma once

#include "op/device_rows.h"

enum { NORM_F8_MOST = 8192 /* elements of a row, a multiple of 128 */ };

typedef struct norm_f8_rows {
    norm_rows of;
    char *out;     /* (n_rows, n), contiguous, as op/linear/linear_f8.h describes x */
    float *scales; /* (n / group, pitch); by rows: (n_rows) */
    int32_t group, pitch;
} norm_f8_rows;
