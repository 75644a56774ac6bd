/* Hands the tensors of passes to the caller of the engine: see qp_engine_options.on_tensor. A pass
 * then runs on the machine that has the memory, in as many runs as there are steps whose outputs
 * are wanted. */
#pragma once

#include "engine/run.h"
#include "quipu.h"

/* Zero: nothing is handed out. */
typedef struct observer {
    char *patterns; /* separated by commas; NULL: all tensors */
    qp_status (*receive)(void *context, const qp_tensor *tensor);
    void *context;
    bool *wanted; /* [n_steps]: whether one of the outputs of a step is */
    void *data;   /* [capacity]: the largest tensor */
    size_t capacity;
    uint64_t passes; /* that were run */
} observer;

enum { OBSERVER_NAME_SIZE = 128 };

/* What a tensor that a step makes is called: "layers.3.attn_qkv.qkv", or "embedding.x" outside of
 * the layers. */
void observer_name_tensor(const program *program, int step, plan_tensor_id id,
                          char text[OBSERVER_NAME_SIZE]);

/* QP_INVALID: no tensor has such a name. observer_free() it, also after a failure. */
qp_status observer_open(const struct qp_engine *engine, const qp_engine_options *options,
                        observer *out, qp_error *error);
void observer_free(observer *observer);

/* Runs all steps up to the last one, and begins that: engine_begin_run() with an observer. */
qp_status observer_begin_run(struct qp_engine *engine, engine_run *run, qp_error *error);

/* Hands out what the last step made, when the run has been waited for. */
qp_status observer_end_run(struct qp_engine *engine, const engine_run *run, qp_error *error);
