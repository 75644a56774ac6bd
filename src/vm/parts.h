/* Instructions run as what they are in mathematics, part by part, each part timed: attention as a
 * product, a maximum, powers, a division and a product; a product with a residual as the product
 * and an addition.
 *
 * For looking at where the time of a forward pass would go if nothing were fused. Outputs are those
 * of the whole instruction but for rounding.
 */
#ifndef QUIPU_VM_PARTS_H
#define QUIPU_VM_PARTS_H

#include "op/op.h"
#include "schedule/timeline.h"

typedef void parts_sink(void *context, const timeline_part *part);

typedef struct parts parts;

/* Memory for the largest batch of the schedule is taken here. `cpu_features`: that kernels of the
 * parts may use. The sink is called after each part, outside its time. */
qp_status parts_create(const schedule *schedule, uint32_t cpu_features, parts_sink *sink,
                       void *context, parts **out, qp_error *error);
void parts_destroy(parts *parts);

/* Runs a bound instruction, as a serial_hook; `kernel` is what would run it whole. */
void parts_run(void *parts, const instruction *in, const op_call *call, op_kernel *kernel);

#endif
