/* Tensor lifetimes: computed from what steps read and write, never listed by hand. */
#pragma once

#include "plan/plan.h"

/* What a step does to a tensor: a cell of the printed table. */
typedef struct plan_cell {
    bool created;   /* + : its value begins here */
    bool mapped;    /* m : the host fills it */
    bool read;      /* r */
    bool written;   /* w */
    bool kept;      /* o : alive, not touched */
    bool destroyed; /* x : not needed after this step */
} plan_cell;

/* The signs of a cell in the order of their printing, as "+w" or "rx"; returns `text`. */
const char *plan_cell_text(const plan_cell *cell, char text[8]);

/* cells[step * n_tensors + tensor] for all steps; free() it. A tensor of the arena is alive
 * from a step that writes it without reading it to its last use before the next such step; outputs
 * stay alive to the end; tables, caches, sums and weights outlive the plan and are never destroyed.
 */
qp_status lifetime_compute(const program *program, plan_cell **cells, qp_error *error);

/* Gives every activation and output its offset: the largest first, each at the lowest offset that
 * no tensor alive at the same step covers. Sets arena_bytes. */
void lifetime_place(program *program, const plan_cell *cells);

/* Proves that the placement is sound, sharing no code with the two functions above: it walks the
 * steps, marks which tensor owns which bytes, and fails when a step reads bytes that another tensor
 * has overwritten or that were never written. */
qp_status program_verify(const program *program, qp_error *error);
