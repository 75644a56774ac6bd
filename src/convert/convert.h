/* Conversion with an importance matrix, for the program. quipu.h's qp_convert() converts without.
 */
#pragma once

#include "quipu.h"

typedef struct convert_importance {
    /* llama.cpp's importance matrix ("imatrix"), in either of its forms, or a text, which the model
     * reads on the CPU first: quantised types keep the weights better whose inputs are large. NULL:
     * all inputs matter alike. */
    const char *from;
    const char *out; /* a GGUF file to write it to, as llama.cpp does; NULL: none */
} convert_importance;

/* QP_FORMAT: the matrix is damaged, or of another model. */
qp_status convert_model(const qp_convert_options *options, const convert_importance *importance,
                        qp_error *error);
