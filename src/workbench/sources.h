/* The texts of the references and of quipu_kernel.h, embedded in the program, so that a description
 * can show the computation and a candidate can be compiled without the source tree.
 */
#pragma once

#include "base/embedded.h"

/* How much of a text is code: the part before an operator's tables of cases and facts. */
size_t sources_code_length(const embedded_text *source);

/* The code of the file that defines an operator's reference, without the tables of cases and facts
 * that follow it. */
const char *sources_reference(const char *op_name, size_t *length);

enum { SOURCES_MAX = 24 };

/* Paths of the other sources that the reference of an operator calls, nearest first; returns how
 * many. */
int sources_called(const char *op_name, const char *paths[SOURCES_MAX]);
