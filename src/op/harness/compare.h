/* Compares what a kernel wrote with the float64 oracle. */
#pragma once

#include "op/harness/fixture.h"

/* The reference's answer with float64 outputs (other types where an output cannot be F64), in
 * memory of its own. Absent and input tensors have no data. */
typedef struct oracle {
    tensor outputs[OP_MAX_TENSORS];
} oracle;

/* Runs the reference on a fixture that was just filled; the fixture's outputs do not change. */
qp_status oracle_create(const fixture *fixture, oracle *out, qp_error *error);
void oracle_destroy(oracle *oracle);

typedef struct comparison {
    double relative; /* largest norm(out - ref) / norm(ref) of an output */
    double absolute; /* largest |out - ref| of an element */
    bool wrong_type; /* the output is right when read as another type */
} comparison;

/* Whether all outputs are within the operator's tolerances; adds to *found (zero it before). If
 * not, `detail` names tensor, index, expected and found. The kind of input matters in two ways.
 * With normal inputs the errors in types narrower than float32 must not lean to one side: this
 * distinguishes truncation from rounding within a tolerance of several units in the last place.
 * With few distinct values the roundings of a coarse variant are few too, and add up instead of
 * averaging out. */
bool compare_outputs(const fixture *fixture, const oracle *oracle, fill_kind fill,
                     comparison *found, char *detail, size_t size);

/* Copies of all outputs' elements, for comparing runs. */
typedef struct snapshot {
    tensor outputs[OP_MAX_TENSORS];
} snapshot;

qp_status snapshot_create(const fixture *fixture, snapshot *out, qp_error *error);
void snapshot_destroy(snapshot *snapshot);

/* Whether the outputs equal those of the snapshot bit for bit (any NaN equals any other); if not,
 * `detail` names tensor, index and both values. */
bool snapshot_equal(const fixture *fixture, const snapshot *snapshot, char *detail, size_t size);
