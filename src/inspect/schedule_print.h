/* Schedules as text for people. Weights are not read. */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include "plan/program.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct schedule_print_options {
    const char *model; /* as model_open() takes it */
    int64_t workers;
    const char *setting;    /* "latency" or "throughput" */
    const char *assignment; /* "rr", "zz", "wave", "dag" or "pool" */
    double memory_fraction; /* 0: from the costs */
    int64_t context;        /* positions of a sequence; 0: the model's, at most 8192 */
    int64_t chunk;          /* tokens that one pass may have; 0: 512, with `sums` 1 */
    plan_form form;         /* which operators make the pass */
    bool fuse;              /* latency: the program for few tokens, in fused operators */
    bool sums;              /* latency: the program with sums, as the megakernel runs it */
    int64_t group;          /* output features that stay together; 0: the usual */
    int64_t kv_partitions;  /* latency: parts that attention is split in; 0: as a run has it, one,
                             * with `sums` by the workers */
    int64_t ranks, rank; /* of tensor parallelism, and whose schedule is shown; 0 or 1: one rank */
    bool reduce;         /* ranks add partial sums */
    double bytes_per_second, flops_per_second, signal_ns; /* 0: the usual */
    const char
        *costs; /* file of measured costs, used where none of these three is given; or NULL */
    const char *device, *machine; /* whose costs they must be; NULL: "cpu", this processor */
    const char *kv_type;          /* of the KV cache; NULL: F16 */
    bool list, json, verify;
    bool linear;        /* the instructions with their dependencies, without workers */
    const char *queues; /* a JSON file with other queues of them (schedule_dag.h); or NULL */
    const char *save;   /* a file for the queues, or NULL */
    /* A file that `save` wrote, printed in place of a schedule made now; NULL: none. It says itself
     * for how many workers and which setting it is; context, chunk, sums and kv_partitions must be
     * those that it was made with. QP_FORMAT: it is damaged, or for another model or program. */
    const char *load;
    int64_t layers;                              /* only the first ones; 0: all */
    const char *skip, *start_after, *stop_after; /* what is left out: schedule/skip.h. The schedule
                                                  * that is saved or verified is whole */
    /* "10:30,100:5": Gbit/s and microseconds of networks, for each of which 1, 2, 4, ... and
     * `ranks` hosts are predicted in place of printing one schedule (inspect/hosts.h); or NULL.
     * The page is a picture of that. */
    const char *networks;
    strbuf *page; /* gets an HTML page that shows when which worker does what; or NULL */
} schedule_print_options;

/* The forward pass up to the logits, as the machines run it: without `fuse` and `sums` the schedule
 * of `threads`. Counts for each operator, dependencies, balance, critical path and predicted time;
 * with `list` every queue, instruction by instruction. With `verify` the schedule is proved sound
 * first; of several ranks those of all, together. `save` and `load` concern all ranks too.
 */
qp_status schedule_print(const schedule_print_options *options, strbuf *out, qp_error *error);
