/* Measures a candidate or a variant on one workload, in a process of its own. */
#pragma once

#include "op/bench/bench.h"
#include "workbench/candidate.h"

typedef struct timing_request {
    const op_info *op;
    const char *workload;       /* the workload's text, with its name first */
    const op_variant *variant;  /* measured beside the reference and the best variant; or NULL */
    const candidate *candidate; /* measured beside them; or NULL */
    uint32_t features;
    int threads, timeout_ms, rounds;
    uint64_t seed;
    bool with_reference; /* however slow the reference is */
    bool alone;          /* nothing beside the requested kernel */
} timing_request;

enum { TIMING_MAX = 4, TIMING_REFERENCE_FLOPS = 200000000, TIMING_JUDGED_FLOPS = 1000000000 };

typedef struct timing {
    char name[48];
    bench_result result; /* the workload, without its name */
    check_status status; /* PASSED only if its results after the timing were right */
} timing;

/* The results for a workload. */
typedef struct timing_report {
    bench_report limits;
    int n;
    timing entries[TIMING_MAX]; /* the last is the requested kernel, if there is one */
    bool declined;              /* the kernel does not accept the workload's types and shapes */
    bool slow_reference;        /* the reference was left out: more than TIMING_REFERENCE_FLOPS */
    check_status status;        /* not PASSED: nothing was measured, `detail` gives the reason */
    char detail[CHECK_DETAIL_SIZE];
} timing_report;

/* Measures in a child process. This process judges a candidate's results again, on workloads of up
 * to TIMING_JUDGED_FLOPS; the times are those that the child measured. */
void timing_run(const timing_request *request, timing_report *out);
