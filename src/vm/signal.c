/* Measures what a signal costs: see signal.h. */
#include "vm/signal.h"

#include "base/clock.h"
#include "vm/threads.h"

#include <stdlib.h>

/* The schedule is rounds of noops: in each round all workers signal, and in the next all wait for
 * these signals. A pass is shorter than a time slice of a busy system, so the fastest of many
 * passes was not interrupted. */
qp_status threads_measure_signal(thread_pool *pool, double *ns, qp_error *error)
{
    enum { ROUNDS = 200, LEAST_PASSES = 50, LEAST_NS = 500000000 };
    const int workers = thread_pool_size(pool);
    const int64_t sizes[AXES] = {0};
    schedule s = {.options.workers = workers,
                  .longest = ROUNDS,
                  .n_counters = ROUNDS + 1,
                  .instructions = calloc((size_t)workers * ROUNDS, sizeof(instruction)),
                  .length = arena_alloc(&s.memory, (size_t)workers, sizeof(int32_t)),
                  .per_pass = arena_alloc(&s.memory, ROUNDS + 1, sizeof(uint32_t))};
    threads_machine *machine = NULL;
    bound_schedule setup = {.schedule = &s};
    qp_status status = QP_OK;
    if (!s.instructions || !s.length || !s.per_pass)
        status = error_no_memory(error, "the measurement", (size_t)workers * ROUNDS);
    for (int w = 0; status == QP_OK && w < workers; w++) {
        s.length[w] = ROUNDS;
        for (int i = 0; i < ROUNDS; i++) {
            s.per_pass[i + 1] = (uint32_t)workers;
            s.instructions[w * ROUNDS + i] =
                (instruction){.opcode = INSTRUCTION_NOOP,
                              .waits = {{(uint32_t)i, i ? (uint32_t)workers : 0}},
                              .signal = (uint32_t)i + 1};
        }
    }
    if (status == QP_OK) status = threads_machine_create(&setup, pool, 0, &machine, error);
    double best = 0;
    uint64_t start = clock_ns();
    for (int pass = 0; status == QP_OK; pass++) {
        uint64_t begin = clock_ns();
        if (pass >= LEAST_PASSES && begin - start > LEAST_NS) break;
        status = threads_machine_run(machine, sizes, NULL, error);
        double each = (double)(clock_ns() - begin) / ROUNDS;
        if (pass == 0 || each < best) best = each;
    }
    *ns = best;
    threads_machine_destroy(machine);
    schedule_free(&s);
    return status;
}
