/* What the GPU runs for a pass: a list of launches.
 *
 * An entry is one launch of a kernel, or the few launches that an operator needs, for consecutive
 * nodes of the program. The grouping of nodes, the form in which x enters and leaves an entry, and
 * the content of chains are decided once per shape class, from the program's views alone: each
 * tensor is an area of its own, independent of addresses. The list is printed and checked in this
 * form, and runs after it is bound to an executor's memory.
 */
#ifndef QUIPU_VM_CUDA_LAUNCH_LIST_H
#define QUIPU_VM_CUDA_LAUNCH_LIST_H

#include "vm/cuda/chain.h"
#include "vm/cuda/launch_setting.h"

/* What a list depends on besides the program and the GPU. */
typedef struct launch_class {
    program_sizes sizes;
    int first, last;  /* steps [first, last) */
    int64_t n_chunks; /* if several sequences decode, the number of attention parts of the longest
                         one; else 0 */
    int64_t n_decode; /* if others of the batch read prompts: how many sequences decode, which are
                         the first; else 0 */
    bool likeliest;   /* the likeliest tokens are wanted instead of logits */
} launch_class;

/* The form in which rows pass from one launch to the next. */
typedef enum launch_form {
    LAUNCH_PLAIN,  /* as the program has them */
    LAUNCH_BF16,   /* in BF16 only */
    LAUNCH_BOTH,   /* as the program has them, and in BF16 */
    LAUNCH_F8,     /* in FP8 only */
    LAUNCH_ROUNDS, /* of an input: this launch converts it to BF16 first */
    LAUNCH_Q,      /* q in the type of the cache */
} launch_form;

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
    int n_entries, capacity;
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

/* A record's kernel: "run_linear_chain_16", "cublasLt". */
const char *launch_kernel_name(const cuda_record *record);

#endif
