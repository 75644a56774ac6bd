/* Timing a candidate or a variant on one workload, in a process of its own. */
#ifndef QUIPU_WORKBENCH_TIMING_H
#define QUIPU_WORKBENCH_TIMING_H

#include "op/bench/bench.h"
#include "workbench/candidate.h"

typedef struct timing_request {
    const op_info *op;
    const char *workload;       /* the text, with its name in front */
    const op_variant *variant;  /* timed beside the reference and the best; or NULL */
    const candidate *candidate; /* the same; or NULL */
    uint32_t features;
    int threads, timeout_ms, rounds;
    uint64_t seed;
    bool with_reference; /* however slow it is */
} timing_request;

enum { TIMING_MAX = 4, TIMING_REFERENCE_FLOPS = 200000000, TIMING_JUDGED_FLOPS = 1000000000 };

typedef struct timing {
    char name[48];
    bench_result result; /* without its name */
    check_status status; /* PASSED only if what it wrote after the timing was right */
} timing;

/* What a workload came to. */
typedef struct timing_report {
    bench_report limits;
    int n;
    timing entries[TIMING_MAX]; /* the last is the kernel asked for, if one was */
    bool declined;              /* it does not take the workload's types and shapes */
    bool slow_reference;        /* left out: more than TIMING_REFERENCE_FLOPS */
    check_status status;        /* not PASSED: nothing was timed, `detail` says why */
    char detail[CHECK_DETAIL_SIZE];
} timing_report;

/* Times in a child process. What a candidate computes is judged again by this process, on workloads
 * of up to TIMING_JUDGED_FLOPS; the times are what its own process measured. */
void timing_run(const timing_request *request, timing_report *out);

#endif
