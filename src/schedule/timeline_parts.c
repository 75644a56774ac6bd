/* Timelines of parts of operators: see timeline.h. */
#include "schedule/timeline.h"

#include <assert.h>
#include <stdlib.h>

enum { PARTS_OF_NODE = 10 }; /* kinds that one node has at most: attention has eight */

qp_status timeline_take_parts(timeline *t, const schedule *s, int n_tracks, int n_at_once,
                              qp_error *error)
{
    size_t nodes = (size_t)s->n_nodes;
    t->part_nodes = arena_alloc(&t->memory, nodes * TIMELINE_KINDS, sizeof *t->part_nodes);
    t->nodes = arena_alloc(&t->memory, nodes * PARTS_OF_NODE, sizeof *t->nodes);
    if (!t->part_nodes || !t->nodes) return error_no_memory(error, "the timeline", nodes);
    t->n_tracks = n_tracks;
    t->n_at_once = n_at_once;
    t->n_nodes = 0;
    t->n_kinds = 1;
    return QP_OK;
}

/* The node of a kind's parts, entered where it is new. */
static int find_node(timeline *t, const schedule *s, const timeline_part *part)
{
    int kind = timeline_find_kind(t, part->kind);
    int32_t *number = &t->part_nodes[part->node * TIMELINE_KINDS + kind];
    const program_node *of = &s->program->nodes[part->node];
    if (*number == 0) {
        assert(t->n_nodes < s->n_nodes * PARTS_OF_NODE);
        t->nodes[t->n_nodes] = (timeline_node){.kind = kind,
                                               .name = of->name,
                                               .layer = of->layer,
                                               .detail = op_get(of->op)->name,
                                               .of = part->node};
        *number = ++t->n_nodes;
    }
    return *number - 1;
}

static int by_track(const void *a, const void *b)
{
    const timeline_slice *x = a, *y = b;
    if (x->track != y->track) return x->track < y->track ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

/* Numbers slices within their tracks. */
static void sort_slices(timeline_panel *panel)
{
    qsort(panel->slices, (size_t)panel->count, sizeof *panel->slices, by_track);
    for (int32_t i = 0, first = 0; i < panel->count; i++) {
        if (panel->slices[i].track != panel->slices[first].track) first = i;
        panel->slices[i].number = i - first;
    }
}

qp_status timeline_in_parts(timeline *t, const schedule *s, const timeline_part *parts,
                            size_t count, const int64_t *sizes, uint64_t begin, uint64_t end,
                            timeline_panel *out, qp_error *error)
{
    const bool far = timeline_cache_is_far(s->program, sizes);
    *out = (timeline_panel){.length = end - begin, .count = (int32_t)count};
    out->slices = calloc(count + 1, sizeof *out->slices);
    if (!out->slices) return error_no_memory(error, "the timeline", count * sizeof *out->slices);
    for (size_t i = 0; i < count; i++) {
        const timeline_part *part = &parts[i];
        out->slices[i] = (timeline_slice){.track = part->track,
                                          .node = find_node(t, s, part),
                                          .number = (int32_t)i,
                                          .blocker = -1,
                                          .part = part,
                                          .wait = part->wait - begin,
                                          .work = part->begin - begin,
                                          .signal = part->end - begin,
                                          .end = part->end - begin,
                                          .flops = part->flops,
                                          .bytes = part->bytes,
                                          .far = part->weights + (far ? part->cached : 0)};
    }
    sort_slices(out);
    return QP_OK;
}
