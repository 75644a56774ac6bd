/* The modules of a model as a tree or as JSON: `quipu info --modules`. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

/* The modules of a model (or of its config.json alone) as a tree, as PyTorch prints them: name,
 * class, features; after each the number of its parameters, of layers that of one. As JSON a list:
 * name, class, count (of modules that are alike), in_features, out_features, parameters. With
 * `only` ("model.layers.0") that module and those in it; else NULL. To free(). */
qp_status modules_describe(const char *path, const char *only, bool json, char **text,
                           qp_error *error);
