/* The weights of a program, by their numbers among program.weights: their elements, and the memory
 * that they lie in. Machines read a model only through this file.
 *
 * A weight's tensor (program_weight.whole) has data where it lies in memory or in a mapped file.
 * Weights of a model that was opened only for its sizes are read by rows.
 */
#pragma once

#include "file/synthetic_bits.h"
#include "plan/program.h"

/* The path that the model was opened with. */
const char *program_model_path(const program *program);

/* Bytes of the rank's part of the weights as stored (a tied output counts once), and of those that
 * a pass of one token reads: all, but of the embedding one row, and what the output reads of it. */
uint64_t program_weight_bytes(const program *program);
uint64_t program_read_bytes(const program *program);

/* Rows [begin, begin + rows) of the rank's part of a weight, as stored but contiguous, also where
 * its tensor has no data. A norm is one row; a bias has a row for each element. Several threads may
 * read at once. */
qp_status program_read_weight(const program *program, int weight, int64_t begin, int64_t rows,
                              void *dst, qp_error *error);

/* What makes the elements of a synthetic model's weight (of program_weight.whole), so that a GPU
 * can make them itself; false for other models. */
bool program_weight_stream(const program *program, int weight, synthetic_stream *out);

/* Whether the weight lies in a mapped file as it is. */
bool program_weight_is_mapped(const program *program, int weight);

/* Of a weight in a mapped file: gives the memory of the rank's part back to the system until it is
 * read again; says that few and scattered bytes of it will be read. Of other weights: nothing. */
void program_release_weight(const program *program, int weight);
void program_read_sparsely(const program *program, int weight);

/* Frees the memory of a weight that was made, where the model was opened for one reader; reading it
 * later faults. Of a weight in a mapped file, or one that other ranks have parts of: nothing. */
void program_discard_weight(const program *program, int weight);
