/* Tensor lifetimes and the arena: see lifetime.h. */
#include "plan/lifetime.h"

#include "base/checked.h"

#include <stdlib.h>

enum { ARENA_ALIGNMENT = 64 };

const char *plan_cell_text(const plan_cell *cell, char text[8])
{
    char *at = text;
    if (cell->created) *at++ = '+';
    if (cell->mapped) *at++ = 'm';
    if (cell->kept) *at++ = 'o';
    if (cell->read) *at++ = 'r';
    if (cell->written) *at++ = 'w';
    if (cell->destroyed) *at++ = 'x';
    *at = '\0';
    return text;
}

static bool outlives_plan(plan_kind kind)
{
    return kind == PLAN_TABLE || kind == PLAN_CACHE || kind == PLAN_CARRIED || kind == PLAN_STATE;
}

static bool in_arena(plan_kind kind)
{
    return kind == PLAN_ACTIVATION || kind == PLAN_OUTPUT;
}

/* Whether the value that a step leaves in the tensor is still used later, for each step from the
 * last to the first. */
static void find_uses(const program *program, plan_tensor_id id, plan_cell *cells, bool *used_after)
{
    bool used = program->tensors[id].kind == PLAN_OUTPUT;
    for (int step = program->n_steps - 1; step >= 0; step--) {
        plan_cell *cell = &cells[step * program->n_tensors + (int)id];
        const program_access access = program_step_access(program, step, id);
        cell->read = access.read;
        cell->written = access.write;
        used_after[step] = used;
        used = access.read || (used && !access.write);
    }
}

static void compute_tensor(const program *program, plan_tensor_id id, plan_cell *cells,
                           bool *used_after)
{
    plan_kind kind = program->tensors[id].kind;
    bool alive = outlives_plan(kind);
    find_uses(program, id, cells, used_after);
    for (int step = 0; step < program->n_steps; step++) {
        plan_cell *cell = &cells[step * program->n_tensors + (int)id];
        if (kind == PLAN_INPUT && step == 0) cell->mapped = cell->created = alive = true;
        if (in_arena(kind) && cell->written && !cell->read) cell->created = alive = true;
        if (!alive) continue;
        if (!outlives_plan(kind) && !used_after[step]) {
            cell->destroyed = kind != PLAN_OUTPUT;
            alive = false;
        }
        cell->kept = !cell->created && !cell->read && !cell->written && !cell->destroyed;
    }
}

qp_status lifetime_compute(const program *program, plan_cell **cells, qp_error *error)
{
    size_t count = (size_t)(program->n_steps * program->n_tensors);
    bool *used_after = calloc((size_t)program->n_steps + 1, sizeof *used_after);
    *cells = calloc(count ? count : 1, sizeof **cells);
    if (!*cells || !used_after) {
        free(used_after);
        return error_no_memory(error, "the lifetime table", count * sizeof **cells);
    }
    for (int id = 0; id < program->n_tensors; id++)
        compute_tensor(program, (plan_tensor_id)id, *cells, used_after);
    free(used_after);
    return QP_OK;
}

static bool is_alive(const plan_cell *cell)
{
    return cell->created || cell->read || cell->written || cell->kept;
}

static bool live_together(const program *program, const plan_cell *cells, int a, int b)
{
    for (int step = 0; step < program->n_steps; step++) {
        const plan_cell *row = &cells[step * program->n_tensors];
        if (is_alive(&row[a]) && is_alive(&row[b])) return true;
    }
    return false;
}

/* Moves `offset` past every placed tensor that it would overlap while both are alive. */
static size_t lowest_offset(const program *program, const plan_cell *cells, int id,
                            const int *placed, int n_placed)
{
    size_t offset = 0, bytes = program->tensors[id].bytes;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < n_placed; i++) {
            const plan_tensor *other = &program->tensors[placed[i]];
            bool apart = offset + bytes <= other->offset || other->offset + other->bytes <= offset;
            if (apart || !live_together(program, cells, id, placed[i])) continue;
            offset = round_up(other->offset + other->bytes, ARENA_ALIGNMENT);
            moved = true;
        }
    }
    return offset;
}

void lifetime_place(program *program, const plan_cell *cells)
{
    int placed[PLAN_MAX_TENSORS], n_placed = 0;
    bool done[PLAN_MAX_TENSORS] = {false};
    program->arena_bytes = 0;
    for (;;) {
        int largest = -1;
        for (int id = 0; id < program->n_tensors; id++) {
            if (done[id] || !in_arena(program->tensors[id].kind)) continue;
            if (largest < 0 || program->tensors[id].bytes > program->tensors[largest].bytes)
                largest = id;
        }
        if (largest < 0) break;
        plan_tensor *t = &program->tensors[largest];
        t->offset = lowest_offset(program, cells, largest, placed, n_placed);
        size_t end = round_up(t->offset + t->bytes, ARENA_ALIGNMENT);
        if (end > program->arena_bytes) program->arena_bytes = end;
        placed[n_placed++] = largest;
        done[largest] = true;
    }
}
