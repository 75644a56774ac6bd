/* Proof that no live tensor is overwritten: see program_verify() in lifetime.h.
 *
 * The arena is cut at every tensor's beginning and end into segments, and for each segment there is
 * the tensor whose value it holds. The steps are taken in order: a read requires that every segment
 * of the tensor holds that tensor; a write sets the segments, and must not overlap another tensor
 * of its kernel. Offsets are not computed again, so a mistake in lifetimes or offsets shows as a
 * read of overwritten bytes.
 */
#include "plan/lifetime.h"

#include <stdlib.h>

enum { MAX_CUTS = 2 * PLAN_MAX_TENSORS, NO_TENSOR = -1 };

typedef struct arena_map {
    size_t cuts[MAX_CUTS]; /* ascending; segment i is [cuts[i], cuts[i + 1]) */
    int owner[MAX_CUTS];
    int n_cuts;
} arena_map;

static int compare_sizes(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

static bool lives_in_arena(const plan_tensor *t)
{
    return t->kind == PLAN_ACTIVATION || t->kind == PLAN_OUTPUT;
}

static void map_build(arena_map *map, const program *program)
{
    map->n_cuts = 0;
    for (int id = 0; id < program->n_tensors; id++) {
        const plan_tensor *t = &program->tensors[id];
        if (!lives_in_arena(t)) continue;
        map->cuts[map->n_cuts++] = t->offset;
        map->cuts[map->n_cuts++] = t->offset + t->bytes;
    }
    qsort(map->cuts, (size_t)map->n_cuts, sizeof *map->cuts, compare_sizes);
    for (int i = 0; i < map->n_cuts; i++)
        map->owner[i] = NO_TENSOR;
}

/* Whether all of the tensor's bytes hold its value; else *culprit is the tensor whose value they
 * hold.
 */
static bool map_holds(const arena_map *map, const plan_tensor *t, int id, int *culprit)
{
    for (int i = 0; i + 1 < map->n_cuts; i++) {
        bool inside = map->cuts[i] >= t->offset && map->cuts[i] < t->offset + t->bytes;
        if (!inside || map->cuts[i] == map->cuts[i + 1] || map->owner[i] == id) continue;
        *culprit = map->owner[i];
        return false;
    }
    return true;
}

static void map_write(arena_map *map, const plan_tensor *t, int id)
{
    for (int i = 0; i + 1 < map->n_cuts; i++) {
        if (map->cuts[i] >= t->offset && map->cuts[i] < t->offset + t->bytes) map->owner[i] = id;
    }
}

static qp_status check_read(const program *program, const arena_map *map, int step, int id,
                            qp_error *error)
{
    int culprit = NO_TENSOR;
    if (map_holds(map, &program->tensors[id], id, &culprit)) return QP_OK;
    const program_step *where = &program->steps[step];
    return error_set(error, QP_INVALID,
                     "plan: step %s of layer %lld reads tensor \"%s\", but its bytes hold %s",
                     where->name, (long long)where->layer, program->tensors[id].name,
                     culprit == NO_TENSOR ? "nothing yet" : program->tensors[culprit].name);
}

/* A kernel may read and write one tensor in place, but what it writes must share no byte with
 * another tensor that it touches: it may still need that one, or write it too. */
static qp_status check_apart(const program *program, int node, int step, int written,
                             qp_error *error)
{
    const plan_tensor *t = &program->tensors[written];
    for (int i = 0; i < op_n_tensors(op_get(program->nodes[node].op)); i++) {
        int id = program_tensor_of(program, node, i);
        if (id < 0 || id == written || !lives_in_arena(&program->tensors[id])) continue;
        const plan_tensor *other = &program->tensors[id];
        if (t->offset >= other->offset + other->bytes || other->offset >= t->offset + t->bytes)
            continue;
        return error_set(error, QP_INVALID,
                         "plan: step %s of layer %lld writes tensor \"%s\" over \"%s\", which it "
                         "uses too",
                         program->steps[step].name, (long long)program->steps[step].layer, t->name,
                         other->name);
    }
    return QP_OK;
}

/* Checks one node: the tensors that it reads must be whole, then those that it writes take their
 * bytes.
 */
static qp_status walk_node(const program *program, int node, int step, arena_map *map,
                           qp_error *error)
{
    const op_info *op = op_get(program->nodes[node].op);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < op_n_tensors(op); i++) {
            int id = program_tensor_of(program, node, i);
            if (id < 0 || !lives_in_arena(&program->tensors[id])) continue;
            if (pass == 0 && op->tensors[i].direction != OP_OUT)
                TRY(check_read(program, map, step, id, error));
            if (pass == 0 || op->tensors[i].direction == OP_IN) continue;
            TRY(check_apart(program, node, step, id, error));
            map_write(map, &program->tensors[id], id);
        }
    }
    return QP_OK;
}

qp_status program_verify(const program *program, qp_error *error)
{
    arena_map map;
    map_build(&map, program);
    for (int id = 0; id < program->n_tensors; id++) {
        const plan_tensor *t = &program->tensors[id];
        if (lives_in_arena(t) && t->offset + t->bytes > program->arena_bytes)
            return error_set(error, QP_INVALID, "plan: tensor \"%s\" ends past the arena", t->name);
    }
    for (int step = 0; step < program->n_steps; step++) {
        const program_step *s = &program->steps[step];
        for (int n = 0; n < s->n_nodes; n++)
            TRY(walk_node(program, s->first_node + n, step, &map, error));
    }
    for (int id = 0; id < program->n_tensors; id++) {
        if (program->tensors[id].kind == PLAN_OUTPUT)
            TRY(check_read(program, &map, program->n_steps - 1, id, error));
    }
    return QP_OK;
}
