/* A draft, the nodes that a page has written, while rules rewrite it. */
#pragma once

#include "lower/rewrite.h"

/* Why rules were not taken: lines, where equal ones of several layers are one. */
typedef struct rewrite_log {
    strbuf *out;
    char last_rule[32], last_why[192], first[64], latest[64];
    int count;
} rewrite_log;

void rewrite_log_add(rewrite_log *log, const char *rule, const char *label, const char *why);
void rewrite_log_end(rewrite_log *log);

/* Takes a rule wherever it applies; *count is how often it did. False if memory runs out. */
bool rewrite_draft(plan_builder *draft, const char *name, const rewrite *rule, rewrite_log *log,
                   int *count);

/* Steps by the nodes' steps: those that have lost all nodes are gone. */
void draft_group_steps(plan_builder *draft);

/* Leaves out activations that no node uses, and columns that none uses at the end of a row. */
void draft_trim_tensors(plan_builder *draft);
