/* An untrusted kernel: it is compiled, loaded in a child process, and its entry points are
 * found. */
#pragma once

#include "op/harness/check.h"
#include "op/table.h"
#include "cuda/driver.h"
#include "quipu.h"
#include "workbench/sandbox.h"

#include <dirent.h>

/* How a .c file is compiled; FOLDER is replaced by the folder of the header. */
#define CANDIDATE_FLAGS_C      "-std=gnu17 -O3 -march=native -shared -fPIC"
#define CANDIDATE_FLAGS_CU     "-O3 -arch=native -shared -Xcompiler -fPIC"
#define CANDIDATE_COMPILE_LINE "cc " CANDIDATE_FLAGS_C " -I FOLDER FILE.c -o FILE.so -lm"
#define CANDIDATE_CUDA_LINE    "nvcc " CANDIDATE_FLAGS_CU " -I FOLDER FILE.cu -o FILE.so -lm"

typedef struct candidate {
    const op_info *op;
    char folder[64];    /* temporary folder with header and shared object; "" if none */
    char library[4096]; /* the shared object to load */
    char command[8192]; /* the compiler that made it; "" for a given shared object */
    bool cuda;
    bool unconfined;            /* its processes have the user's rights */
    strbuf *printed;            /* gets what its processes print; NULL: it is lost */
    const volatile int *cancel; /* stops the waits for its processes; may be NULL */
    check_verdict verdict;      /* PASSED, or COMPILE_ERROR with the compiler's first lines */
} candidate;

/* Compiles a .c or .cu file, or takes a .so as it is. `op` NULL: a .c file with a function that is
 * no operator's kernel, for the caller to load. QP_OK also if it does not compile: the
 * verdict reports that. Errors are for files that do not exist, for unknown suffixes, and
 * (QP_UNSUPPORTED) for what cannot be confined: code for a GPU, and all code where the kernel lacks
 * what the sandbox needs, unless it may run `unconfined`. */
qp_status candidate_open(const op_info *op, const char *path, bool unconfined,
                         const volatile int *cancel, candidate *out, qp_error *error);

/* How its processes are confined. */
sandbox_kind candidate_sandbox(const candidate *candidate);

/* Removes what was compiled. */
void candidate_close(candidate *candidate);

/* Loads the shared object into this process and fills `out`; the name belongs to the candidate.
 * Only for child processes, because loading runs its code. False: `message` gives the reason. */
bool candidate_load(const candidate *candidate, op_variant *out, char *message, size_t size);

/* Finds the launcher of a .cu file, NAME_launch(call, stream), which takes tensors on the GPU. Only
 * for child processes. */
bool candidate_load_launcher(const candidate *candidate,
                             void (**out)(const op_call *call, cuda_stream stream), char *message,
                             size_t size);

/* Fills `out` with the launcher of a .cu file and its other functions, for a model; the name
 * belongs to the candidate. As candidate_load(). */
bool candidate_load_cuda(const candidate *candidate, qp_cuda_kernel *out, char *message,
                         size_t size);

/* Checks the candidate on one case. Its code runs in a process of its own; this process judges
 * the results (runner.h). *declined: it does not accept the case's types and shapes, and was not
 * run. */
void candidate_check(const candidate *candidate, const char *case_text, uint64_t seed,
                     int timeout_ms, check_verdict *verdict, bool *declined);

/* The same with a single run on random inputs, for large workloads. */
void candidate_check_briefly(const candidate *candidate, const char *case_text, uint64_t seed,
                             int timeout_ms, check_verdict *verdict, bool *declined);

/* Checks it on all cases of its operator, up to the first that does not pass: that one's verdict,
 * else PASSED. *n_passed counts those that it took. */
void candidate_check_all(const candidate *candidate, uint64_t seed, int timeout_ms,
                         check_verdict *verdict, int *n_passed);

/* Threads of the process whose folder /proc/self/task is open, to detect those that a kernel leaves
 * running. */
int candidate_threads(DIR *tasks);
