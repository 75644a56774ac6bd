/* Attention cut by positions: see segments.h. */
#include "vm/segments.h"

#include "base/buffer.h"
#include "op/attention/tile.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/paged_prefill/pieces.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { PIECES_PER_WORKER = 64 };

struct segments {
    buffer states;    /* of the attention at work: layers follow each other */
    atomic_int *done; /* segments of a KV head of a token */
};

segments_room segments_room_of(const program *p, int node, int workers)
{
    op_call call;
    if (p->nodes[node].op != OP_PAGED_PREFILL) return (segments_room){0};
    program_bind(p, node, NULL, p->capacity.of, &call);
    const int64_t kv_heads = call.tensors[PAGED_PREFILL_K_CACHE].shape[2];
    if (kv_heads == 0) return (segments_room){0};
    const int64_t longest = p->capacity.of[AXIS_LONGEST_KV] / ATTENTION_SEGMENT + 1;
    segments_room room = {.group = call.tensors[PAGED_PREFILL_Q].shape[1] / kv_heads,
                          .pieces = (int64_t)workers * PIECES_PER_WORKER};
    if (room.pieces < kv_heads * longest) room.pieces = kv_heads * longest;
    room.bytes =
        (size_t)(room.pieces * room.group * paged_prefill_state_floats(&call)) * sizeof(float);
    return room;
}

/* The largest of all nodes. */
static segments_room room_of_all(const program *p, int workers)
{
    segments_room most = {0};
    for (int n = 0; n < p->n_nodes; n++) {
        const segments_room room = segments_room_of(p, n, workers);
        if (room.pieces > most.pieces) most.pieces = room.pieces;
        if (room.bytes > most.bytes) most.bytes = room.bytes;
    }
    return most;
}

uint64_t segments_count_bytes(const program *p, int workers)
{
    return room_of_all(p, workers).bytes;
}

qp_status segments_create(const program *p, int workers, segments **out, qp_error *error)
{
    *out = NULL;
    if (!p) return QP_OK;
    const segments_room room = room_of_all(p, workers);
    if (room.bytes == 0) return QP_OK;
    segments *s = *out = calloc(1, sizeof *s);
    if (s) s->done = calloc((size_t)room.pieces, sizeof *s->done);
    if (!s || !s->done)
        return error_no_memory(error, "the machine", (size_t)room.pieces * sizeof *s->done);
    return buffer_alloc(&s->states, room.bytes, "states of attention", error);
}

void segments_destroy(segments *s)
{
    if (!s) return;
    buffer_free(&s->states);
    free(s->done);
    free(s);
}

void segments_run(segments *s, op_kernel *kernel, const op_call *call, int64_t segment,
                  int64_t n_segments)
{
    const paged_prefill_states states = {.n_segments = n_segments, .of = s->states.data};
    atomic_int *done = &s->done[call->begin / (call->end - call->begin)];
    paged_prefill_segment(kernel, call, &states, segment);
    if (atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) + 1 < n_segments) return;
    atomic_store_explicit(done, 0, memory_order_relaxed); /* for the next layer */
    paged_prefill_merge(kernel, call, &states);
}
