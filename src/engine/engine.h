/* What the public engine and session consist of. */
#ifndef QUIPU_ENGINE_ENGINE_H
#define QUIPU_ENGINE_ENGINE_H

#include "engine/chooser.h"
#include "engine/generation_config.h"
#include "engine/pages.h"
#include "engine/trace.h"
#include "engine/vocabulary.h"
#include "quipu.h"
#include "vm/batch.h"
#include "vm/machine.h"

enum { ENGINE_MACHINES = 2 };

struct qp_engine {
    model *model;
    program plan;
    uint32_t cpu_features; /* that kernels may use */
    cuda_device device;    /* its context is NULL where no machine runs on a GPU */
    /* The open machines are the last n_machines. The first of them that accepts a request runs it;
     * the last accepts every batch, and the others are over its memory. */
    machine slots[ENGINE_MACHINES];
    int n_machines;
    chooser chooser;
    batch batch;
    page_pool pages;
    thread_pool *pool;
    qp_vocabulary *vocabulary; /* NULL: the model has none */
    generation_config defaults;
    int64_t n_sessions, max_sessions;
    uint64_t evaluation; /* counts calls of qp_eval() */
    qp_trace *trace;     /* of the passes that run now; NULL: none */
    void (*log)(void *context, qp_log_level level, const char *message);
    void *log_context;
    progress progress;
    void (*tell_progress)(void *context, const char *text, bool finished);
    void *progress_context;
};

/* Where the length of the contexts comes from and how to get another, for messages. */
const char *engine_about_context(const struct qp_engine *e);

/* Prepares the session's pages for `n` more tokens after `ahead` that are under way; pages that
 * other sessions hold too are copied first. QP_NO_MEMORY changes nothing. */
struct qp_session;
qp_status session_take_pages(struct qp_session *session, size_t ahead, size_t n, qp_error *error);

/* Gives back the pages past the session's tokens and `ahead` more. */
void session_give_pages_back(struct qp_session *session, size_t ahead);

/* Makes `to`, an empty session of the same engine, hold the tokens of `from`, in the same pages,
 * and its logits. */
void session_share(struct qp_session *to, const struct qp_session *from);

/* ---- run.c: runs on the machines ------------------------------------------------------------ */

/* The index-th open machine, in the order in which they are asked. */
static inline const machine *engine_machine(const struct qp_engine *e, int index)
{
    return &e->slots[ENGINE_MACHINES - e->n_machines + index];
}

/* The machine that holds the memory which the others share. */
static inline const machine *engine_memory(const struct qp_engine *e)
{
    return &e->slots[ENGINE_MACHINES - 1];
}

/* The first machine that accepts the request; NULL: none does. */
const machine *engine_find_machine(const struct qp_engine *engine, const machine_request *request);

/* The pace of the first machine that runs passes of one new token of each of `n_sequences`. */
machine_pace engine_pace(const struct qp_engine *engine, int64_t n_sequences,
                         machine_choice choice);

/* A run of one of the engine's machines. */
typedef struct engine_run {
    const machine *machine;
    machine_request request;
} engine_run;

/* Starts run->request on the first machine that accepts it, and records it where there is a trace.
 * QP_UNSUPPORTED says why no machine does. */
qp_status engine_begin_run(struct qp_engine *engine, engine_run *run, qp_error *error);

/* Ends it; of several runs the one that was begun first. *passes (may be NULL): how many. */
qp_status engine_end_run(struct qp_engine *engine, const engine_run *run, int *passes,
                         qp_error *error);

/* A pass over the engine's batch, up to the logits. *logits: (n_outputs, vocab_size), which may be
 * changed, until the next run; NULL: they are not wanted. */
qp_status engine_run_batch(struct qp_engine *engine, float **logits, qp_error *error);

struct qp_session {
    qp_engine *engine;
    int32_t *tokens; /* [context], the first `count` are in the cache */
    size_t count;
    page_list pages;
    /* The length that RoPE frequencies are made for, where they depend on it: that of everything
     * submitted so far, so that they do not change with how a prompt is cut. */
    int64_t rope_length;
    uint64_t evaluation; /* the engine's count when this session was last given */
    float *logits;       /* [vocab_size]: of the last token, for qp_generate() */
};

#endif
