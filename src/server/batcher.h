/* The batcher: one engine thread that makes progress for all requests of a server.
 *
 *     workers -> bounded queue -> waiting -> slots -> qp_step() -> rings -> workers
 *
 * A slot is a session of the engine. The engine thread admits requests into free slots, builds the
 * batch of each step and hands out tokens. It never parses, formats, logs or waits for a socket.
 */
#pragma once

#include "server/request.h"

typedef struct batcher batcher;

/* A zero field takes its default. */
typedef struct batcher_options {
    size_t max_queued;       /* choices that may wait for a slot; default 1,024 */
    uint64_t age_limit_ns;   /* one that has waited for longer comes before those with more of their
                              * prompts in the cache; default 2 s */
    uint64_t stall_limit_ns; /* a choice that waits for its client for longer ends; default 600 s */
    uint64_t prompt_ns;   /* about what prompts may add to a pass while other choices decode: this
                           * time, default 5 ms, */
    double prompt_passes; /* and the time of this many passes of those choices alone; default 1 */
    uint64_t group_ns;    /* about how long passes may run ahead of what is handed out; default
                           * 4 ms */
    /* Called from the engine thread, once after each step that made events. It must not block; a
     * write to an eventfd does not. */
    void (*wake)(void *context);
    void *wake_context;
} batcher_options;

/* The batcher alone uses the engine until batcher_close(). The engine's sessions are the slots. */
qp_status batcher_open(const batcher_options *options, qp_engine *engine, batcher **out,
                       qp_error *error);

/* Cancels what runs and ends the thread: no more events come and no more calls of `wake`. Events
 * that have come can still be taken. */
void batcher_stop(batcher *batcher);

/* Stops and frees the batcher; no other thread may use it any more. */
void batcher_close(batcher *batcher);

/* Takes a reference of its own; from any thread. QP_NO_MEMORY: the queue is full. QP_INVALID: the
 * prompt is empty, too long, or has a token outside the vocabulary, or the request needs more
 * than the engine can do. QP_CANCELLED: the batcher has been stopped. */
qp_status batcher_submit(batcher *batcher, request *request, qp_error *error);

/* The next request with events, with a reference for the caller; NULL: none. No other worker gets
 * it before request_drained(). */
request *batcher_take_ready(batcher *batcher);

/* Records the next forward pass and prints it in this form; qp_free() the text. The first record of
 * an engine waits until the machine's speed is measured. QP_CANCELLED: no pass has ended within a
 * second. QP_NO_MEMORY: another record is under way. */
qp_status batcher_trace(batcher *batcher, qp_trace_form form, char **text, size_t *length,
                        qp_error *error);

/* clock_ns() at the end of the last step, or when the thread last had nothing to do. */
uint64_t batcher_last_step(const batcher *batcher);
