/* Which worker runs which cell of a shared instruction: decided while a pass runs.
 *
 * Every shared instruction has a claim: a word that holds the range of cells that no worker has
 * taken yet. The worker in whose queue the instruction stands takes cells from the front. A worker
 * that waits for a counter takes cells from the back of the instructions that will signal this
 * counter, first of the one with most cells left. The worker that ends an instruction's last cell
 * sends its signal. So a pass advances at the speed of all workers together, even if the system
 * suspends one of them.
 */
#pragma once

#include "vm/cells.h"

typedef struct claims claims;

/* A shared instruction in the current pass. */
typedef struct claimed {
    const instruction *in;
    int32_t place; /* worker * longest + its place in the queue */
    cell_cut cut;
} claimed;

qp_status claims_create(const bound_schedule *setup, claims **out, qp_error *error);
void claims_destroy(claims *claims);

/* Before a pass over a batch of these sizes, which stay as they are while it runs. `whole`:
 * instructions are not cut. */
void claims_begin(claims *claims, uint32_t pass, const int64_t *sizes, bool whole);

/* A shared instruction by its place. */
claimed claims_of(const claims *claims, int32_t place);

/* Takes the first of the cells that are left, or the last; -1: none is left. */
int32_t claims_take_first(claims *claims, const claimed *of);
int32_t claims_take_last(claims *claims, const claimed *of);

/* Says that n of its cells have been computed. True for the last: the caller sends the signal. */
bool claims_end(claims *claims, const claimed *of, int32_t n);

/* Finds the instruction with most cells left among those whose signals `counter` counts, or, while
 * these must wait, among those that they wait for. `reached` tells whether the instruction's waits
 * are over. `alone`: also instructions of one cell that no other worker has a slice of. False:
 * there is none. */
typedef bool claims_ready(const void *context, const instruction *in);
bool claims_find(const claims *claims, uint32_t counter, claims_ready *ready, const void *context,
                 bool alone, claimed *out);
