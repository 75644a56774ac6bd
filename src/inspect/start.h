/* What the time from opening an engine to its first logits was spent on. */
#pragma once

#include "base/progress.h"
#include "quipu.h"

typedef struct start_times {
    progress_stage stages[PROGRESS_STAGES + 1]; /* [n_stages]; the last is the first pass */
    int n_stages;
    uint64_t total_ns;  /* of all stages */
    uint64_t second_ns; /* the pass after the first, for comparison; not a part of the total */
} start_times;

/* Runs the engine's first pass, and a second one, of one token each. The engine was just opened. */
qp_status start_measure(qp_engine *engine, start_times *out, qp_error *error);
