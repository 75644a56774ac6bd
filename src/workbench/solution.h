/* The sources of a solution or of a reference, in a temporary folder. */
#pragma once

#include "base/strbuf.h"
#include "workbench/candidate.h"
#include "workbench/function.h"

typedef struct solution_files {
    char folder[64];   /* "" if none; the sources are in its folder solution */
    char entry[512];   /* path of the entry point's file */
    candidate library; /* C: what was compiled */
    strbuf log;        /* what it printed, read by solution_log() */
} solution_files;

/* Writes the sources. solution_remove() the result, after a failure too. */
qp_status solution_write(const schema_solution *solution, const char *where, solution_files *out,
                         qp_error *error);

/* The same for a definition's reference. */
qp_status solution_write_reference(const schema_definition *definition, solution_files *out,
                                   qp_error *error);

/* Compiles a solution that is a kernel of `op`, or a function in C (NULL); library.verdict says
 * what came of it. */
qp_status solution_compile(solution_files *files, const op_info *op, bool unconfined,
                           const volatile int *cancel, qp_error *error);

void solution_remove(solution_files *files);

/* How its function runs. */
function_source solution_source(const schema_solution *solution, const solution_files *files);
function_source solution_reference_source(const solution_files *files);

/* What its processes have printed since the last call, printable and cut. */
const char *solution_log(solution_files *files);
