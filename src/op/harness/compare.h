/* Holding what a kernel wrote against the float64 oracle. */
#ifndef QUIPU_OP_HARNESS_COMPARE_H
#define QUIPU_OP_HARNESS_COMPARE_H

#include "op/harness/fixture.h"

/* The reference's answer with float64 outputs (other types where an output cannot be F64), in
 * memory of its own. Absent and input tensors have no data. */
typedef struct oracle {
    tensor outputs[OP_MAX_TENSORS];
} oracle;

/* Runs the reference on a fixture that was just filled; its outputs are not touched. */
qp_status oracle_create(const fixture *fixture, oracle *out, qp_error *error);
void oracle_destroy(oracle *oracle);

typedef struct comparison {
    double relative; /* largest norm(out - ref) / norm(ref) of an output */
    double absolute; /* largest |out - ref| of an element */
    bool wrong_type; /* what was written makes sense as another type */
} comparison;

/* Whether all outputs are within the operator's tolerances; adds to *found (zero it before). If
 * not, `detail` names tensor, index, expected and found. The inputs' kind matters twice. Of
 * normal ones the errors in types narrower than float32 must not lean to one side: that is what
 * tells truncation from rounding within a tolerance of several units in the last place. With few
 * distinct values the roundings of a coarse variant are few too and add up instead of averaging. */
bool compare_outputs(const fixture *fixture, const oracle *oracle, fill_kind fill,
                     comparison *found, char *detail, size_t size);

/* Copies of all outputs' elements, to compare runs with. */
typedef struct snapshot {
    tensor outputs[OP_MAX_TENSORS];
} snapshot;

qp_status snapshot_create(const fixture *fixture, snapshot *out, qp_error *error);
void snapshot_destroy(snapshot *snapshot);

/* Whether the outputs are bit for bit (NaN: whichever) those of the snapshot; if not, `detail`
 * names tensor, index and both values. */
bool snapshot_equal(const fixture *fixture, const snapshot *snapshot, char *detail, size_t size);

#endif
