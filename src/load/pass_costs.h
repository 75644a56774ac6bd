/* What a forward pass takes, from measurements that `quipu bench -o csv` has printed:
 *
 *     seconds = products(rows) + per_decoded x positions that decoding rows attend to
 *                              + per_prompt x positions that rows of prompts attend to
 *
 * The last two are slopes between tests of equal size at different depths. products() goes through
 * what the tests take without them, straight from each number of rows to the next.
 */
#pragma once

#include "base/status.h"

#include <stddef.h>

enum { PASS_COSTS_MOST = 256 };

typedef struct pass_costs {
    double rows[PASS_COSTS_MOST], seconds[PASS_COSTS_MOST]; /* products(rows[i]); both rise */
    size_t count;
    double per_decoded, per_prompt;
} pass_costs;

/* Reads the rows of one model on one device; rows of names and tests of several prompts are left
 * out. QP_FORMAT: a line is not one of bench's, or a slope needs a test at another depth. */
qp_status pass_costs_read(const char *text, size_t length, pass_costs *out, qp_error *error);

double pass_costs_products(const pass_costs *costs, double rows);
