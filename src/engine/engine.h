/* The parts behind the public engine and session. */
#ifndef QUIPU_ENGINE_ENGINE_H
#define QUIPU_ENGINE_ENGINE_H

#include "vm/batch.h"
#include "vm/mega/megakernel.h"
#include "vm/execute.h"
#include "engine/generation_config.h"
#include "engine/pages.h"
#include "vm/scheduled.h"
#include "engine/trace.h"
#include "engine/vocabulary.h"
#include "quipu.h"

struct qp_engine {
    model *model;
    program plan;
    executor executor;
    cuda_device device;  /* its context is NULL where the CPU runs the plan */
    cuda_executor cuda;  /* runs the plan up to the logits, and what follows where it feeds tokens
                          * back; else the CPU's executor does that */
    cuda_mega mega;      /* runs passes of one token there; its kernel is NULL where it does not */
    scheduled scheduled; /* its machine is NULL where the plan runs operator by operator */
    int logits_end;      /* the step behind lm_head */
    int sample_step;     /* run when a token is wanted */
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

/* Prepares the session's pages for `n` more tokens after `ahead` that are under way; pages that
 * other sessions hold too are copied first. QP_NO_MEMORY changes nothing. */
struct qp_session;
qp_status session_take_pages(struct qp_session *session, size_t ahead, size_t n, qp_error *error);

/* Gives back the pages past the session's tokens and `ahead` more. */
void session_give_pages_back(struct qp_session *session, size_t ahead);

/* Makes `to`, an empty session of the same engine, hold the tokens of `from`, in the same pages,
 * and its logits. */
void session_share(struct qp_session *to, const struct qp_session *from);

/* A forward pass over the engine's batch, up to the logits; `logits`: they are wanted here, in the
 * executor's. */
qp_status engine_run_batch(struct qp_engine *engine, bool logits, qp_error *error);

/* Lets the GPU feed its tokens back to itself: the session reads up to *count tokens, the first of
 * which is given, the others what was made behind them, as tokens[*count] is behind the last; `way`
 * says how, and may end it early. *count: how many there were. No logits are kept. Only where the
 * engine's mega has a kernel. */
qp_status session_feed_back(struct qp_session *session, const cuda_mega_way *way, int64_t *count,
                            int32_t *tokens, qp_error *error);

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
