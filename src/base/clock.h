/* Monotonic time. */
#ifndef QUIPU_BASE_CLOCK_H
#define QUIPU_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds since an arbitrary start; never goes back. */
uint64_t clock_ns(void);

#endif
