/* Runs operators as their mathematical parts and times each part: attention is copies, a product, a
 * maximum, exponentials, a division and a product; a product with a residual is the product and an
 * addition; the activation is SiLU and a product of elements.
 *
 * This shows where the time of a forward pass would go if nothing were fused. Outputs equal those
 * of the whole operator up to rounding. The machine `serial` runs whole operators, cut into chunks
 * by what they compute: products by features, attention, RoPE and the append to the cache by heads.
 * Each chunk belongs to a track. The machine `threads` runs the slices of its instructions, and
 * each worker is a track.
 */
#pragma once

#include "op/table.h"
#include "plan/program.h"
#include "schedule/timeline.h"

typedef void parts_sink(void *context, const timeline_part *part);

typedef struct parts parts;

/* Allocates memory for the program's largest batch. Kernels of the parts may use `cpu_features`. */
qp_status parts_create(const program *program, uint32_t cpu_features, parts **out, qp_error *error);
void parts_destroy(parts *parts);

/* Runs a bound node, which `kernel` would run whole, in at most `n_tracks` chunks, one after the
 * other: chunk i on track i. An operator that cannot be cut is one chunk on track 0. */
void parts_run_node(parts *parts, int node, const op_call *call, op_kernel *kernel, int n_tracks);

/* Runs a slice of a node's units on a track, which has waited for it since `wait`. */
void parts_run_slice(parts *parts, int node, const op_call *call, op_kernel *kernel, int track,
                     uint64_t wait);

/* Passes all parts that have run to the sink, in order of time, and clears the list. QP_NO_MEMORY
 * if a part could not be stored. */
qp_status parts_hand_over(parts *parts, parts_sink *sink, void *context, qp_error *error);
