/* A stranger's kernel: compiled on the spot, loaded in a child process, its entry points found. */
#ifndef QUIPU_WORKBENCH_CANDIDATE_H
#define QUIPU_WORKBENCH_CANDIDATE_H

#include "op/harness/check.h"
#include "op/op.h"
#include "cuda/driver.h"

/* How a .c file is compiled; the folder with the header stands for FOLDER. */
#define CANDIDATE_FLAGS_C      "-std=gnu17 -O3 -march=native -shared -fPIC"
#define CANDIDATE_FLAGS_CU     "-O3 -arch=native -shared -Xcompiler -fPIC"
#define CANDIDATE_COMPILE_LINE "cc " CANDIDATE_FLAGS_C " -I FOLDER FILE.c -o FILE.so -lm"

typedef struct candidate {
    const op_info *op;
    char folder[64];    /* made for it: header and shared object; "" if none */
    char library[4096]; /* to load */
    char command[8192]; /* that compiled it; "" for a shared object */
    bool cuda;
    const volatile int *cancel; /* ends waits for its processes; may be NULL */
    check_verdict verdict;      /* PASSED, or COMPILE_ERROR with the compiler's first lines */
} candidate;

/* Compiles a .c or .cu file, or takes a .so as it is. QP_OK also when it does not compile: then
 * the verdict says so. Errors are ours: no such file, an ending that is not known. */
qp_status candidate_open(const op_info *op, const char *path, const volatile int *cancel,
                         candidate *out, qp_error *error);

/* Removes what was compiled. */
void candidate_close(candidate *candidate);

/* Loads it into this process and fills `out`, with a name that belongs to the candidate. Only to be
 * called in a child process: loading runs code. False: `message` says why. */
bool candidate_load(const candidate *candidate, op_variant *out, char *message, size_t size);

/* The launcher of a .cu file, NAME_launch(call, stream), to be given tensors on the GPU; the same
 * holds. */
bool candidate_load_launcher(const candidate *candidate,
                             void (**out)(const op_call *call, cuda_stream stream), char *message,
                             size_t size);

/* Checks the candidate on one case: its code runs in a process of its own, what it computes is
 * judged in this one (runner.h). *declined: it does not take the case's types and shapes, and was
 * not run. */
void candidate_check(const candidate *candidate, const char *case_text, uint64_t seed,
                     int timeout_ms, check_verdict *verdict, bool *declined);

/* The same with one run on random inputs: for large workloads. */
void candidate_check_briefly(const candidate *candidate, const char *case_text, uint64_t seed,
                             int timeout_ms, check_verdict *verdict, bool *declined);

/* Threads of this process, to detect threads that a kernel leaves running. */
int candidate_threads(void);

#endif
