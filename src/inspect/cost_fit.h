/* From timed instructions to the curves of a table of costs. */
#pragma once

#include "schedule/cost.h"

/* Instructions of one operator and type of weight at one ratio of FLOPs to bytes, added up. */
typedef struct cost_sample {
    op_code op;
    dtype type;
    bool tiny;  /* of a model so small that what each instruction costs by itself shows */
    bool small; /* of the small model of a curve's small points */
    bool tiled; /* in tiles of rows */
    bool alone; /* no other worker worked */
    int bin;    /* of the intensity */
    double count, bytes, flops, ns;
    double bytes_squared, bytes_ns; /* sums of products, for the line through them */
    double pass_bytes;              /* weights read in a pass */
    cost_rates rates;               /* of plain reads beside the passes; sums, times ns */
} cost_sample;

enum { COST_SAMPLES = 4096 };

/* Zero-initialise; free(samples) at the end. */
typedef struct cost_samples {
    cost_sample *of; /* [COST_SAMPLES], taken when the first is added */
    int count;
} cost_samples;

/* Adds one instruction's work and time; false when there is no more room or memory. `about` says
 * op, type, tiny, small, tiled, alone, pass_bytes and rates. */
bool cost_add(cost_samples *samples, const cost_sample *about, op_cost work, double ns);

/* Finds the curves that the samples lie on, at the table's workers and rates. An instruction's own
 * cost is what it would take without any bytes, by the line through those of the large model if
 * they read no weights, since contexts differ, else through those of the tiny one; where they are
 * all of one size, what they take beyond what their bytes would in the large one. Where a point was
 * not seen alone, one worker is taken to be as fast as when all work. */
void cost_fit(const cost_samples *samples, cost_table *table);
