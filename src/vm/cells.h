/* How a shared instruction is cut into cells, the pieces that workers claim.
 *
 * Few rows: a cell is a run of the instruction's own units, small enough that workers of unequal
 * speed end at nearly the same time and large enough that its weights are read at full speed.
 * Many rows of a product: preparing rows of x costs as much as multiplying them with dozens of
 * features, so all instructions of the node are cut together, by rows and by features, and each has
 * a part of these cells. What a cell computes does not depend on the cut, to the bit.
 *
 * An instruction that is its node's only one, as a norm's is, is cut where a prompt has many rows.
 *
 * Attention of few tokens over many positions: there may be fewer KV heads than workers, so a cell
 * is a segment of the positions of one KV head, for one token, and all instructions of the node are
 * cut together too (vm/segments.h).
 */
#pragma once

#include "vm/bound.h"
#include "vm/segments.h"

/* What the cut of a node's instructions depends on besides the batch. */
typedef struct cell_rule {
    int64_t units;      /* of a cell, where rows are not cut */
    int64_t many_units; /* the fewest of a cell of many rows */
    int64_t per_row;    /* units in a row; 0: units are columns of every row */
    bool by_rows;       /* with many rows the instructions of the node are cut together */
    segments_room room; /* for attention that is cut by positions */
} cell_rule;

/* Instructions that are cut together: consecutive slices of one node. */
typedef struct cell_band {
    int64_t begin, end; /* units; of parts: not used */
    int32_t members;
} cell_band;

/* Cells [first, first + count) of a grid of `across` cells of units by blocks of rows. */
typedef struct cell_cut {
    int32_t first, count;
    int64_t begin, end; /* units that are cut, in cells of `units` */
    int64_t units, across;
    instruction_span rows; /* that are cut, in blocks of `block`; block 0: they are not */
    int32_t block;
    int32_t segments; /* of the positions; 0: these are not cut */
} cell_cut;

/* [schedule->n_nodes]; free() it. */
qp_status cells_make_rules(const bound_schedule *setup, cell_rule **out, qp_error *error);

/* The cut of a band's member `member` in a batch of these sizes. At least one cell, which has
 * nothing to compute if the member has not. `whole`: one cell, as for a member without others. */
cell_cut cells_cut(const schedule *schedule, const cell_rule *rule, const cell_band *band,
                   const instruction *in, int member, const int64_t *sizes, bool whole);

/* What one cell computes. */
typedef struct cell {
    int64_t begin, end;    /* units */
    instruction_span rows; /* where rows are cut */
    int32_t segment;       /* where positions are cut */
} cell;

cell cells_at(const cell_cut *cut, int32_t number);
