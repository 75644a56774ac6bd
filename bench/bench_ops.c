/* bench_ops: times the variants of linear on one shape beside the machine's limits.
 *
 *   bench_ops TYPE N_ROWS IN_FEATURES OUT_FEATURES [THREADS [ROUNDS [ROTATE_MB [MASKED_FEATURES]]]]
 */
#define _GNU_SOURCE
#include "base/buffer.h"
#include "base/cpu.h"
#include "op/bench/bench.h"
#include "op/harness/fill.h"
#include "op/linear/linear.h"
#include "op/table.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CANDIDATES = 16 };

static tensor make_tensor(buffer *memory, dtype type, int64_t rows, int64_t n)
{
    tensor view = tensor_2d(NULL, type, rows, n);
    qp_error error;
    if (buffer_alloc(memory, tensor_bytes(&view), "a tensor", &error) != QP_OK) {
        fprintf(stderr, "bench_ops: %s\n", error.message);
        exit(1);
    }
    view.data = memory->data;
    return view;
}

/* 64 random rows repeated: filling half a gigabyte value by value is slow. */
static void fill_weight(const tensor *weight)
{
    tensor some = *weight;
    some.shape[0] = weight->shape[0] < 64 ? weight->shape[0] : 64;
    fill_tensor(&some, FILL_NORMAL, 1);
    size_t part = tensor_bytes(&some), all = tensor_bytes(weight);
    for (size_t at = part; at < all; at += part)
        memcpy((char *)weight->data + at, weight->data, all - at < part ? all - at : part);
}

static void refill(void *context, const op_call *call)
{
    (void)context;
    fill_tensor(&call->tensors[LINEAR_X], FILL_NORMAL, 99);
}

static void print_report(const bench_report *report, const bench_result *results, int n)
{
    const bench_figure *limits = report->limits;
    printf("read %.1f GB/s (best %.1f)  float %.0f GFLOP/s (best %.0f)  integer %.0f GOP/s"
           "  matrix %.0f GFLOP/s; %d copies\n",
           limits[HARDWARE_READ].median * 1e-9, limits[HARDWARE_READ].best * 1e-9,
           limits[HARDWARE_FLOAT].median * 1e-9, limits[HARDWARE_FLOAT].best * 1e-9,
           limits[HARDWARE_INTEGER].median * 1e-9, limits[HARDWARE_MATRIX].median * 1e-9,
           report->copies);
    for (int i = 0; i < n; i++) {
        const bench_result *r = &results[i];
        double best_read = report->cost.bytes / r->seconds.best / limits[HARDWARE_READ].best;
        double best_float = report->cost.flops / r->seconds.best / limits[HARDWARE_FLOAT].best;
        printf("%-12s %9.1f us [%9.1f %9.1f] best %9.1f  %6.1f GB/s %5.1f%% (best %5.1f%%)  "
               "%7.1f GFLOP/s %5.1f%% float %5.1f%% int (best %5.1f%%)  error %.1e %s\n",
               r->name, r->seconds.median * 1e6, r->seconds.low * 1e6, r->seconds.high * 1e6,
               r->seconds.best * 1e6, r->bytes * 1e-9, 100 * r->of_read, 100 * best_read,
               r->flops * 1e-9, 100 * r->of_float, 100 * r->of_integer, 100 * best_float, r->error,
               r->verified ? "" : "WRONG");
    }
}

/* Worker i on the i-th processor: on a busy machine the scheduler may leave two on one. */
static void pin(void *context, int worker, int n_workers)
{
    (void)n_workers;
    const cpu_set_t *usable = context;
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0, i = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, usable) && i++ == worker) CPU_SET(cpu, &one);
    }
    if (CPU_COUNT(&one)) sched_setaffinity(0, sizeof one, &one);
}

static int fail(const qp_error *error)
{
    fprintf(stderr, "bench_ops: %s\n", error->message);
    return 1;
}

int main(int argc, char **argv)
{
    qp_error error = {0};
    dtype type = argc > 1 ? dtype_from_name(argv[1]) : DTYPE_COUNT;
    if (argc < 5 || type == DTYPE_COUNT) {
        fprintf(stderr, "usage: bench_ops TYPE N_ROWS IN_FEATURES OUT_FEATURES [THREADS [ROUNDS"
                        " [ROTATE_MB [MASKED_FEATURES]]]]\n");
        return 2;
    }
    int64_t n_rows = atoll(argv[2]), in_features = atoll(argv[3]), out_features = atoll(argv[4]);
    int threads = argc > 5 ? atoi(argv[5]) : threads_available();
    uint32_t off = 0;
    if (argc > 8 && cpu_features_parse(argv[8], &off, &error) != QP_OK) return fail(&error);
    uint32_t features = cpu_features(off);

    buffer memory[3];
    op_call call = {0};
    call.tensors[LINEAR_X] = make_tensor(&memory[0], DTYPE_F32, n_rows, in_features);
    call.tensors[LINEAR_WEIGHT] = make_tensor(&memory[1], type, out_features, in_features);
    call.tensors[LINEAR_OUT] = make_tensor(&memory[2], DTYPE_F32, n_rows, out_features);
    fill_tensor(&call.tensors[LINEAR_X], FILL_NORMAL, 2);
    fill_weight(&call.tensors[LINEAR_WEIGHT]);
    if (op_bind(&op_linear, &call, NULL, &error) != QP_OK) return fail(&error);

    bench_candidate candidates[MAX_CANDIDATES];
    int n = 0;
    for (const op_variant *v = op_linear.variants; v->name && n < MAX_CANDIDATES; v++) {
        if ((v->needs & ~features) == 0 && v->accepts(&call))
            candidates[n++] = (bench_candidate){v->name, v->kernel, v};
    }
    thread_pool *pool = NULL;
    hardware *hardware = NULL;
    bench_options options = {.rounds = argc > 6 ? atoi(argv[6]) : 15,
                             .sample_seconds = 0.004,
                             .rotate_bytes = (size_t)(argc > 7 ? atoi(argv[7]) : 1024) << 20,
                             .refill = refill};
    bench_report report;
    bench_result results[MAX_CANDIDATES] = {0};
    cpu_set_t usable;
    sched_getaffinity(0, sizeof usable, &usable);
    if (thread_pool_create(threads, &pool, &error) != QP_OK) return fail(&error);
    thread_pool_run(pool, pin, &usable);
    if (hardware_create((size_t)1 << 30, features, pool, &hardware, &error) != QP_OK ||
        bench_run(&op_linear, &call, candidates, n, hardware, pool, &options, &report, results,
                  &error) != QP_OK)
        return fail(&error);
    print_report(&report, results, n);
    hardware_destroy(hardware);
    thread_pool_destroy(pool);
    for (int i = 0; i < 3; i++)
        buffer_free(&memory[i]);
    return 0;
}
