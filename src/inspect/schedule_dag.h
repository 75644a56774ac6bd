/* A schedule's instructions without its workers: nodes, edges and priorities of the dependencies,
 * as text and as JSON, and queues that another program made of them: `quipu schedule --linear`,
 * --queues. */
#pragma once

#include "base/json.h"
#include "base/strbuf.h"
#include "schedule/schedule.h"

/* The instructions in the program's order, which every dependency follows, numbered from 0 on; the
 * numbers are the same for every assignment. The last line is the end of the pass: a noop that
 * needs those that no other needs. */
qp_status schedule_dag_print(const schedule *schedule, strbuf *out, qp_error *error);

/* Adds "nodes" and "end" to an object. Of a node: id, opcode, step, layer, its slice, operands
 * (tensors, with their columns), params, cost_ns, priority_ns (of the longest path from its
 * beginning to the end of the pass), needs and children (ids), worker and place. */
qp_status schedule_dag_json(const schedule *schedule, cJSON *root, qp_error *error);

/* Adds the slice of its step that an instruction computes: "part" or "units", and "tokens" if not
 * all. */
void schedule_slice_json(const instruction *in, cJSON *item);

/* The same instructions in the queues of a JSON file: {"queues": [[id, ...], ...]}, one a worker.
 * QP_FORMAT: not such a file; QP_INVALID: an instruction is missing or there twice. The caller
 * verifies the result. schedule_free() it, also after a failure. */
qp_status schedule_dag_arrange(const schedule *from, const char *path, schedule *out,
                               qp_error *error);
