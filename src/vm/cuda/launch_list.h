/* What the GPU runs for a pass: a list of launches.
 *
 * An entry is one launch of a kernel, or the few launches that an operator needs, for consecutive
 * nodes of the program. lower/launches.h groups the nodes. Here each tensor is an area of its own
 * instead of an address. The list is printed and checked in this form, and runs after it is bound
 * to an executor's memory.
 */
#pragma once

#include "lower/launches.h"
#include "vm/cuda/launch_setting.h"

typedef struct launch_entry {
    int node, n_nodes;         /* of the program */
    const cuda_kernel *kernel; /* NULL: a chain, or an entry that runs nothing */
    const char *epilogue;      /* the following operators that it also runs; NULL: none */
    launch_form input, output;
    int record, n_records; /* the launches */
    bool chain;            /* its only record is a linear_chain */
    int step;              /* of a chain: its steps begin at the nodes step_nodes[step], ... */
    bool follows;          /* may start before a previous pass has ended */
} launch_entry;

typedef struct launch_list {
    launch_class of;
    launch_entry *entries;
    int n_entries;
    cuda_recording recording;
    int *step_nodes; /* of all chains' steps, in their order: their first nodes */
    int n_step_nodes;
    bool bound;
    uint64_t used; /* time of the last use, counted in uses */
} launch_list;

/* Receives an entry, the last of the list so far. */
typedef qp_status launch_sink(void *context, launch_list *list, const launch_entry *entry,
                              qp_error *error);

/* Makes the list of a class. launch_list_free() it, also after a failure. `sink`, which may be
 * NULL, receives each entry as soon as it is made, so that a GPU can run it while the next is made.
 * Entries stay where they are. */
qp_status launch_list_make(const launch_setting *setting, const launch_class *of, launch_sink *sink,
                           void *context, launch_list *out, qp_error *error);
void launch_list_free(launch_list *list);

/* Takes a chain (chain.h) as a run, and launches it. */
lower_take_run launch_take_run;
qp_status launch_run(launch_list *list, launch_entry *entry, const lowered_group *group,
                     qp_error *error);

/* A record's kernel: "run_linear_chain_16", "cublasLt". */
const char *launch_kernel_name(const cuda_record *record);
