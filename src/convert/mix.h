/* The element type of each tensor: llama.cpp's mixes by their names ("Q4_K_M").
 *
 * A mix has a usual type, and gives more bits to the tensors that lose most: the output projection
 * (the embedding where the two are one), the values of attention, the down projection in some
 * layers. The rules are those of llama-quantize without an importance matrix, so that a file has
 * the same types as other programs' files of that name.
 */
#pragma once

#include "model/model.h"

typedef struct mix {
    const char *name;
    uint32_t file_type; /* general.file_type */
    dtype usual;
} mix;

/* Finds a mix by its name, in any case; QP_INVALID lists them all. */
qp_status mix_find(const char *name, const mix **out, qp_error *error);

/* The plainest mix with this usual type; NULL for a type that no mix has. */
const mix *mix_of_type(dtype type);

/* The type of a matrix with `columns` elements a row. `pure`: the usual type wherever it fits. */
dtype mix_choose(const mix *mix, const model_config *config, weight_slot slot, int64_t layer,
                 int64_t columns, bool pure);
