/* The rows of a pass that its end works on.
 *
 * After the last layer's attention nothing reads rows whose logits are not wanted: their keys and
 * values are in the cache. In a pass that reads prompts those are nearly all, so the launch list
 * gathers the others before the last layer's output projection in place of after the layer, and
 * what follows has their number of rows.
 */
#ifndef QUIPU_VM_CUDA_WANTED_ROWS_H
#define QUIPU_VM_CUDA_WANTED_ROWS_H

#include "vm/cuda/launch_list.h"

typedef struct wanted_rows {
    int output;          /* the node of the last layer's output projection; -1: all rows go on */
    int gather;          /* the node that would gather rows of x after the layer */
    program_sizes sizes; /* of the nodes between them, and of the norm after them */
} wanted_rows;

/* What a list of nodes [begin, end) can do so. */
wanted_rows wanted_rows_find(const program *program, const launch_class *of, int begin, int end);

/* A node's call. That of the output projection still has all rows. */
void wanted_rows_bind(const wanted_rows *wanted, const launch_setting *setting,
                      const launch_class *of, int node, op_call *call);

/* Adds the launches that gather the rows, to where the norms leave theirs; `output`, the call of
 * the output projection, then reads these. `attended`: the rows of attention's output, as they are;
 * `cut_x`: x, if ranks have their own rows of it alone; else of rank 0. */
qp_status wanted_rows_gather(const wanted_rows *wanted, const launch_setting *setting,
                             cuda_ops *ops, const tensor *attended, const tensor *cut_x,
                             op_call *output, qp_error *error);

#endif
