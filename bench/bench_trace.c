/* bench_trace: what recording costs a forward pass of one token, recorded and other passes in turn.
 *
 *   bench_trace MODEL [THREADS [PASSES]]
 */
#include "base/clock.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CONTEXT = 64 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What a pass took; processor time is not disturbed by other programs, but grows with waiting. */
typedef struct sample {
    double wall, processor; /* ns */
} sample;

static double processor_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* One pass after CONTEXT - 1 tokens. */
static qp_status time_pass(qp_session *session, qp_trace *trace, sample *out, qp_error *error)
{
    const int32_t token = 1;
    qp_input input = {.session = session, .tokens = &token, .count = 1};
    session->engine->trace = trace;
    if (trace) trace->n_passes = 0; /* the same memory again */
    qp_session_truncate(session, CONTEXT - 1);
    double processor = processor_ns();
    uint64_t begin = clock_ns();
    qp_status status = qp_eval(session->engine, &input, 1, NULL, NULL, NULL, error);
    *out = (sample){(double)(clock_ns() - begin), processor_ns() - processor};
    return status;
}

/* Medians, and the medians of the ratios pair by pair. */
static void report(const char *name, double *with, double *without, double *ratio, int n)
{
    for (int i = 0; i < n; i++)
        ratio[i] = with[i] / without[i];
    qsort(with, (size_t)n, sizeof *with, compare);
    qsort(without, (size_t)n, sizeof *without, compare);
    qsort(ratio, (size_t)n, sizeof *ratio, compare);
    printf("%-10s %10.1f us without, %10.1f us with; pair by pair %+.2f %% (quartiles %+.2f, "
           "%+.2f)\n",
           name, without[n / 2] / 1e3, with[n / 2] / 1e3, 100 * (ratio[n / 2] - 1),
           100 * (ratio[n / 4] - 1), 100 * (ratio[3 * n / 4] - 1));
}

static qp_status measure(qp_session *session, qp_trace *trace, int passes, qp_error *error)
{
    size_t n = (size_t)passes;
    double *times = calloc(5 * n, sizeof *times); /* wall and processor, without and with; ratios */
    qp_status status = times ? QP_OK : QP_NO_MEMORY;
    for (int i = 0; i < passes && status == QP_OK; i++) {
        for (int turn = 0; turn < 2 && status == QP_OK; turn++) {
            size_t on = (size_t)(turn + i) % 2;
            sample found;
            status = time_pass(session, on ? trace : NULL, &found, error);
            times[on * n + (size_t)i] = found.wall;
            times[(2 + on) * n + (size_t)i] = found.processor;
        }
    }
    if (status == QP_OK) {
        report("wall", times + n, times, times + 4 * n, passes);
        report("processor", times + 3 * n, times + 2 * n, times + 4 * n, passes);
    }
    free(times);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_trace MODEL [THREADS [PASSES]]\n");
        return 2;
    }
    qp_error error = {0};
    qp_engine *engine = NULL;
    qp_session *session = NULL;
    qp_trace *trace = NULL;
    int32_t tokens[CONTEXT] = {0};
    qp_engine_options options = {.size = sizeof options,
                                 .model = argv[1],
                                 .threads = argc > 2 ? atoi(argv[2]) : 0,
                                 .context = CONTEXT};
    qp_status status = qp_engine_open(&options, &engine, &error);
    if (status == QP_OK) status = qp_session_open(engine, &session, &error);
    qp_input input = {.session = session, .tokens = tokens, .count = CONTEXT - 1};
    if (status == QP_OK) status = qp_eval(engine, &input, 1, NULL, NULL, NULL, &error);
    if (status == QP_OK)
        status = qp_trace_open(
            engine, &(qp_trace_options){.size = sizeof(qp_trace_options), .max_passes = 1}, &trace,
            &error);
    int passes = argc > 3 ? atoi(argv[3]) : 500;
    if (status == QP_OK) status = measure(session, trace, passes, &error);
    if (status != QP_OK) fprintf(stderr, "bench_trace: %s\n", error.message);
    if (engine) engine->trace = trace;
    qp_trace_close(trace);
    qp_session_close(session);
    qp_engine_close(engine);
    return status != QP_OK;
}
