/* Judges a solution of a FlashInfer-Bench data set on a workload, by the definition's reference. */
#pragma once

#include "workbench/function.h"

typedef struct evaluate_options {
    double atol, rtol; /* an element is right within one of them */
    int rounds;        /* of timing; figures are their medians */
    uint64_t seed;
    const char *folder; /* of the data set */
    function_options function;
} evaluate_options;

typedef struct evaluation {
    check_verdict verdict;
    double latency_ms, reference_ms; /* of a call; only of a solution that passed */
} evaluation;

/* Both functions run on the same inputs, three times with different random ones and once more after
 * the timing, and the results are compared. `own` (may be NULL) is a second reference, which the
 * first must agree with. A failure is one of the workload or of a reference,
 * QP_UNSUPPORTED where a reference cannot be loaded; the solution's is the verdict. */
qp_status evaluate(const schema_definition *definition, const schema_workload *workload,
                   const function_source *reference, const function_source *own,
                   const function_source *solution, const evaluate_options *options,
                   evaluation *out, qp_error *error);
