/* A pass as a GPU launches it: nodes with their calls for one batch, in groups of one launch each.
 *
 * A pass takes the launch rules of rules.def from its first node to its last. A group says which
 * nodes one launch runs, by which kernel, and in which form rows enter and leave it, so a machine
 * only has to walk the groups. Nothing is launched here.
 *
 *     group        rms_norm      linear + silu_and_mul     linear
 *     its output   BF16 only     BF16 only                 as the program has it
 */
#pragma once

#include "lower/lower.h"
#include "op/cuda_ops.h"

/* What launches depend on besides the program and the GPU. */
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

typedef struct lowered_node {
    int node, n_nodes; /* of the program; n_nodes is 0 for a node that a rule has added */
    op_code op;
    int call;          /* among the calls */
    bool bound;        /* it has its call */
    bool nothing;      /* there is nothing to launch */
    bool continues;    /* as in lowered_group */
    bool cut;          /* an embedding, whose table has only this rank's rows of x on each rank;
                        * without ids it makes x whole */
    launch_form input; /* LAUNCH_Q if its call has q so */
} lowered_node;

/* What lies elsewhere than the program says, after a group; rank 0: nothing does. */
typedef struct lowered_left {
    tensor rows; /* rows that lie at `at`, in BF16 or FP8 */
    cuda_address at;
    bool in_f8;
    tensor cut_x; /* x, if each rank has only its own rows of it */
} lowered_left;

typedef struct lowered_group {
    int node, n_nodes;         /* of the program; n_nodes is 0 if rules have added all of them */
    op_code op;                /* of the first node */
    int call;                  /* the first call; those of a fusion follow it */
    const cuda_kernel *kernel; /* NULL: a run, or nothing is launched */
    const cuda_fusion *fusion; /* of the kernel, which then runs several calls; or NULL */
    void *run;                 /* of several nodes by a persistent kernel; or NULL */
    const char *epilogue;      /* the following operators that it also runs; NULL: none */
    launch_form input, output;
    cuda_forms forms;
    bool cut;       /* as in lowered_node */
    bool continues; /* the next group belongs to the same entry of a launch list */
    lowered_left left;
} lowered_group;

typedef struct lowering lowering;

/* Makes a persistent kernel's run of as many nodes as possible from node `at` on, and fills *group;
 * *count is their number, 0: none. */
typedef qp_status lower_take_run(lowering *l, int at, lowered_group *group, int *count,
                                 qp_error *error);

/* A pass while it is lowered. */
struct lowering {
    /* What it is lowered for: from the caller of lower_begin(). */
    const program *program;
    const launch_class *of;
    const program_memory *memory; /* where the program's tensors lie */
    cuda_ops *ops;                /* records, so that maps are only described */
    uint32_t rules;               /* a bit each */
    cuda_address likeliest;       /* where the likeliest token of each row goes */
    /* A node's call for a batch of these sizes. */
    void (*bind)(const void *context, const program_sizes *sizes, int node, op_call *call);
    lower_take_run *take_run;
    const void *context;
    strbuf *explained; /* lower_end() tells here which rules were taken how often, and why they do
                        * not apply where they nearly do; NULL: nowhere */

    op_call *calls;
    lowered_node *nodes;
    lowered_group *groups;
    int n_calls, n_nodes, n_groups;
    int at, end; /* nodes before `at` are in groups; `end`: after the program's last node */
    bool done;
    int taken[LOWER_RULES];  /* how often each rule was */
    struct rewrite_log *log; /* NULL: nothing is explained */
    strbuf why;
};

/* Lowers a pass group by group, so that a launch can run while later groups are made. lower_next()
 * adds groups until l->done. lower_end() it, also after a failure. */
qp_status lower_begin(lowering *l, qp_error *error);
qp_status lower_next(lowering *l, qp_error *error);
void lower_end(lowering *l);

/* ---- what a persistent kernel asks ---------------------------------------------------------- */

/* A node's call. It is bound when it is first asked for. */
op_call *lower_call(const lowering *l, int at);

/* Notes why a rule was not taken at a node where it nearly applied. */
void lower_refuse(const lowering *l, int rule, int at, const char *why);

/* Whether a custom kernel runs a call. */
bool lower_is_custom(const lowering *l, op_code op, const op_call *call);

/* Whether the node after `at` is a product that reads `out` in BF16. */
bool lower_feeds_product(const lowering *l, int at, const tensor *out);

/* Merges a product with those after it, as many as possible; returns the number of products. */
int lower_merge(lowering *l, int at, op_call *call);

/* Whether attention of a pass is cut over the whole GPU: of one token of one sequence, of models
 * that the megakernel does not run (mixtures of experts). */
bool lower_is_single(const program *program, const int64_t *sizes);

/* Whether products have the same shapes on all ranks up to the logits, so that all ranks make the
 * same launches. */
bool lower_ranks_are_alike(const program *program);
