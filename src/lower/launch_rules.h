/* The launch rules: see launches.h. Each changes the group that is made, or the nodes after it. */
#pragma once

#include "lower/launches.h"

bool lower_takes(const lowering *l, int rule);

/* Notes that a rule was taken. */
void lower_took(lowering *l, int rule);

bool lower_same_rows(const tensor *a, const tensor *b);
bool lower_all_decode(const lowering *l);

/* Appends a node, or puts it before node `at`; its call is new. */
op_call *lower_add_node(lowering *l, int at, lowered_node node);

/* The group before the one that is made; NULL: there is none. */
const lowered_group *lower_last(const lowering *l);

/* Adds the group of the next nodes; what lies in another form remains so. */
lowered_group *lower_add_group(lowering *l, const lowered_node *node);

/* The likeliest token of each row of logits, after the last node. */
void lower_likeliest(lowering *l);

/* On nodes that are not yet in a group. */
void lower_decode(lowering *l, int at);
void lower_gather_wanted(lowering *l, int at);

/* On a group: lower_merge_products() returns how many nodes it has, lower_fuse() how many from
 * `next` on it has besides. */
int lower_merge_products(lowering *l, int at, lowered_group *group);
int lower_fuse(lowering *l, int next, lowered_group *group);

/* The forms of a group's input and output. */
void lower_narrow(lowering *l, int at, lowered_group *group);

/* Adds the launch of the sequences that decode, after the last group. */
void lower_split(lowering *l);

/* Adds the launch that makes x whole before the last group, if that needs it; or after it. */
void lower_join(lowering *l);
void lower_join_at_end(lowering *l);
