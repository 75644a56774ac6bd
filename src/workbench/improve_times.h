/* Times of kernels for workbench_improve(), on a CPU or a GPU. */
#pragma once

#include "workbench/candidate.h"
#include "workbench/workbench.h"

/* Times of a kernel on a workload. */
typedef struct improve_time {
    bool declined;
    check_status status;
    double seconds, others;                   /* others: of quipu's best kernel; 0: not measured */
    double of_read, of_float;                 /* of the machine's limits; 0: not measured */
    double bytes, flops;                      /* a second */
    char name[48], detail[CHECK_DETAIL_SIZE]; /* of that kernel; why it failed */
} improve_time;

/* Whether the name of a workload, which stands before its colon, is one of the options'. */
bool improve_is_named(const workbench_improve_options *options, const char *workload);

/* `alone`: without quipu's best kernel. */
improve_time improve_time_of(const workbench_improve_options *options, const candidate *candidate,
                             const char *workload, bool alone);

/* What the program is told of a workload: the time, and how far it is from the machine's limits. */
void improve_tell(const improve_time *time, const char *workload, strbuf *text);

/* The geometric mean of a kernel's times on the workloads; 0: it failed. */
double improve_mean(const workbench_improve_options *options, const candidate *candidate);
