/* The engine thread's side of a request: see request.h.
 *
 * A choice's ring has one writer, the engine thread, and one reader at a time, the worker that has
 * taken the request. One place is kept for the last event, so that a choice can always end.
 */
#ifndef QUIPU_SERVER_REQUEST_ENGINE_H
#define QUIPU_SERVER_REQUEST_ENGINE_H

#include "engine/prefix_tree.h"
#include "server/request.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { RING_EVENTS = 64 }; /* a power of two */

typedef enum choice_phase {
    CHOICE_WAITING, /* for a slot */
    CHOICE_RUNNING, /* it has a slot */
    CHOICE_ENDED
} choice_phase;

struct choice {
    request *request;
    size_t index;
    atomic_bool cancelled;

    /* The ring. `read` and `written` count events; `top_row`: the alternatives of ring[i]. */
    token_event ring[RING_EVENTS];
    token_top *tops; /* [RING_EVENTS][top_logprobs]; NULL: none are wanted */
    atomic_uint read, written;
    bool in_hand;       /* reader: ring[read] has been given out and is in use */
    atomic_bool paused; /* the engine thread waits for room */

    /* The engine thread's. */
    choice_phase phase;
    bool preempted;   /* it has had a slot before */
    prefix_walk walk; /* what is cached of its text */
    int32_t *tokens;  /* [capacity]: prompt, then what was chosen */
    size_t count, capacity;
    qp_sampler *sampler; /* NULL: not opened yet */
    qp_session *session; /* while running */
    size_t held;         /* tokens of the session when the call began */
    const float *row;    /* logits that the next token is chosen from, while qp_step() runs */
    double *hidden_sum;  /* [hidden_size] of the tokens read so far, for an embedding */
    bool masked;         /* stop tokens are excluded, for min_tokens */
    bool stopped;        /* it wants no more tokens */
    uint8_t finish;      /* once stopped */
    int32_t stop_token;  /* that ended it; -1: none */
    uint64_t last_token; /* clock_ns() of the last event */
};

typedef struct request_state {
    atomic_uint references;
    atomic_int ready; /* a request_ready */
    struct batcher *batcher;
    request *next_ready; /* in the batcher's list */
    size_t n_running;    /* choices that have not ended: the engine thread's */
    uint64_t id;         /* counts the requests from 1 */
} request_state;

/* Whether a worker has to look at a request. */
enum request_ready { REQUEST_IDLE, REQUEST_READY, REQUEST_READY_AGAIN };

/* Allocates the choices with room for their tokens: of a context of so many positions. */
qp_status request_prepare(request *request, size_t context, size_t hidden_size, qp_error *error);

void request_unprepare(request *request);

/* Says that there are events; true: put the request into the list of ready ones. */
bool request_note_event(request *request);

/* Events that fit besides the last one. 0: the choice is to pause, and batcher_signal() comes when
 * a worker has made room. */
size_t choice_room(choice *choice);

/* Where the alternatives of the next event go: [top_logprobs], or NULL. */
token_top *choice_next_top(choice *choice);

/* Appends an event; there is room. */
void choice_push(choice *choice, token_event event);

/* The engine thread may have something to do: from any thread. */
void batcher_signal(struct batcher *batcher);

#endif
