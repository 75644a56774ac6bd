/* An unfinished schedule: what segment, lower, dag, assign and tensorize pass to each other. */
#pragma once

#include "schedule/cost.h"

/* Where a node's units must be cut, for any number of workers: ascending, without 0 and the end. */
typedef struct segment_list {
    int64_t *borders;
    int count, capacity;
} segment_list;

/* Instructions of one node for one tile of tokens and one segment of units. All of them depend on
 * the same instructions and not on each other, so dependencies are kept between groups. */
typedef struct draft_group {
    int node; /* of a joiner: the node of the group that follows it */
    instruction_span tokens;
    int64_t units[2];             /* the segment, where a unit is a part of every row */
    int first, count;             /* instructions */
    int waits[INSTRUCTION_WAITS]; /* counters; 0: none */
    bool previous;                /* the waits are for the previous pass */
    int signal;                   /* counter; 0: none */
} draft_group;

/* What signals a counter: consecutive groups. */
typedef struct draft_counter {
    int first_group, n_groups;
} draft_counter;

typedef struct draft {
    schedule *out;
    segment_list *segments; /* [nodes] */
    instruction *items;     /* in an order that every dependency follows */
    int n_items, item_capacity;
    int *lanes; /* of the items: place in the order in which workers take turns */
    int lane_capacity, next_lane;
    draft_group *groups;
    int n_groups, group_capacity;
    draft_counter *counters; /* counter 0 is none */
    int n_counters, counter_capacity;
    int next_larger;    /* the first slice of the next node that is larger than others */
    double pass_bytes;  /* weights read in a pass */
    bool *memory_bound; /* [nodes]: whether bytes decide the cost, not arithmetic */
    int32_t *worker;    /* [n_items] */
    int32_t *queue;     /* [n_items]: items in the order in which they enter their queues */
} draft;

/* Room for one more: the array, moved if it had to grow; NULL when memory is out. */
void *draft_grow(void *items, int *capacity, int count, size_t size);

/* The flag of instructions that workers share. Those of a program with sums are for the blocks of a
 * GPU, which do not. */
static inline uint16_t draft_sharing(const draft *d)
{
    const bool apart = d->out->program->options.sums || d->out->options.unshared;
    return apart ? 0 : INSTRUCTION_SHARED;
}

/* The program that a schedule is for, and room for its nodes' costs: build.c. QP_UNSUPPORTED where
 * it is for one of several ranks, or has more than an instruction can name. */
qp_status draft_take_program(const program *program, schedule *out, qp_error *error);

/* What instructions will cost: cost.c. cost_begin() comes first. */
qp_status cost_begin(draft *draft, qp_error *error);

/* Rows that a node has in the batch that costs are meant for. */
int64_t cost_usual_rows(const draft *draft, int node);

/* What rows [begin, begin + rows) of that batch cost a node. */
cost_estimate cost_of_rows(draft *draft, int node, int64_t begin, int64_t rows);

/* Where nodes are cut, so that other nodes can wait for a part of them: segment.c. */
qp_status segment_nodes(draft *draft, qp_error *error);

/* Instructions and their groups, in the program's order, with costs: lower.c. */
qp_status lower_nodes(draft *draft, qp_error *error);

/* Which group waits for which, from what they read and write; counters; joiners, where a group
 * would need three waits: dag.c. */
qp_status dag_build(draft *draft, qp_error *error);

/* Workers and queues: assign.c. */
qp_status assign_workers(draft *draft, qp_error *error);

/* Queues as one array, and room for one full of noops: tensorize.c. */
qp_status tensorize_allocate(schedule *schedule, int longest, qp_error *error);
qp_status tensorize_queues(draft *draft, qp_error *error);
