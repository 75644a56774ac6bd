/* The state of dag.c, which finds dependencies, and of counters.c, which makes waits of them. */
#pragma once

#include "schedule/draft.h"

typedef enum access_kind { ACCESS_READ, ACCESS_ADD, ACCESS_WRITE } access_kind;

/* What a group does to a tensor. */
typedef struct access {
    int group, area;
    access_kind kind;
    instruction_span rows;
    uint64_t columns[2]; /* bytes of a row: begin, end */
} access;

typedef struct access_list {
    access *items;
    int count, capacity;
} access_list;

typedef struct int_list {
    int *items;
    int count, capacity;
} int_list;

typedef struct dag {
    draft *draft;
    access_list *touched; /* [areas] */
    int_list *overlaps;   /* [areas]: areas that share bytes with it, itself first */
    uint64_t *reach;      /* [groups][words]: groups that come before, directly or not */
    size_t words;
    int_list *needs;      /* [groups + 1]: direct predecessors; the last: the end of the pass */
    bool *together;       /* [nodes]: all groups signal one counter */
    int *n_groups_of;     /* [nodes] */
    draft_group *ordered; /* groups with joiners among them */
    int n_ordered, ordered_capacity;
    instruction *items;
    int n_items, item_capacity;
    int *lanes; /* of the items */
    int lane_capacity;
    int *counter_of; /* [groups], or [first group of the node] where `together` */
    op_call call;    /* of node `bound` - 1 */
    int bound;
    bool failed;
} dag;

/* Appends a value; g->failed if memory is out. */
void dag_push(dag *g, int_list *list, int value);

/* The end of the consecutive groups of the node to which `group` belongs. */
int dag_end_of_node(const draft *d, int group);

/* Turns the groups' needs into counters: chooses which groups share one, adds joiners, and writes
 * the waits and signals of the groups in their final order (ordered, items and lanes). */
void counters_make(dag *g);

/* Writes the draft's waits and signals into its instructions. False if memory is out. */
bool counters_number(draft *d);
