/* Records of the megakernel's passes: see records.h. */
#include "vm/mega/records.h"

#include <stdlib.h>

qp_status mega_place_records(const schedule *s, machine_record *records, int n, uint64_t now,
                             qp_error *error)
{
    const size_t places = (size_t)s->options.workers * (size_t)s->longest;
    instruction_timing **timings = calloc((size_t)n, sizeof *timings);
    uint64_t *begins = calloc((size_t)n + 1, sizeof *begins);
    bool enough = timings && begins;
    for (int i = 0; enough && i < n; i++)
        timings[i] = records[i].timings;
    if (enough) cuda_mega_part_passes(s, timings, n, begins);
    const uint64_t shift = enough ? now - begins[n] : 0;
    for (int i = 0; enough && i < n; i++) {
        records[i].begin = begins[i] + shift;
        records[i].end = begins[i + 1] + shift;
        records[i].timed = true;
        for (size_t k = 0; k < places; k++) {
            instruction_timing *t = &timings[i][k];
            *t = (instruction_timing){.wait = t->wait + shift,
                                      .work = t->work + shift,
                                      .signal = t->signal + shift,
                                      .end = t->end + shift};
        }
    }
    free(timings);
    free(begins);
    return enough ? QP_OK
                  : error_no_memory(error, "the trace's passes", (size_t)n * sizeof *begins);
}

qp_status mega_read_records(const cuda_mega *m, size_t first, machine_record *records, int n,
                            uint64_t now, qp_error *error)
{
    for (int i = 0; i < n; i++) {
        mega_fetching fetching;
        TRY(cuda_mega_read_timings(m, first + (size_t)i, records[i].timings, &fetching, error));
        records[i].room_ns = fetching.room_ns;
        records[i].memory_ns = fetching.memory_ns;
    }
    return mega_place_records(&m->schedule, records, n, now, error);
}
