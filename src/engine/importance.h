/* How much the inputs of a model's products matter: their squares, summed over the tokens of a
 * text.
 *
 * A product's error is that of its weights times its inputs, so a weight's share of it is its error
 * times the mean square of its input. Only products of the layers are looked at.
 */
#pragma once

#include "model/weights.h"
#include "quipu.h"

typedef struct importance {
    weight_slot slot;
    int64_t layer;
    int64_t n_experts, columns; /* n_experts 1: the layer has one matrix */
    double *sums;               /* (n_experts, columns), followed by the counts */
    double *counts;             /* [n_experts]: rows that were multiplied with the matrix */
} importance;

typedef struct importance_list {
    importance *of; /* [n] */
    size_t n;
    size_t n_chunks; /* of the text that were read */
} importance_list;

enum { IMPORTANCE_CHUNK = 512 }; /* tokens that are read together */

/* Opens the model of the options, of which only `threads` and log may be set, too, and reads the
 * text in chunks of IMPORTANCE_CHUNK tokens, a shorter one only if there is no other.
 * importance_free() the result, also after a failure. `chunk_done` is called after each chunk. */
typedef void importance_progress(void *context, size_t chunk, size_t n_chunks);
qp_status importance_measure(const qp_engine_options *options, const char *text, size_t length,
                             importance_progress *chunk_done, void *context,
                             const volatile int *cancel, importance_list *out, qp_error *error);
void importance_free(importance_list *list);
