/* Recorded times of the megakernel's passes: when each block ran each entry. */
#include "vm/mega/parts.h"

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
        return error_set(error, QP_NO_MEMORY, "a trace of %zu passes is too large: trace fewer",
                         max_passes);
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

/* Fills in times that were not recorded with the adjacent time: an entry that never began to work
 * waited to its end. `before`: when the block's previous entry ended. */
static instruction_timing complete(const mega_timing *t, uint64_t before)
{
    instruction_timing of = t->of;
    if (of.wait == 0) of.wait = before;
    if (of.work == 0) of.work = of.end;
    if (of.signal == 0) of.signal = of.end;
    return of;
}

/* An instruction's timing from those of its entries: from the first's beginning to the last's end.
 */
static void gather(const schedule *s, int block, const mega_timing *entries,
                   instruction_timing *timings)
{
    const instruction *queue = schedule_queue(s, block);
    uint64_t before = 0;
    for (int i = 0; i < mega_entries_before(s, block); i++)
        before = entries++->of.end;
    for (int i = 0; i < s->length[block]; i++) {
        int n = mega_entries_of(s, &queue[i]);
        for (int k = 0; k < n; k++) {
            instruction_timing of = complete(&entries[k], before);
            before = of.end;
            if (k == 0) timings[i] = of;
            timings[i].signal = of.signal;
            timings[i].end = of.end;
        }
        entries += n;
    }
}

static qp_status read_entries(const cuda_mega *m, size_t pass, mega_timing *entries,
                              qp_error *error)
{
    static const char operation[] = "reading the megakernel's times";
    const cuda_device *d = m->executor->device;
    size_t bytes = slots_of(m) * sizeof *entries;
    TRY(cuda_check(
        d->driver->copy_to_host(entries, m->timings.address + pass * bytes, bytes, d->stream),
        operation, error));
    return cuda_device_wait(d, operation, error);
}

qp_status cuda_mega_read_timings(const cuda_mega *m, size_t pass, instruction_timing *timings,
                                 mega_fetching *fetching, qp_error *error)
{
    const schedule *s = &m->schedule;
    mega_timing *entries = malloc(slots_of(m) * sizeof *entries);
    if (!entries) return error_no_memory(error, "the trace", slots_of(m) * sizeof *entries);
    qp_status status = read_entries(m, pass, entries, error);
    for (int b = 0; b < m->n_blocks && status == QP_OK; b++)
        gather(s, b, entries + (size_t)b * (size_t)m->arguments.longest,
               timings + (size_t)b * (size_t)s->longest);
    if (fetching) *fetching = (mega_fetching){0};
    for (size_t i = 0; i < slots_of(m) && fetching && status == QP_OK; i++) {
        fetching->room_ns += (double)entries[i].room_ns / m->n_blocks;
        fetching->memory_ns += (double)entries[i].memory_ns / m->n_blocks;
    }
    free(entries);
    return status;
}

/* ---- passes of a launch -------------------------------------------------------------------- */

/* When the first block of a pass had the token; for the first pass, when it began to wait. */
static uint64_t begin_of(const schedule *s, const instruction_timing *pass, bool first)
{
    uint64_t least = UINT64_MAX;
    for (int w = 0; w < s->options.workers; w++) {
        const instruction_timing *t = &pass[(size_t)w * (size_t)s->longest];
        uint64_t at = first ? t->wait : t->work;
        if (s->length[w] > 0 && at < least) least = at;
    }
    return least;
}

static uint64_t end_of(const schedule *s, const instruction_timing *pass)
{
    uint64_t most = 0;
    for (int w = 0; w < s->options.workers; w++) {
        const instruction_timing *queue = &pass[(size_t)w * (size_t)s->longest];
        uint64_t at = s->length[w] > 0 ? queue[s->length[w] - 1].end : 0;
        if (at > most) most = at;
    }
    return most;
}

static uint64_t within(uint64_t at, uint64_t begin, uint64_t end)
{
    return at < begin ? begin : at > end ? end : at;
}

void cuda_mega_part_passes(const schedule *s, instruction_timing *const *passes, int n,
                           uint64_t *begins)
{
    const size_t places = (size_t)s->options.workers * (size_t)s->longest;
    for (int i = 0; i < n; i++)
        begins[i] = begin_of(s, passes[i], i == 0);
    begins[n] = end_of(s, passes[n - 1]);
    for (int i = 0; i < n; i++) {
        const uint64_t begin = begins[i], end = begins[i + 1];
        for (size_t k = 0; k < places; k++) {
            instruction_timing *t = &passes[i][k];
            *t = (instruction_timing){.wait = within(t->wait, begin, end),
                                      .work = within(t->work, begin, end),
                                      .signal = within(t->signal, begin, end),
                                      .end = within(t->end, begin, end)};
        }
    }
}
