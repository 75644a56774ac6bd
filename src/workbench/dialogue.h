/* Questions to a process that runs untrusted code.
 *
 * The judge is the process that asks. It reads messages of a fixed size, and takes only one that
 * repeats the number of its question, which cannot be guessed. Every wait has a limit: the time
 * that the judge spends in waiting for answers is taken from one budget.
 */
#pragma once

#include "base/strbuf.h"
#include "op/harness/check.h"

typedef struct dialogue_message {
    uint64_t number; /* of the question */
    uint32_t what;   /* a question: the caller's code for it; an answer: 0, or why not */
    uint32_t n;      /* a question's argument; 0 in answers */
} dialogue_message;

typedef struct dialogue {
    int child;       /* process; 0: none */
    int socket;      /* -1: closed */
    int output;      /* what the child prints (sandbox_output_open()); -1: none */
    strbuf *printed; /* gets it at the end; may be NULL; kept by dialogue_start() */
    int timeout_ms;
    uint64_t left_ns;           /* of the budget */
    const volatile int *cancel; /* ends every wait; may be NULL */
    uint64_t number;            /* of the last question */
} dialogue;

/* In the child: enters the sandbox, answers the questions that come from `socket`, and never
 * returns. `judge` is the id of the process that asks. */
typedef void dialogue_child(void *context, int socket, int judge);

/* Starts the process. False: status and detail say why; no process is left. */
bool dialogue_start(dialogue *d, dialogue_child *child, void *context, int timeout_ms,
                    const volatile int *cancel, check_status *status, char *detail, size_t size);

/* Asks, and waits for the answer's code. False: there was none, status and detail say why. */
bool dialogue_ask(dialogue *d, uint32_t what, uint32_t n, uint32_t *code, check_status *status,
                  char *detail, size_t size);

/* Ends the process and all that it started. */
void dialogue_end(dialogue *d);

/* The child's side. False: the judge is gone. */
bool dialogue_read(int socket, dialogue_message *out);
bool dialogue_answer(int socket, const dialogue_message *question, uint32_t code);
