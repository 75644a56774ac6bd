/* bench_trace: what recording costs a forward pass of one token, recorded and other passes in turn.
 *
 *   bench_trace MODEL [THREADS [PASSES]]
 */
#include "base/clock.h"
#include "generate/engine.h"

#include <stdio.h>
#include <stdlib.h>

enum { CONTEXT = 64 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One pass behind `CONTEXT` - 1 tokens; nanoseconds, 0 when it failed. */
static double time_pass(qp_session *session, qp_trace *trace, qp_error *error)
{
    const int32_t token = 1;
    qp_input input = {.session = session, .tokens = &token, .count = 1};
    session->engine->trace = trace;
    if (trace) trace->n_passes = 0; /* the same memory again */
    qp_session_truncate(session, CONTEXT - 1);
    uint64_t begin = clock_ns();
    if (qp_eval(session->engine, &input, 1, NULL, NULL, NULL, error) != QP_OK) return 0;
    return (double)(clock_ns() - begin);
}

static void report(const char *name, double *with, double *without, int n)
{
    qsort(with, (size_t)n, sizeof *with, compare);
    qsort(without, (size_t)n, sizeof *without, compare);
    printf("%-10s %10.1f us without, %10.1f us with: %+.2f %%\n", name, without[n / 2] / 1e3,
           with[n / 2] / 1e3, 100 * (with[n / 2] / without[n / 2] - 1));
    printf("%-10s %10.1f us without, %10.1f us with: %+.2f %%\n", "  a tenth",
           without[n / 10] / 1e3, with[n / 10] / 1e3, 100 * (with[n / 10] / without[n / 10] - 1));
}

static int measure(qp_session *session, qp_trace *trace, int passes, qp_error *error)
{
    double *times[2] = {calloc((size_t)passes, sizeof(double)),
                        calloc((size_t)passes, sizeof(double))};
    bool done = times[0] && times[1];
    for (int i = 0; i < passes && done; i++) {
        for (int turn = 0; turn < 2 && done; turn++) {
            int on = (turn + i) % 2;
            times[on][i] = time_pass(session, on ? trace : NULL, error);
            done = times[on][i] > 0;
        }
    }
    if (done) report("median", times[1], times[0], passes);
    free(times[0]);
    free(times[1]);
    return done;
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
    qp_engine_options options = {
        .model = argv[1], .threads = argc > 2 ? atoi(argv[2]) : 0, .context = CONTEXT};
    qp_status status = qp_engine_open(&options, &engine, &error);
    if (status == QP_OK) status = qp_session_open(engine, &session, &error);
    qp_input input = {.session = session, .tokens = tokens, .count = CONTEXT - 1};
    if (status == QP_OK) status = qp_eval(engine, &input, 1, NULL, NULL, NULL, &error);
    if (status == QP_OK)
        status = qp_trace_open(engine, &(qp_trace_options){.max_passes = 1}, &trace, &error);
    int passes = argc > 3 ? atoi(argv[3]) : 500;
    bool done = status == QP_OK && measure(session, trace, passes, &error);
    if (!done) fprintf(stderr, "bench_trace: %s\n", error.message);
    if (engine) engine->trace = trace;
    qp_trace_close(trace);
    qp_session_close(session);
    qp_engine_close(engine);
    return done ? 0 : 1;
}
