/* What the public engine and session consist of. */
#pragma once

#include "engine/adapters.h"
#include "engine/observer.h"
#include "engine/generation_config.h"
#include "engine/owner.h"
#include "engine/pages.h"
#include "engine/prefix_tree.h"
#include "engine/ranks.h"
#include "engine/run.h"
#include "engine/speculate.h"
#include "engine/step.h"
#include "engine/trace.h"
#include "engine/vocabulary.h"
#include "op/cuda_ops.h"
#include "quipu.h"
#include "vm/batch.h"
#include "vm/machine.h"

enum { ENGINE_MACHINES = 2 };

struct qp_engine {
    engine_owner owner;
    model *model;
    program program;
    engine_adapters adapters;
    uint32_t cpu_features; /* that kernels may use */
    /* Custom kernels, which run in place of operators' own; valid if has_kernels. */
    kernel_table kernels;
    bool has_kernels;
    cuda_kernel cuda_kernels[OP_COUNT]; /* the same on a GPU */
    bool has_cuda_kernels;
    int64_t layers;         /* that run, the first ones; 0: all */
    bool partial;           /* what is left out of passes makes logits wrong */
    const char *costs_path; /* while it opens */
    bool at_once;           /* the same: see engine_part */
    qp_status (*admit)(void *context, uint64_t bytes, qp_error *error); /* the same */
    void *admit_context;
    struct cost_table *costs; /* measured, by which schedules are made; NULL: guesses */
    cuda_device device;       /* its context is NULL where no machine runs on a GPU */
    char device_text[128];    /* "cpu", "NVIDIA H200", or of two ranks "2 x NVIDIA H200" */
    /* The open machines are the last n_machines. The first of them that accepts a request runs it;
     * the last accepts every batch, and the others are over its memory. */
    machine slots[ENGINE_MACHINES];
    int n_machines;
    batch batch;
    step_state step;
    speculation speculation;
    page_pool pages;
    prefix_tree prefixes; /* open after engine_open_prefixes() */
    thread_pool *pool;
    engine_ranks ranks;
    qp_vocabulary *vocabulary; /* NULL: the model has none */
    generation_config defaults;
    qp_engine_info info;
    struct qp_session **sessions; /* [max_sessions]: by the slot that each has; NULL: free */
    int64_t n_sessions, max_sessions;
    uint64_t n_opened, n_samplers; /* sessions and samplers there ever were */
    uint64_t evaluation;           /* counts calls of qp_step() */
    qp_sampler *greedy;            /* chooses the likeliest tokens */
    observer observer;             /* hands tensors out */
    qp_trace *trace;               /* of the passes that run now; NULL: none */
    machine_profile limits;        /* measured for the first trace; all 0: not yet */
    void (*log)(void *context, qp_log_level level, const char *message);
    void *log_context;
    progress progress, *reading; /* `reading`: advances with the tokens of prompts; NULL: none */
    void (*tell_progress)(void *context, const char *text, bool finished);
    void *progress_context;
};

/* Frees all that the engine has, but for the struct. Sessions lose their pages, a trace its passes.
 */
void engine_shut(struct qp_engine *engine);

/* The calls of quipu.h with these names, for callers that have entered the engine. */
qp_status engine_step(struct qp_engine *engine, qp_sequence *sequences, size_t n_sequences,
                      qp_error *error);
qp_status engine_open_sampler(struct qp_engine *engine, const qp_sampling *sampling,
                              qp_sampler **out, qp_error *error);
qp_status engine_generate(struct qp_session *session, const qp_generate_options *options,
                          qp_generate_result *result, qp_error *error);
qp_status engine_open_session(struct qp_engine *engine, struct qp_session **out, qp_error *error);

/* The status of a callback, which may have written the message itself. */
qp_status error_of_callback(qp_status status, qp_error *error);

/* The model's family, for people and as GGUF calls it. */
const char *engine_family(const struct qp_engine *e);
const char *engine_gguf_family(const struct qp_engine *e);

/* Where the length of the contexts comes from and how to get another, for messages. */
const char *engine_about_context(const struct qp_engine *e);

/* Prepares the session's pages for `n` more tokens after `ahead` that are under way; pages that
 * other sessions hold too are copied first. QP_NO_MEMORY changes nothing. */
struct qp_session;
qp_status session_take_pages(struct qp_session *session, size_t ahead, size_t n, qp_error *error);

/* qp_session_adapt() for callers that have entered the engine. */
qp_status session_adapt(struct qp_session *session, const qp_adapter_use *uses, size_t n,
                        qp_error *error);

/* Forgets all but the first `keep` tokens. */
void session_truncate(struct qp_session *session, size_t keep);

/* Gives back the pages past the session's tokens and `ahead` more. */
void session_give_pages_back(struct qp_session *session, size_t ahead);

/* Makes `to`, an empty session of the same engine, hold the tokens of `from`, in the same
 * pages. */
void session_share(struct qp_session *to, const struct qp_session *from);

/* Opens the tree in which sessions find the beginnings of others' texts. Of a model whose RoPE
 * angles depend on the length of the whole text it stays closed, and nothing is found. */
qp_status engine_open_prefixes(struct qp_engine *engine, qp_error *error);

/* Gives an empty session as many of the tokens as the tree has, but never the last one, after which
 * logits are wanted. Returns how many the session holds now. */
size_t session_take_prefix(struct qp_session *session, uint64_t key, const int32_t *tokens,
                           size_t count);

/* Keeps the full pages of the session's first `count` tokens in the tree. */
void session_keep_prefix(struct qp_session *session, uint64_t key, size_t count);

/* What the cache holds of a sequence that has no session. Zero: nothing. */
typedef struct parked_pages {
    page_list pages;
    size_t count; /* tokens */
    int64_t n_kept, rope_length;
} parked_pages;

/* Takes the pages of a session, which is empty afterwards; they stay with the caller until
 * session_return() or parked_pages_free(). QP_NO_MEMORY changes nothing. */
qp_status session_park(struct qp_session *session, parked_pages *out, qp_error *error);

/* Gives an empty session of the same engine the pages back, and the tokens that they hold. */
void session_return(struct qp_session *session, parked_pages *parked, const int32_t *tokens);
void parked_pages_free(parked_pages *parked, page_pool *pool);

/* Progress of reading prompts is reported between these two, if one of the sequences has many new
 * tokens: by qp_step(), before it hands out a token. */
void engine_begin_reading(struct qp_engine *engine, const qp_sequence *sequences, size_t n);
void engine_end_reading(struct qp_engine *engine);

struct qp_session {
    engine_object object;
    qp_engine *engine;
    int32_t *tokens; /* [context], the first `count` are in the cache */
    size_t count;
    page_list pages;
    int64_t n_kept; /* of these pages, from the first on, are the prefix tree's */
    /* The length that RoPE frequencies are made for, where they depend on it: that of everything
     * submitted so far, so that they do not change with how a prompt is cut. */
    int64_t rope_length;
    uint64_t evaluation; /* the engine's count when this session was last given */
    uint64_t id;         /* no two sessions of an engine have the same */
    int32_t slot;        /* where the state of its requests lies */
    session_adapters adapters;
};

/* Gives rows of the engine's batch the session's adapters. */
static inline void session_adapt_rows(const struct qp_session *s, int64_t row, int64_t count)
{
    batch_set_adapters(&s->engine->batch, row, count, s->adapters.of, s->adapters.n);
}
