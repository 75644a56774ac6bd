/* Packs weights into the form that kernels want, once, when a model is opened. */
#pragma once

#include "vm/execute.h"

/* Packs the weights of every node whose variant has a form of its own. It works in pieces and
 * releases the stored form of each piece, where that lies in a mapped file or the model allows it
 * (model_options), so memory never holds much more than the weights once. Products' weights in
 * files are read, a few rows at a time, and never mapped. With a `cache` (may be NULL) that has
 * their packed form, that is mapped instead; one that has not receives it. Weights that no file
 * holds, and their packed form, are made each time. */
qp_status executor_pack(executor *executor, pack_cache *cache, progress *progress, qp_error *error);

/* Prepares for executor_pack() to leave products' weights in their files, and enlarges the scratch
 * by the rooms of their kernels. It does nothing where memory could not hold both the files and the
 * packed weights. */
qp_status executor_leave_unpacked(executor *executor, qp_error *error);

/* Packs nodes that were left, in the order of a pass, until that time has gone by or none is left.
 * True: machines have other kernels to run. */
bool executor_pack_more(executor *executor, uint64_t ns);

/* Copies the rows of the embedding that the batch's tokens name, and points the kernels to the
 * copies. Where the table lies in a file, touching a row maps a megabyte or more around it; where
 * the output projection was packed from the same table, the whole table is in memory anyway. */
void executor_take_rows(executor *executor, const batch *batch);

/* Bytes of weights that stay in memory after packing: the packed forms, the weights that kernels
 * read as stored, and the embedding. Call it after the kernels were chosen; it reads no weight. */
uint64_t executor_weight_bytes(const executor *executor);
