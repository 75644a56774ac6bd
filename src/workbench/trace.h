/* Traces of FlashInfer-Bench: what came of a solution on a workload. */
#pragma once

#include "workbench/evaluate.h"

/* A trace as JSON. `workload` becomes part of it; `log` is what the processes printed; `device`:
 * the solution ran on the GPU. */
cJSON *trace_json(const char *definition, cJSON *workload, const char *solution,
                  const evaluation *evaluation, const char *log, bool device);
