/* Checks one variant of an operator on one case, strictly.
 *
 * The kernel runs on every kind of input for which its operator is defined, and is compared with
 * the float64 oracle. On random inputs it runs again on other garbage, unit by unit from the last
 * to the first, on 2, 3 and 7 threads, and with every tensor at an address that is a multiple of
 * only its element's size. On each other kind of input foreign code makes all of these runs too, a
 * kernel of the program one of them. All runs must give the same bits. After each run every byte
 * outside the outputs' elements must be unchanged.
 */
#pragma once

#include "base/threads.h"
#include "op/harness/fixture.h"
#include "op/table.h"

/* Status names as in FlashInfer-Bench. */
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

/* Whether a number from another process is a valid status. */
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

/* How the kernel under check runs: in this process, or isolated in another one. */
typedef struct check_runner {
    /* Runs the kernel over all units: unit by unit from the last to the first where n_threads is 0
     * (each after an empty slice), in one slice where it is 1, else in one slice per thread. False
     * where the kernel did not return: status and detail say why. The units' memory is
     * fixture_call()'s. */
    bool (*run)(void *context, const fixture *fixture, int n_threads, check_status *status,
                char *detail, size_t size);
    /* Scratch bytes that the kernel asks for; UINT64_MAX: as many as the operator's reference.
     * NULL: the variant says. False as above. */
    bool (*scratch_bytes)(void *context, const fixture *fixture, uint64_t *bytes,
                          check_status *status, char *detail, size_t size);
    /* Called when the fixtures exist, before the first run. May be NULL. */
    bool (*begin)(void *context, check_status *status, char *detail, size_t size);
    void *context;
    bool is_elsewhere; /* in another process: the fixtures are shared */
    bool is_brief;     /* one run on random inputs, compared with the oracle */
} check_runner;

/* What a runner does with the call of a fixture; `pool` has n_threads workers. */
void check_run_call(const op_info *op, op_kernel *kernel, const op_call *call,
                    size_t scratch_stride, int n_threads, thread_pool *pool);

/* Checks a kernel through its runner on a case of `op`, once with every kind of input for which the
 * operator is defined. `variant`: its tolerances and the form of its weights. */
void check_kernel(const op_info *op, const op_variant *variant, const check_runner *runner,
                  const char *case_text, uint64_t seed, check_verdict *verdict);

/* Checks a variant on a case of `op`: one of its own, a candidate (a variant with a kernel and, if
 * it wants them, packing and scratch of its own), or NULL for the reference. A kernel that crashes
 * ends the process, and one that hangs never returns: see check_in_child(). */
void check_variant(const op_info *op, const op_variant *variant, const char *case_text,
                   uint64_t seed, check_verdict *verdict);

/* The same in a child process that is killed after timeout_ms. */
void check_in_child(const op_info *op, const op_variant *variant, const char *case_text,
                    uint64_t seed, int timeout_ms, check_verdict *verdict);
