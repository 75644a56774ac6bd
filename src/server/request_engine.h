/* The engine thread's side of a request: see request.h.
 *
 * A choice's ring has one writer, the engine thread, and one reader at a time, the worker that has
 * taken the request. One place is kept for the last event, so that a choice can always end.
 */
#pragma once

#include "engine/engine.h"
#include "server/masks.h"
#include "server/request.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { RING_EVENTS = 64 }; /* a power of two */

typedef enum choice_phase {
    CHOICE_WAITING, /* waits for a slot */
    CHOICE_STALLED, /* has given its slot up, and waits for its client to read */
    CHOICE_RUNNING, /* has a slot */
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
    bool in_hand;       /* reader: ring[read] was returned and is still in use */
    atomic_bool paused; /* the engine thread waits for room */

    /* Used by the engine thread only. */
    choice_phase phase;
    bool preempted;   /* it has had a slot before */
    prefix_walk walk; /* how much of its text is cached */
    int32_t *tokens;  /* [capacity]: prompt, then chosen tokens */
    size_t count, capacity;
    size_t n_pushed;       /* of these, tokens whose events were pushed */
    qp_sampler *sampler;   /* NULL: not opened yet */
    mask_text *form;       /* the answer's, begun with the sampler; NULL: any text */
    thought_watch thought; /* begins with the sampler */
    bool bound;            /* the sampler has a mask */
    qp_session *session;   /* while running */
    parked_pages parked;   /* else: what it keeps of the cache */
    uint64_t stalled;      /* clock_ns() when it was stalled */
    size_t held;           /* tokens of the session at the start of the call */
    const float *row;      /* logits that the next token is chosen from, while qp_step() runs */
    double *hidden_sum;    /* [hidden_size] of the tokens read so far, for an embedding */
    bool stops_excluded;   /* by biases of the sampler, for min_tokens */
    bool stopped;          /* it wants no more tokens */
    uint8_t finish;        /* once stopped */
    int32_t stop_token;    /* the stop token that ended it; -1: none */
    uint64_t last_token;   /* clock_ns() of the last event */
};

typedef struct request_state {
    atomic_uint references;
    atomic_int ready; /* a request_ready */
    struct batcher *batcher;
    request *next_ready; /* in the batcher's list */
    size_t n_running;    /* choices that have not ended: the engine thread's, */
    size_t n_slots;      /* and those that have slots */
    uint64_t id;         /* counts the requests from 1 */
} request_state;

/* Whether a worker has to look at a request. */
enum request_ready { REQUEST_IDLE, REQUEST_READY, REQUEST_READY_AGAIN };

/* Allocates the choices, with room for the tokens of a context of this many positions. */
qp_status request_prepare(request *request, size_t context, size_t hidden_size, qp_error *error);

void request_unprepare(request *request);

/* Marks that there are events. True: the caller must add the request to the list of ready ones. */
bool request_note_event(request *request);

/* How many events fit besides the last one. 0: the choice pauses; a worker calls batcher_signal()
 * when it has made room. */
size_t choice_room(choice *choice);

/* Whether this many events fit; if not, a worker calls batcher_signal() when it has read one. */
bool choice_has_room(choice *choice, size_t events);

/* Memory for the alternatives of the next event: [top_logprobs], or NULL. */
token_top *choice_next_top(choice *choice);

/* Appends an event. The caller has checked that there is room. */
void choice_push(choice *choice, token_event event);

/* Closes the sampler and the form's text. */
void choice_close_sampler(choice *choice);

/* Wakes the engine thread, which may have something to do. From any thread. */
void batcher_signal(struct batcher *batcher);
