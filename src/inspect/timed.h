/* A model that is ready to be timed: passes over any number of tokens at any depth, by any
 * schedule.
 *
 * One machine holds the memory (`operators`, or `cuda` on a GPU). The timed machines (`threads`,
 * `megakernel`) use its memory, so that weights are loaded once.
 */
#pragma once

#include "plan/plan.h"
#include "vm/machine.h"

typedef struct timed_options {
    const char *model;      /* as model_open() takes it */
    const char *device;     /* "cuda": a GPU's megakernel; NULL: the CPU */
    int threads;            /* the megakernel's blocks; 0: one for each multiprocessor */
    int64_t context, chunk; /* positions of the sequence, tokens in a pass; 0: the default */
    bool fuse;              /* the plan for few tokens, if the model has one */
    bool as_run;            /* the plan is that of a run with the same options; the defaults are a
                               run's then, and so is `kv_partitions` */
    int64_t kv_partitions;  /* 0: one */
    void (*progress)(void *context, const char *text, bool finished); /* may be NULL */
    void *progress_context;
} timed_options;

typedef struct timed_model {
    const timed_options *options;
    thread_pool *pool, *alone; /* with all threads, and with one */
    progress progress;
    model *model;
    program program;
    machine memory; /* the machine whose memory the timed machines use */
    batch batch;
    int32_t *pages;     /* [n_pages]: pages of the one sequence */
    int passes;         /* passes of a run; if several, the first is not counted */
    cuda_device device; /* its context is NULL where the CPU runs */
} timed_model;

/* QP_NO_MEMORY when it does not fit. The options outlive the result. timed_close() it, also after a
 * failure. */
qp_status timed_open(const timed_options *options, timed_model *out, qp_error *error);
void timed_close(timed_model *model);

/* Whether plans for few tokens are worth running: their operators have fast variants. */
bool timed_fuses(void);

/* Makes the next run's batch: the last `tokens` of `context` positions of one sequence, whose cache
 * holds zeros. In a run of several passes, `context` counts the positions of the last pass. Both
 * must fit the plan. */
qp_status timed_fill(timed_model *model, int64_t tokens, int64_t context, qp_error *error);

/* A machine that runs one schedule over the model's batch, with the times of its passes. */
typedef struct timed_machine {
    machine of;
    const schedule *schedule;
    instruction_timing *memory;
    instruction_timing *timings; /* [passes][workers][longest]: of one run */
    machine_record *records;     /* [passes] */
    int32_t *tokens;             /* [passes] */
    instruction_timing *last;    /* [workers][longest]: of the run's quickest pass */
    instruction_timing *best;    /* the same, of the quickest run */
    double *least; /* [workers][longest]: ns of each instruction's quickest work and signal */
    double *sum;   /* [workers][longest]: ns of all passes counted */
    double last_ns, best_ns; /* durations of those passes */
    int passes;              /* runs counted so far */
} timed_machine;

/* Makes the schedule for the options, or reads that of `file` (NULL: none), and makes a machine
 * that runs it, with as many workers as the model has threads, or with one. Its instructions are
 * not shared, so that each one's time is its own. timed_machine_close() it, also after a failure.
 */
qp_status timed_machine_open(timed_model *model, const schedule_options *options, const char *file,
                             bool alone, timed_machine *out, qp_error *error);
void timed_machine_close(timed_machine *machine);

/* One run over the batch, timed. */
qp_status timed_run(timed_model *model, timed_machine *machine, qp_error *error);

/* A run that is not timed: it brings weights into the caches and wakes the threads. */
qp_status timed_warm_up(timed_model *model, timed_machine *machine, qp_error *error);
