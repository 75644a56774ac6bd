/* Plain reads beside what is timed: see read_speed.h. */
#include "inspect/read_speed.h"

#include "base/cpu.h"
#include "base/platform.h"
#include "op/bench/hardware.h"

enum {
    READ_BYTES = 256 << 20, /* more than the caches */
    SAMPLES = 4,            /* one after the other, so that a short quiet moment does not count */
};

qp_status read_speed_open(read_speed *out, thread_pool *all, thread_pool *one, qp_error *error)
{
    *out = (read_speed){0};
    if (platform_free_memory() < 8 * (uint64_t)READ_BYTES) return QP_OK;
    TRY(hardware_create(READ_BYTES, cpu_features(0), all, &out->all, error));
    return hardware_create(READ_BYTES, cpu_features(0), one, &out->one, error);
}

void read_speed_close(read_speed *speed)
{
    hardware_destroy(speed->all);
    hardware_destroy(speed->one);
    *speed = (read_speed){0};
}

static double sample(hardware *hardware)
{
    double seconds = 0; /* for a byte of each sample */
    if (!hardware) return 0;
    for (int i = 0; i < SAMPLES; i++)
        seconds += 1 / hardware_sample(hardware, HARDWARE_READ);
    return SAMPLES / seconds;
}

cost_rates read_speed_now(const read_speed *speed, bool all, bool one)
{
    return (cost_rates){all ? sample(speed->all) : 0, one ? sample(speed->one) : 0};
}

cost_rates read_speed_between(cost_rates before, cost_rates after)
{
    return (cost_rates){(before.all + after.all) / 2, (before.one + after.one) / 2};
}
