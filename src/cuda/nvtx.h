/* NVTX ranges, which profilers such as Nsight show on the thread that made them.
 *
 * NVIDIA's library for them is opened at run time; without it these functions do nothing, and
 * without a profiler a range costs some nanoseconds.
 */
#pragma once

#include <stdbool.h>

/* Whether the library is there, so that a caller need not make names for nothing. */
bool nvtx_is_open(void);

/* Begins a range inside those of this thread that have not ended; ends the innermost one. */
void nvtx_begin(const char *name);
void nvtx_end(void);
