/* A model made ready to be timed: passes over any number of tokens at any depth, by any schedule.
 *
 * One machine holds the memory (`operators`, or `cuda` on a GPU); those that are timed (`threads`,
 * `megakernel`) are over it, so that weights are loaded once.
 */
#ifndef QUIPU_INSPECT_TIMED_H
#define QUIPU_INSPECT_TIMED_H

#include "plan/plan.h"
#include "vm/machine.h"

typedef struct timed_options {
    const char *model;      /* as model_open() takes it */
    const char *device;     /* "cuda": a GPU's megakernel; NULL: the CPU */
    int threads;            /* the megakernel's blocks; 0: one a multiprocessor */
    int64_t context, chunk; /* positions of the sequence, tokens in a pass; 0: the usual */
    bool fuse;              /* the plan for few tokens, where there is one for the model */
    void (*progress)(void *context, const char *text, bool finished); /* may be NULL */
    void *progress_context;
} timed_options;

typedef struct timed_model {
    const timed_options *options;
    thread_pool *pool, *alone; /* all threads; one */
    progress progress;
    model *model;
    program program;
    machine memory; /* that the timed machines are over */
    batch batch;
    int32_t *pages;     /* [n_pages]: of the one sequence */
    int passes;         /* of a run; of several the first does not count */
    int logits_end;     /* the step after lm_head */
    cuda_device device; /* its context is NULL where the CPU runs */
} timed_model;

/* QP_NO_MEMORY when it does not fit. The options outlive the result. timed_close() it, also after a
 * failure. */
qp_status timed_open(const timed_options *options, timed_model *out, qp_error *error);
void timed_close(timed_model *model);

/* Whether plans for few tokens are worth running: their operators have more than a reference. */
bool timed_fuses(void);

/* Makes the next run's batch: the last `tokens` of `context` positions of one sequence, whose cache
 * holds zeros; of a run of several passes `context` are those of the last one. Both must fit the
 * plan's. */
qp_status timed_fill(timed_model *model, int64_t tokens, int64_t context, qp_error *error);

/* A machine that runs one schedule over the model's batch, and what its passes took. */
typedef struct timed_machine {
    machine of;
    const schedule *schedule;
    instruction_timing *memory;
    instruction_timing *timings; /* [passes][workers][longest]: of a run */
    machine_record *records;     /* [passes] */
    int32_t *tokens;             /* [passes] */
    instruction_timing *last;    /* [workers][longest]: of the run's quickest pass */
    instruction_timing *best;    /* the same of the quickest run's */
    double *least; /* [workers][longest]: ns of each instruction's quickest work and signal */
    double *sum;   /* [workers][longest]: ns of all passes counted */
    double last_ns, best_ns; /* of those passes */
    int passes;              /* counted so far, one a run */
} timed_machine;

/* Makes the schedule that the options say, with a machine for it: as many workers as the model has
 * threads, or one. timed_machine_close() it, also after a failure. */
qp_status timed_machine_open(timed_model *model, const schedule_options *options, bool alone,
                             timed_machine *out, qp_error *error);
void timed_machine_close(timed_machine *machine);

/* One run over the batch, timed. */
qp_status timed_run(timed_model *model, timed_machine *machine, qp_error *error);

/* The same, but not counted: weights come to the caches, threads awake. */
qp_status timed_warm_up(timed_model *model, timed_machine *machine, qp_error *error);

#endif
