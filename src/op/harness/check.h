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

#include "base/threads.h"
#include "op/harness/fixture.h"
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

/* Whether a number that came from elsewhere is a status. */
bool check_status_is_one(int status);

enum { CHECK_DETAIL_SIZE = 512 };

typedef struct check_verdict {
    check_status status;
    int runs;                       /* of the kernel over all units */
    double relative_error;          /* of random inputs: norm of an output's error over its norm */
    double absolute_error;          /* of random inputs: largest error of an element */
    char detail[CHECK_DETAIL_SIZE]; /* which input, which run, which tensor and element; "" if
                                       passed */
} check_verdict;

/* How the kernel under check is run: in this process, or in another one that it can't leave. */
typedef struct check_runner {
    /* Runs the kernel over all units: unit by unit from the last to the first where n_threads is 0
     * (each after a slice of none), in one slice where it is 1, in a slice a thread otherwise.
     * False where it did not come back: status and detail say why. The units' memory is
     * fixture_call()'s. */
    bool (*run)(void *context, const fixture *fixture, int n_threads, check_status *status,
                char *detail, size_t size);
    /* Scratch bytes that the kernel asks for; UINT64_MAX: what the operator's reference does. NULL:
     * the variant says. False as above. */
    bool (*scratch_bytes)(void *context, const fixture *fixture, uint64_t *bytes,
                          check_status *status, char *detail, size_t size);
    /* Called when the fixtures are there, before the first run. May be NULL. */
    bool (*begin)(void *context, check_status *status, char *detail, size_t size);
    void *context;
    bool is_elsewhere; /* in another process: the fixtures are shared */
    bool is_brief;     /* one run on random inputs, compared with the oracle */
} check_runner;

/* The numbers of threads that a kernel is run on besides 1. */
enum { CHECK_POOLS = 3 };
extern const int check_pool_sizes[CHECK_POOLS];

/* What a runner does with the call of a fixture; `pool` has n_threads workers. */
void check_run_call(const op_info *op, op_kernel *kernel, const op_call *call,
                    size_t scratch_stride, int n_threads, thread_pool *pool);

/* Checks a kernel by its runner on a case of `op`, once with every kind of input that the operator
 * is defined for. `variant`: its tolerances and the form of its weights. */
void check_kernel(const op_info *op, const op_variant *variant, const check_runner *runner,
                  const char *case_text, uint64_t seed, check_verdict *verdict);

/* Checks a variant on a case of `op`: one of its own, a candidate (a variant with a kernel and, if
 * it wants them, packing and scratch of its own), or NULL for the reference. One that crashes takes
 * the process with it, one that hangs hangs: see check_in_child(). */
void check_variant(const op_info *op, const op_variant *variant, const char *case_text,
                   uint64_t seed, check_verdict *verdict);

/* The same in a child process that is killed after timeout_ms. */
void check_in_child(const op_info *op, const op_variant *variant, const char *case_text,
                    uint64_t seed, int timeout_ms, check_verdict *verdict);

#endif
