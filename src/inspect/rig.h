/* A model made ready to be timed: passes over any number of tokens at any depth, as any schedule.
 *
 * What measures (measure.h) and what compares (compare.h) run passes through a rig_machine and know
 * no more of it, so that a machine elsewhere, such as a GPU, is measured like the CPU's.
 */
#ifndef QUIPU_INSPECT_RIG_H
#define QUIPU_INSPECT_RIG_H

#include "vm/mega/megakernel.h"
#include "engine/pages.h"
#include "vm/scheduled.h"

typedef struct rig_options {
    const char *model;      /* as model_open() takes it */
    const char *device;     /* "cuda": a GPU's megakernel; NULL: the CPU */
    int threads;            /* the megakernel's blocks; 0: one a multiprocessor */
    int64_t context, chunk; /* positions of the sequence, tokens in a pass; 0: the usual */
    bool fuse;              /* the plan for few tokens */
    void (*progress)(void *context, const char *text, bool finished); /* may be NULL */
    void *progress_context;
} rig_options;

typedef struct rig {
    const rig_options *options;
    thread_pool *pool, *alone; /* all threads; one */
    progress progress;
    model *model;
    program plan;
    executor executor, alone_executor; /* the latter is the former with the pool of one */
    batch batch;
    page_pool pages;
    page_list sequence;
    int logits_end;     /* the step behind lm_head */
    cuda_device device; /* its context is NULL where the CPU runs */
    cuda_executor cuda;
} rig;

enum { RIG_LAUNCH = 9 }; /* passes of the megakernel in a launch; the first one is not counted */

/* QP_NO_MEMORY when it does not fit. The options outlive the rig. rig_close() it, also after a
 * failure. */
qp_status rig_open(const rig_options *options, rig *out, qp_error *error);
void rig_close(rig *rig);

/* Whether plans for few tokens are worth running: their operators have more than a reference. */
bool rig_fuses(void);

/* Makes the next pass's batch: the last `tokens` of `context` positions of one sequence, whose
 * cache holds zeros; of a launch of the megakernel `context` are those of the last pass. Both must
 * fit the plan's. */
qp_status rig_fill(rig *rig, int64_t tokens, int64_t context, qp_error *error);

/* A machine that runs one schedule over the rig's batch. */
typedef struct rig_machine {
    const schedule *schedule;
    void *self;
    /* One pass, or several of which the quickest counts; timings is [workers][longest], *ns what it
     * took. */
    qp_status (*run)(void *self, const batch *batch, instruction_timing *timings, double *ns,
                     qp_error *error);
    void (*close)(void *self);
    instruction_timing *memory;
    instruction_timing *timings, *best; /* [workers][longest]: of the next pass, of the quickest */
    const instruction_timing *last;     /* of the last pass: one of them */
    double *least; /* [workers][longest]: ns of each instruction's quickest work and signal */
    double *sum;   /* [workers][longest]: ns of all passes counted */
    double last_ns, best_ns; /* of those passes */
    int passes;              /* counted so far */
} rig_machine;

/* Makes the schedule that the options say, with the CPU machine for it: as many workers as the rig
 * has threads, or one. rig_machine_close() it, also after a failure. */
qp_status rig_machine_open(rig *rig, const schedule_options *options, bool alone, rig_machine *out,
                           qp_error *error);
void rig_machine_close(rig_machine *machine);

/* rig_cuda.c: the same on a GPU. */
qp_status rig_cuda_open(rig *rig, qp_error *error);
void rig_cuda_close(rig *rig);
qp_status rig_cuda_machine_open(rig *rig, const schedule_options *options, rig_machine *out,
                                qp_error *error);

/* One pass over the batch, timed. */
qp_status rig_run(rig *rig, rig_machine *machine, qp_error *error);

/* The same, but not counted: weights come to the caches, threads awake. */
qp_status rig_warm_up(rig *rig, rig_machine *machine, qp_error *error);

#endif
