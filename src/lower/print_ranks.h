/* The bytes of all ranks, as print_lifetimes.c shows them beside one rank's plan. */
#pragma once

#include "base/json.h"
#include "base/strbuf.h"
#include "plan/program.h"

/* The programs of all ranks of the program's model, [options.ranks]; plan_ranks_free() them, also
 * after a failure. */
qp_status plan_ranks_build(const program *program, struct program **out, qp_error *error);
void plan_ranks_free(program *ranks, int n);

/* A table, and the same as members of a JSON object. */
void plan_ranks_print(const program *ranks, strbuf *out);
void plan_ranks_json(const program *ranks, cJSON *root);
