/* Runs each instruction as its mathematical parts and times each part: attention is a product, a
 * maximum, exponentials, a division and a product; a product with a residual is the product and an
 * addition.
 *
 * This shows where the time of a forward pass would go if nothing were fused. Outputs equal those
 * of the whole instruction up to rounding.
 */
#ifndef QUIPU_VM_PARTS_H
#define QUIPU_VM_PARTS_H

#include "op/op.h"
#include "schedule/timeline.h"

typedef void parts_sink(void *context, const timeline_part *part);

typedef struct parts parts;

/* Allocates memory for the schedule's largest batch. Kernels of the parts may use `cpu_features`.
 * The sink is called after each part, outside its measured time. */
qp_status parts_create(const schedule *schedule, uint32_t cpu_features, parts_sink *sink,
                       void *context, parts **out, qp_error *error);
void parts_destroy(parts *parts);

/* Runs a bound instruction, as a serial_hook; `kernel` is the one that would run it whole. */
void parts_run(void *parts, const instruction *in, const op_call *call, op_kernel *kernel);

#endif
