/* What the megakernel records of its passes: see cuda_mega.h. */
#include "generate/cuda_mega_parts.h"

#include "base/checked.h"

#include <stdlib.h>

static size_t slots_of(const cuda_mega *m)
{
    return (size_t)m->n_blocks * (size_t)m->arguments.longest;
}

qp_status cuda_mega_time(cuda_mega *m, size_t max_passes, qp_error *error)
{
    size_t bytes;
    cuda_mega_time_no_more(m);
    if (!checked_mul(slots_of(m) * sizeof(mega_timing), max_passes, &bytes))
        return error_set(error, QP_NO_MEMORY, "a trace of %zu passes is too large", max_passes);
    TRY(cuda_buffer_alloc(m->executor->device, bytes, "the trace", &m->timings, error));
    m->max_timed = max_passes;
    return QP_OK;
}

void cuda_mega_time_no_more(cuda_mega *m)
{
    cuda_buffer_free(m->executor->device, &m->timings);
    m->n_timed = m->max_timed = 0;
}

bool mega_begin_timing(cuda_mega *m, int n_passes)
{
    bool room = (size_t)n_passes <= m->max_timed - m->n_timed;
    size_t at = m->n_timed * slots_of(m) * sizeof(mega_timing);
    m->arguments.timings = m->timings.address && room ? m->timings.address + at : 0;
    return m->arguments.timings != 0;
}

/* Moments that an entry does not have are those beside them; `before`: the block's last end. */
static instruction_timing complete(const mega_timing *t, uint64_t before)
{
    instruction_timing of = t->of;
    if (of.wait == 0) of.wait = before;
    if (of.work == 0) of.work = of.wait;
    if (of.signal == 0) of.signal = of.end;
    return of;
}

qp_status cuda_mega_read_timings(const cuda_mega *m, size_t pass, instruction_timing *timings,
                                 mega_fetching *fetching, qp_error *error)
{
    static const char operation[] = "reading the megakernel's times";
    const cuda_device *d = m->executor->device;
    size_t slots = slots_of(m), bytes = slots * sizeof(mega_timing);
    mega_timing *memory = malloc(bytes);
    if (!memory) return error_no_memory(error, "the trace", bytes);
    qp_status status = cuda_check(
        d->driver->copy_to_host(memory, m->timings.address + pass * bytes, bytes, d->stream),
        operation, error);
    if (status == QP_OK) status = cuda_device_wait(d, operation, error);
    for (size_t i = 0; i < slots && status == QP_OK; i++) {
        bool first = i % (size_t)m->arguments.longest == 0;
        timings[i] = complete(&memory[i], first ? 0 : timings[i - 1].end);
        if (fetching) fetching[i] = (mega_fetching){memory[i].room_ns, memory[i].memory_ns};
    }
    free(memory);
    return status;
}
