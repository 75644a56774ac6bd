/* Monotonic time, and the time of day as a text. */
#pragma once

#include <stdint.h>
#include <time.h>

/* Nanoseconds since an arbitrary start; never goes back. */
uint64_t clock_ns(void);

/* "2026-11-30T12:00:00Z" */
enum { CLOCK_UTC_SIZE = 32 };
void clock_utc(time_t when, char out[CLOCK_UTC_SIZE]);
