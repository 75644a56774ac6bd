/* Timelines of parts of instructions: see timeline.h. */
#include "schedule/timeline.h"

#include <stdio.h>
#include <stdlib.h>

enum { PARTS_OF_NODE = 8 }; /* kinds that one node has at most: attention has six */

qp_status timeline_take_parts(timeline *t, const schedule *s, qp_error *error)
{
    size_t nodes = (size_t)s->n_nodes;
    t->part_nodes = arena_alloc(&t->memory, nodes * TIMELINE_KINDS, sizeof *t->part_nodes);
    t->nodes = arena_alloc(&t->memory, nodes * PARTS_OF_NODE, sizeof *t->nodes);
    if (!t->part_nodes || !t->nodes) return error_no_memory(error, "the timeline", nodes);
    t->n_tracks = 1;
    t->n_nodes = 0;
    t->n_kinds = 1;
    t->unit = "thread";
    snprintf(t->about, sizeof t->about, "serial, in chunks for %d worker%s", s->options.workers,
             s->options.workers == 1 ? "" : "s");
    return QP_OK;
}

/* The node of a kind's parts, entered where it is new. */
static int find_node(timeline *t, const schedule *s, const timeline_part *part)
{
    int kind = timeline_find_kind(t, part->kind);
    int32_t *number = &t->part_nodes[part->in->node * TIMELINE_KINDS + (uint32_t)kind];
    const program_node *of = &s->program->nodes[part->in->node];
    if (*number == 0) {
        t->nodes[t->n_nodes] = (timeline_node){
            .kind = kind, .name = of->name, .layer = of->layer, .detail = op_get(of->op)->name};
        *number = ++t->n_nodes;
    }
    return *number - 1;
}

qp_status timeline_in_parts(timeline *t, const schedule *s, const timeline_part *parts,
                            size_t count, uint64_t begin, uint64_t end, timeline_panel *out,
                            qp_error *error)
{
    *out = (timeline_panel){.length = end - begin, .count = (int32_t)count};
    out->slices = calloc(count + 1, sizeof *out->slices);
    if (!out->slices) return error_no_memory(error, "the timeline", count * sizeof *out->slices);
    for (size_t i = 0; i < count; i++) {
        const timeline_part *part = &parts[i];
        out->slices[i] = (timeline_slice){.node = find_node(t, s, part),
                                          .number = (int32_t)i,
                                          .blocker = -1,
                                          .shape = part->shape,
                                          .wait = part->begin - begin,
                                          .work = part->begin - begin,
                                          .signal = part->end - begin,
                                          .end = part->end - begin,
                                          .flops = part->flops,
                                          .bytes = part->bytes};
    }
    return QP_OK;
}
