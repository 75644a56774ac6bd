/* What the measurements on the CPU and on a GPU share. */
#pragma once

#include "inspect/measure.h"
#include "inspect/timed.h"
#include "inspect/cost_fit.h"

/* Adds the times of the machine's instructions: ns [workers][longest]. `about` says whether the
 * model was tiny and the worker alone. */
qp_status measure_take_samples(cost_samples *samples, const timed_model *model,
                               const timed_machine *machine, const double *ns, cost_sample about,
                               qp_error *error);

/* Whether models with weights of the type are to be measured. */
bool measure_wants(const measure_options *options, dtype type);

/* Writes the file and a summary. */
qp_status measure_keep(const cost_table *table, const char *path, strbuf *out, qp_error *error);

/* measure_cuda.c */
qp_status measure_cuda_costs(const measure_options *options, strbuf *out, qp_error *error);
