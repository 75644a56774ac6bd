/* Measures a GPU kernel on one workload, in a process of its own.
 *
 * The call's tensors lie on the GPU, in copies that together are larger than its caches, unless a
 * call is small. Calls follow one another in a graph between two events, so that the host's share
 * of a launch is not measured. Afterwards one more call, with poisoned outputs, is compared with
 * the reference on units spread over the whole output.
 */
#pragma once

#include "op/bench/bench.h"
#include "workbench/candidate.h"
#include "workbench/device.h"

typedef struct device_timing_request {
    const op_info *op;
    const char *workload;       /* the workload's text, with its name first */
    const cuda_kernel *kernel;  /* one of quipu's kernels; NULL: the one that quipu would choose, */
    const candidate *candidate; /* or a .cu file's launcher */
    int rounds, timeout_ms;
    uint64_t seed;
} device_timing_request;

typedef struct device_timing {
    int kernel;           /* index of the one measured in op_info.cuda; -1: a .cu file's launcher */
    bench_figure seconds; /* seconds for a call */
    double bytes, flops;  /* per second, at the median, by op_cost_of() */
    double copying;       /* bytes that a copy on the GPU reads and writes per second */
    double error;         /* relative error of the units that were compared */
    bool declined;        /* the kernel does not accept the workload's types and shapes */
    check_status status;
    char detail[CHECK_DETAIL_SIZE];
} device_timing;

void device_timing_run(const device_timing_request *request, device_timing *out);
