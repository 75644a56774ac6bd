/* A simulation of a fleet in place of servers: requests come at the times of the trace, a router
 * gives each to one of many servers, and passes take what was measured (pass_costs.h). */
#pragma once

#include "load/workload.h"

/* Fills the records of `out` as a run does. */
qp_status simulate(const workload *w, load_result *out, qp_error *error);
