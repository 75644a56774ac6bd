/* Weights in the form that kernels want them, made once when a model is opened. */
#ifndef QUIPU_VM_PACK_H
#define QUIPU_VM_PACK_H

#include "vm/execute.h"

/* Packs the weights of every node whose variant has a form of its own. What was packed is given
 * back to the system as it goes, a piece at a time, where it lies in a mapped file or the model
 * allows it (model_options): at no time is much more in memory than the weights once. */
qp_status executor_pack(executor *executor, progress *progress, qp_error *error);

/* Copies the rows of the embedding that the batch's tokens name, and has kernels read those. Where
 * the table lies in a file a touched row brings what lies around it into memory, a megabyte and
 * more; where the output projection was packed from the same table, all of it is there already. */
void executor_take_rows(executor *executor, const batch *batch);

/* Bytes of weights that stay in memory once they are packed: the packed forms, what kernels read as
 * it is stored, and the embedding. The kernels are chosen by then; no weight is read. */
uint64_t executor_weight_bytes(const executor *executor);

#endif
