/* Attention of few tokens, whose positions several workers share: each computes segments of a KV
 * head, and the worker that ends the last segment makes the outputs of the head from the states of
 * all, in their order. The bits are those of one worker (op/attention/tile.h).
 */
#pragma once

#include "plan/program.h"

typedef struct segments segments;

/* What a node's attention needs to be cut by positions; all 0 if it never is. */
typedef struct segments_room {
    int64_t group;  /* heads that share a KV head */
    int64_t pieces; /* segments of KV heads whose states have room */
    size_t bytes;
} segments_room;

segments_room segments_room_of(const program *program, int node, int workers);

/* Bytes for all nodes, which follow each other. */
uint64_t segments_count_bytes(const program *program, int workers);

/* *out is NULL if no node is ever cut so. `program` is NULL for a schedule that only signals. */
qp_status segments_create(const program *program, int workers, segments **out, qp_error *error);
void segments_destroy(segments *segments);

/* Computes a segment of the heads of one KV head and token, which are the call's units, and, if it
 * is the last of `n_segments` to end, their outputs. */
void segments_run(segments *segments, op_kernel *kernel, const op_call *call, int64_t segment,
                  int64_t n_segments);
