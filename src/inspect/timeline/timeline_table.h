/* Where the time of passes went, summed by operator. */
#pragma once

#include "schedule/timeline.h"

typedef struct timeline_sum {
    int kind;
    int64_t slices, joined; /* those that took time, those that were part of another's */
    double wait, work;      /* ns, of all tracks together */
    double flops, bytes, far;
} timeline_sum;

/* Zero-initialise. */
typedef struct timeline_table {
    timeline_sum sums[TIMELINE_KINDS]; /* by kind */
    int64_t passes, tokens;
    double length, signal; /* ns: of the passes; of signals, of all tracks together */
} timeline_table;

void timeline_table_add(timeline_table *table, const timeline *timeline,
                        const timeline_panel *panel);

/* Raises the timeline's limits to what the table's sums have reached: a machine is at least as fast
 * as it was seen to be. */
void timeline_table_raise(const timeline_table *table, timeline *timeline);

/* Times are those of a pass, means over the tracks that work at the same time: with waiting,
 * signals and what lies outside of slices they add up to the pass. Rates are of all tracks together
 * while they do this work; "of limit" is the time that the limits allow at best, over the time
 * taken: weights and a large KV cache come from memory, all other bytes from caches. Kinds that
 * were always part of another's slice are named after the table. */
void timeline_table_print(const timeline_table *table, const timeline *timeline, const char *title,
                          strbuf *out);
