/* A function of a FlashInfer-Bench data set, a reference or a solution, in a process of its own.
 *
 * The process shares a memory with this one, the judge, that holds a workload's arguments. It puts
 * results there and answers questions (dialogue.h); the judge owns the inputs, the expected results
 * and the clock. Python functions run under python3 (function.py); C functions and quipu's own
 * references in a child of this process.
 */
#pragma once

#include "op/harness/check.h"
#include "workbench/arguments.h"

enum { FUNCTION_ONES = -2 }; /* a place: an int32 tensor of ones */

typedef struct function_source {
    /* Python, and C++ and CUDA with a binding: a folder with the sources in solution/, where this
     * process writes too. */
    const char *folder, *language, *binding, *file, *symbol;
    const cJSON *sources;
    bool fills_outputs;
    /* Else C: a shared object with `symbol`, void(const op_call *), whose call has the tensors in
     * the definition's order, inputs first, and the scalars as params; or quipu's own reference,
     * with the index of each of its tensors among the definition's in places (-1: absent). */
    const char *library;
    const op_info *op;
    op_call call;
    int places[OP_MAX_TENSORS];
} function_source;

typedef struct function_options {
    const char *python;
    bool cuda;       /* Python's tensors lie on the GPU */
    int threads;     /* of PyTorch on the CPU */
    bool unconfined; /* what the sandbox cannot confine may run: Python */
    int timeout_ms;
    const volatile int *cancel;
} function_options;

/* Why a function in Python, C++ or CUDA is refused unless `unconfined`. */
extern const char function_not_confined[];

typedef struct function function;

/* Starts the process, and loads the function there for arguments like these, whose inputs it may
 * already see. False: status and detail say why. function_close() the result. */
bool function_open(const function_source *source, const arguments *arguments,
                   const function_options *options, function **out, check_status *status,
                   char *detail, size_t size);

/* Puts the inputs into the shared memory, and poisons the outputs. */
bool function_put(function *function, const arguments *arguments, check_status *status,
                  char *detail, size_t size);

/* Calls it n times; *ns is how long the judge waited. */
bool function_run(function *function, uint32_t n, uint64_t *ns, check_status *status, char *detail,
                  size_t size);

/* Has the results of the last call written to the shared memory, and gives its address. The process
 * may go on writing there. */
bool function_results(function *function, const char **memory, check_status *status, char *detail,
                      size_t size);

/* Ends the process. NULL is allowed. */
void function_close(function *function);
