/* Times of the CPU machines: operators in parts, and what this computer reaches. See machine_cpu.h.
 */
#include "vm/machine_cpu.h"

#include "base/platform.h"
#include "op/bench/hardware.h"
#include "plan/weights.h"
#include "lower/lower.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void cpu_free_parts(cpu_machine *m)
{
    for (int i = 0; i < m->n_parts; i++)
        parts_destroy(m->parts[i]);
    free(m->parts);
    m->parts = NULL;
    m->n_parts = 0;
    if (m->queues && m->queues->threads) threads_machine_in_parts(m->queues->threads, NULL);
}

static qp_status make_parts(cpu_machine *m, int count, qp_error *error)
{
    const program *program = m->executor->program;
    const int64_t window = program_any_window(program);
    if (window)
        return error_set(error, QP_UNSUPPORTED,
                         "attention that slides over the latest %lld positions is not taken "
                         "apart; choose a context of at most that, or trace whole instructions: "
                         "--exec threads without --parts",
                         (long long)window);
    if (lower_fuses(&program->options))
        return error_set(error, QP_UNSUPPORTED,
                         "fused operators are not taken apart; leave --fuse out, or trace whole "
                         "instructions: --exec threads without --parts");
    m->parts = calloc((size_t)count, sizeof *m->parts);
    if (!m->parts) return error_no_memory(error, "parts", (size_t)count * sizeof *m->parts);
    for (; m->n_parts < count; m->n_parts++)
        TRY(parts_create(m->executor->program, m->part_features, &m->parts[m->n_parts], error));
    return QP_OK;
}

qp_status cpu_time(void *self, const machine_timing *timing, qp_error *error)
{
    cpu_machine *m = self;
    cpu_free_parts(m);
    m->timing = timing ? *timing : (machine_timing){0};
    if (m->timing.max_passes == 0 || !m->timing.sink) return QP_OK;
    const bool threads = m->queues && m->queues->threads;
    const bool serial = m->queues && m->queues->serial;
    if (serial && m->queues->scheduled.schedule.options.skip)
        return error_set(error, QP_UNSUPPORTED,
                         "serial is timed operator by operator, so that what is left out of its "
                         "schedule would run: use --exec threads, or leave --skip, --start-after "
                         "and --stop-after out");
    TRY(make_parts(m, threads ? thread_pool_size(m->pool) : 1, error));
    if (threads) threads_machine_in_parts(m->queues->threads, m->parts);
    return QP_OK;
}

/* The best of a few samples, over as much memory as a pass reads. */
static qp_status limits_of_pool(thread_pool *pool, const cpu_machine *m, machine_profile *out,
                                qp_error *error)
{
    enum { TIMES = 5, LEAST = 16 << 20, MOST = 1 << 30 };
    size_t bytes = (size_t)program_read_bytes(m->executor->program);
    bytes = bytes < LEAST ? LEAST : bytes > MOST ? MOST : bytes;
    while (bytes > LEAST && bytes > platform_free_memory() / 4)
        bytes /= 2;
    buffer memory = {0};
    hardware *hardware = NULL;
    qp_status status = hardware_create(1, m->part_features, pool, &hardware, error);
    if (status == QP_OK) status = buffer_alloc(&memory, bytes, "memory to read", error);
    if (status == QP_OK) memset(memory.data, 1, bytes);
    for (int i = 0; i < TIMES && status == QP_OK; i++) {
        double read = hardware_read(hardware, memory.data, bytes);
        double multiply = hardware_sample(hardware, HARDWARE_FLOAT);
        out->bytes_per_second = fmax(out->bytes_per_second, read);
        out->flops_per_second = fmax(out->flops_per_second, multiply);
    }
    buffer_free(&memory);
    hardware_destroy(hardware);
    return status;
}

qp_status cpu_limits(void *self, machine_profile *out, qp_error *error)
{
    const cpu_machine *m = self;
    *out = (machine_profile){0};
    return limits_of_pool(m->pool, m, out, error);
}

qp_status cpu_limits_of_one(void *self, machine_profile *out, qp_error *error)
{
    const cpu_machine *m = self;
    thread_pool *alone = NULL;
    *out = (machine_profile){0};
    TRY(thread_pool_create(1, &alone, error));
    qp_status status = limits_of_pool(alone, m, out, error);
    thread_pool_destroy(alone);
    return status;
}
