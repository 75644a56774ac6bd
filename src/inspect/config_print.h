/* A model's configuration in the form that transformers prints: `quipu info --config`. */
#pragma once

#include "base/status.h"

/* "LlamaConfig {...}", keys in order, as transformers 4.51 prints it. What the model's config.json
 * has is printed as it is there; what it has not, and all of a GGUF file or of synthetic weights,
 * follows from the model, else from LlamaConfig's defaults. To free(). */
qp_status config_describe(const char *path, char **text, qp_error *error);
