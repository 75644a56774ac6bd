/* Monotonic time. */
#pragma once

#include <stdint.h>

/* Nanoseconds since an arbitrary start; never goes back. */
uint64_t clock_ns(void);
