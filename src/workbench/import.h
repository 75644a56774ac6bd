/* The two ways to judge a solution: import.c chooses. */
#pragma once

#include "workbench/evaluate.h"
#include "workbench/own.h"
#include "workbench/solution.h"
#include "workbench/workbench.h"

/* Whether the entry point is a kernel of the operator, NAME_kernel() or NAME_launch(). */
bool import_is_kernel(const schema_solution *solution, const definition *own);

/* Checks such a kernel on an operator's case as `ops check` does, and times it. */
void import_kernel(const workbench_import_options *options, const candidate *candidate,
                   const char *case_text, evaluation *out);
