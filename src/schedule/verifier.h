/* The state of a proof, shared by verify.c and the files named below. */
#pragma once

#include "schedule/schedule.h"

/* Instructions are named by their index: worker * longest + position. */
typedef struct verifier {
    const schedule *s;
    int workers;
    arena memory;
    /* Clocks: [clock_words]. First [workers], how many instructions of each queue must have ended,
     * not counting shared ones; then a bit for each counter: all shared instructions that signal it
     * must have ended. */
    size_t clock_words;
    const int32_t **knows;        /* [workers * longest]: before each instruction begins */
    const int32_t *nothing;       /* a clock of zeros */
    const int32_t **worker_clock; /* [workers] */
    int32_t **counter_clock;      /* [counters]: of all producers so far */
    uint32_t *signalled;          /* [counters] */
    int32_t *node_first;          /* [nodes + 1] */
    int32_t *by_node;             /* instructions of node n: by_node[node_first[n]] and on */
    qp_error *error;
} verifier;

static inline const instruction *verifier_at(const verifier *v, int32_t index)
{
    return &v->s->instructions[index];
}

static inline bool verifier_is_shared(const verifier *v, int32_t index)
{
    return verifier_at(v, index)->flags & INSTRUCTION_SHARED;
}

/* Adds an instruction to a clock. */
void verifier_add(const verifier *v, int32_t index, int32_t *clock);

/* Whether clock a includes clock b. */
bool verifier_covers(const verifier *v, const int32_t *a, const int32_t *b);

/* QP_INVALID with the instruction and what is wrong with it. */
qp_status verifier_refuse(const verifier *v, int32_t index, const char *what);

/* Whether instruction a has always ended when b begins. */
bool verifier_is_before(const verifier *v, int32_t a, int32_t b);

/* Checks each record, then sorts them by node, then checks that the slices of a node's instructions
 * cover every unit once: verify_records.c. */
qp_status verifier_check_records(verifier *v);
qp_status verifier_sort_by_node(verifier *v);
qp_status verifier_check_cover(verifier *v);

/* Checks that reads and writes come in the nodes' order, and that reads find the right values:
 * verify_memory.c. */
qp_status verifier_check_memory(verifier *v);

/* Checks that exchanges between ranks are made in the order of their nodes: verify_ranks.c. */
qp_status verifier_check_exchanges(const verifier *v);
