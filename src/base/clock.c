/* Monotonic time: see clock.h. */
#include "base/clock.h"

#include <time.h>

uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void clock_utc(time_t when, char out[CLOCK_UTC_SIZE])
{
    struct tm utc;
    gmtime_r(&when, &utc);
    strftime(out, CLOCK_UTC_SIZE, "%Y-%m-%dT%H:%M:%SZ", &utc);
}
