/* Arithmetic over named sizes, in which operators' shapes and costs are written: numbers, names, +
 * - * / and parentheses, in float64. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Finds a name's value; false when it has none. */
typedef bool expression_lookup(void *context, const char *name, size_t length, double *value);

/* Evaluates text[0 .. length); false when it is malformed or a name has no value. */
bool expression_evaluate(const char *text, size_t length, expression_lookup *lookup, void *context,
                         double *value);
