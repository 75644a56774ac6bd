/* What the batcher consists of: see batcher.h.
 *
 * `mutex` guards what workers and the engine thread share: the submitted and the ready requests,
 * and the sleep of the thread. All else belongs to the engine thread.
 */
#ifndef QUIPU_SERVER_BATCHER_STATE_H
#define QUIPU_SERVER_BATCHER_STATE_H

#include "engine/engine.h"
#include "server/batcher.h"
#include "server/request_engine.h"

#include <pthread.h>

/* A list of choices in order; the room for all that there may be is allocated at the start. */
typedef struct choice_list {
    choice **items; /* [capacity], the first `count` are there */
    size_t count, capacity;
} choice_list;

struct batcher {
    batcher_options options;
    qp_engine *engine;
    qp_engine_info info;
    size_t n_slots;

    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t work, idle;   /* for the engine thread; for batcher_drain() */
    choice_list submitted;       /* [max_queued] */
    size_t n_queued;             /* choices that are submitted or wait */
    size_t n_open;               /* choices that have not ended */
    request *ready, *last_ready; /* by next_ready; each with a reference */
    bool signalled, draining, closing;
    atomic_ullong last_step;

    qp_session **sessions;  /* [n_slots] */
    bool *in_use;           /* [n_slots] */
    choice_list waiting;    /* the next to be admitted first */
    choice_list running;    /* in the order in which they were admitted */
    qp_sequence *sequences; /* [n_slots]: of a step */
    choice **called;        /* [n_slots]: whose they are */
    size_t n_called;
    uint32_t *mask; /* [words of the vocabulary]: scratch */
    bool events;    /* some have come in this step */
};

/* The engine thread: takes what was submitted, steps, sleeps. batcher_thread.c */
void *batcher_run(void *batcher);

/* Ends a choice by its last event. If it runs, its slot becomes free. */
void batcher_end_choice(batcher *batcher, choice *choice, uint8_t finish, int32_t stop_token);

/* An event of this request has come. */
void batcher_note(batcher *batcher, request *request);

/* scheduler.c: gives free slots to those who wait, as far as there is room. */
void batcher_admit(batcher *batcher);

/* step: one call of qp_step() for all that run and have something to do; false: none has. */
bool batcher_step(batcher *batcher);

void choice_list_remove(choice_list *list, size_t index);

#endif
