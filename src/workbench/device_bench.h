/* Timing a kernel of the GPU on one workload, in a process of its own.
 *
 * The call's tensors lie on the GPU, in copies that together are larger than its caches, unless a
 * call is small; calls follow one another in a graph between two events, so that what the host
 * needs for a launch is not counted. Afterwards one more call, over poisoned outputs, is held
 * against the reference on units spread over the whole.
 */
#ifndef QUIPU_WORKBENCH_DEVICE_BENCH_H
#define QUIPU_WORKBENCH_DEVICE_BENCH_H

#include "op/bench/bench.h"
#include "workbench/candidate.h"
#include "workbench/device.h"

typedef struct device_timing_request {
    const op_info *op;
    const char *workload;       /* the text, with its name in front */
    const cuda_kernel *kernel;  /* one of ours, */
    const candidate *candidate; /* or a .cu file's launcher */
    bool chosen;                /* declined where the program would choose another kernel */
    int rounds, timeout_ms;
    uint64_t seed;
} device_timing_request;

typedef struct device_timing {
    bench_figure seconds; /* a call */
    double bytes, flops;  /* a second, at the median, by op_cost_of() */
    double copying;       /* bytes that a copy on the GPU reads and writes a second */
    double error;         /* relative, of the units looked at */
    bool declined;        /* the kernel does not take the workload's types and shapes */
    check_status status;
    char detail[CHECK_DETAIL_SIZE];
} device_timing;

void device_timing_run(const device_timing_request *request, device_timing *out);

#endif
