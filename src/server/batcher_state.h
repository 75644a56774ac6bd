/* The batcher's state: see batcher.h.
 *
 * `mutex` protects what workers and the engine thread share: submitted and ready requests, and the
 * thread's sleep. Only the engine thread uses the rest.
 */
#pragma once

#include "engine/engine.h"
#include "server/batcher.h"
#include "server/request_engine.h"
#include "server/statistics.h"

#include <pthread.h>

/* An ordered list of choices. Its full capacity is allocated at the start. */
typedef struct choice_list {
    choice **items; /* [capacity], the first `count` are valid */
    size_t count;
} choice_list;

/* How many slots the choices of a key have. */
typedef struct key_slots {
    uint64_t key;
    size_t slots;
} key_slots;

/* Requests linked by next_ready, each with a reference; `last` is valid while there is a first. */
typedef struct request_list {
    request *first, *last;
} request_list;

/* Where a record of a pass stands: pass_trace.c. */
typedef enum trace_state {
    TRACE_NONE,
    TRACE_WANTED,
    TRACE_RECORDING,
    TRACE_RECORDED,
    TRACE_FAILED, /* it could not be opened: trace_error */
    TRACE_PRINTED,
} trace_state;

struct batcher {
    batcher_options options;
    qp_engine *engine;
    qp_engine_info info;
    size_t n_slots;

    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t work;   /* for the engine thread */
    choice_list submitted; /* [max_queued] */
    size_t n_queued;       /* choices that are submitted or wait */
    size_t n_open;         /* choices that have not ended */
    uint64_t n_requests;   /* submitted so far */
    request_list ready;
    bool signalled, closing;
    bool ended; /* the engine thread: it answers no more */
    atomic_ullong last_step;

    qp_session **sessions; /* [n_slots] */
    bool *in_use;          /* [n_slots] */
    choice_list waiting;   /* in the order of age, with those that are stalled */
    size_t n_stalled;      /* choices of `waiting` that wait for their clients */
    choice_list running;   /* in the order in which they were admitted */
    key_slots *keys;       /* [n_slots], the first n_keys: keys that have slots */
    size_t n_keys;
    qp_sequence *sequences; /* [n_slots]: sequences of a step */
    choice **called;        /* [n_slots]: the choices of these sequences */
    size_t n_called;
    bool read_prompts;        /* the last step did */
    double pass_ns, token_ns; /* measured: time of a pass that only decodes, and time that a token
                               * of a prompt adds; 0: not yet measured */
    bool events;              /* this step has made events, */
    request_list noted;       /* of these requests, which batcher_hand_on() makes ready */

    batcher_stats stats;  /* counters; without sequences and tree */
    mask_maker *masks;    /* of answers that have a form */
    uint64_t last_return; /* clock_ns() of qp_step()'s, if the next step follows at once; else 0 */
    atomic_bool snapshot_wanted;
    pthread_cond_t answered; /* under `mutex`, as these: */
    batcher_stats snapshot;
    uint64_t n_snapshots;
    bool snapshot_failed;
    atomic_int trace_state; /* a trace_state; changes under `mutex` */
    qp_trace *trace;        /* the engine thread's; constant while it is TRACE_RECORDED */
    qp_error trace_error;
};

/* batcher_open() without its thread, for tests that call batcher_turn() themselves. */
qp_status batcher_create(const batcher_options *options, qp_engine *engine, batcher **out,
                         qp_error *error);

/* The engine thread: turns, and sleeps while there is nothing to do, until the batcher is closed.
 * engine_thread.c */
void batcher_run(batcher *batcher);

/* Takes submitted requests, ends finished choices, admits and steps; false: nothing to do. */
bool batcher_turn(batcher *batcher);

/* Ends a choice by its last event. If it runs, its slot becomes free. */
void batcher_end_choice(batcher *batcher, choice *choice, uint8_t finish, int32_t stop_token);

/* Tells the workers that this request has an event, once batcher_hand_on() is called: so a step
 * needs the mutex once for all its tokens. */
void batcher_note(batcher *batcher, request *request);
void batcher_hand_on(batcher *batcher);

/* scheduler.c: gives slots to waiting choices while there are pages. */
void batcher_admit(batcher *batcher);

/* slots.c. How many slots the choices of a key have. */
size_t slots_of_key(const batcher *batcher, uint64_t key);

/* A waiting choice, which is in no list, gets a free slot. */
void slot_start(batcher *batcher, choice *choice);

/* Takes the slot from a running choice that ends. `keep`: the prefix tree keeps its pages. */
void batcher_leave_slot(batcher *batcher, choice *choice, bool keep);

/* The running choice of this index waits again and keeps its pages; if its client reads too slowly,
 * it is stalled. */
void slot_park(batcher *batcher, size_t index);

/* A waiting choice waits for its client; and for a slot again. */
void slot_stall(batcher *batcher, choice *choice);
void slot_wake(batcher *batcher, choice *choice);

/* Takes the pages from the youngest waiting choice that has any; false: none has. */
bool slot_drop_parked(batcher *batcher, const choice *except);

/* Whether the bits of an answer must not depend on others: passes have fixed shapes, and tokens of
 * prompts are computed in other passes than those that were chosen. */
static inline bool batcher_is_invariant(const batcher *batcher)
{
    return batcher->engine->step.fixed.rows > 0;
}

/* Keeps the choice's pages in the prefix tree; of an invariant batcher only those of the prompt,
 * because other requests may have the same tokens in their prompts. */
void batcher_keep_prefix(batcher *batcher, choice *choice);

/* Makes pages free: those of a waiting choice, or of the youngest running one, which waits again;
 * false: at most one runs. */
bool batcher_preempt(batcher *batcher);

/* statistics.c */
void stats_init(batcher_stats *stats);
void stats_add_pass(batcher_stats *stats, pass_stats pass);

/* Makes a snapshot if one was requested. */
void stats_answer(batcher *batcher);

/* pass_trace.c: opens or closes the trace that a worker wants; says that a pass is recorded. */
void trace_before_step(batcher *batcher);
void trace_after_step(batcher *batcher);

/* engine_step.c: one call of qp_step() for all running choices that have something to do; false:
 * none has. */
bool batcher_step(batcher *batcher);

/* An event that says how many tokens of the prompt are read, if the request wants these. */
void batcher_note_progress(batcher *batcher, choice *choice, size_t read);

void choice_list_remove(choice_list *list, size_t index);
