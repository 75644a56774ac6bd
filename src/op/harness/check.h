/* Checking one variant of an operator on one case, without mercy.
 *
 * Its kernel meets every kind of input that its operator is defined for. Each is run whole, again
 * on other garbage, unit by unit from the last to the first, and on 2, 3 and 7 threads, and all
 * must give the same bits; the first is held against the float64 oracle. After each run everything
 * but the outputs' elements must be as it was. Then once more with every tensor at an address that
 * is a multiple of its element only.
 */
#ifndef QUIPU_OP_HARNESS_CHECK_H
#define QUIPU_OP_HARNESS_CHECK_H

#include "op/op.h"

/* FlashInfer-Bench's words. */
typedef enum check_status {
    CHECK_PASSED,
    CHECK_INCORRECT_SHAPE,     /* the operator refused the call's shapes or contents */
    CHECK_INCORRECT_NUMERICAL, /* wrong or differing values, missing writes */
    CHECK_INCORRECT_DTYPE,     /* right values, written as another type */
    CHECK_RUNTIME_ERROR,       /* a crash, or writes to where nothing may be written */
    CHECK_COMPILE_ERROR,       /* a candidate that cannot be built or loaded */
    CHECK_TIMEOUT,
} check_status;

/* "INCORRECT_NUMERICAL" */
const char *check_status_name(check_status status);

enum { CHECK_DETAIL_SIZE = 512 };

typedef struct check_verdict {
    check_status status;
    int runs;                       /* of the kernel over all units */
    double relative_error;          /* of random inputs: norm of an output's error over its norm */
    double absolute_error;          /* of random inputs: largest error of an element */
    char detail[CHECK_DETAIL_SIZE]; /* which input, which run, which tensor and element; "" if
                                       passed */
} check_verdict;

/* Checks a variant on a case of `op`: one of its own, a candidate (a variant with a kernel and, if
 * it wants them, packing and scratch of its own), or NULL for the reference. One that crashes takes
 * the process with it, one that hangs hangs: see check_in_child(). */
void check_variant(const op_info *op, const op_variant *variant, const char *case_text,
                   uint64_t seed, check_verdict *verdict);

/* The same in a child process that is killed after timeout_ms. */
void check_in_child(const op_info *op, const op_variant *variant, const char *case_text,
                    uint64_t seed, int timeout_ms, check_verdict *verdict);

#endif
