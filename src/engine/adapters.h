/* LoRA adapters of an engine: what its options ask for, and which ones a session has. */
#pragma once

#include "model/adapter.h"
#include "quipu.h"
#include "vm/batch.h"

/* Those that sequences begin with, and how much each counts where it is asked for by its name. */
typedef struct engine_adapters {
    double scales[ADAPTER_MAX];
    qp_adapter_use begin[ADAPTER_MAX]; /* [n_begin] */
    size_t n_begin;
    int64_t at_once; /* most of a session */
} engine_adapters;

/* Those of a session, in the order of their numbers. */
typedef struct session_adapters {
    batch_adapter of[ADAPTER_MAX]; /* [n] */
    int64_t n;
    uint64_t key; /* of what they add; 0: there are none */
} session_adapters;

/* Checks the options; `choices`, [ADAPTER_MAX], are those to open. */
qp_status engine_choose_adapters(const qp_engine_options *options, adapter_choice *choices,
                                 adapter_choices *out, engine_adapters *own, qp_error *error);

/* QP_INVALID as qp_session_adapt() says. */
qp_status engine_use_adapters(const model *model, const engine_adapters *own,
                              const qp_adapter_use *uses, size_t n, session_adapters *out,
                              qp_error *error);

/* A key of texts that were read with these adapters. */
uint64_t session_adapters_key(const session_adapters *adapters, uint64_t key);
