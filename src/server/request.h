/* A request: the data that a worker of the server and the engine thread share.
 *
 * A worker fills in a request and submits it (batcher.h). Then the engine thread writes events into
 * one ring for each choice, and one worker at a time reads them. Each side holds a reference; the
 * memory is freed with the last one.
 *
 *     request_new -> fields -> batcher_submit -> { batcher_take_ready -> request_next ...
 *                 -> request_drained } ... last event of every choice -> request_release
 */
#pragma once

#include "engine/adapters.h"
#include "engine/thought.h"
#include "quipu.h"

enum {
    REQUEST_MAX_TOP = 20,     /* alternatives of a token */
    REQUEST_MAX_CHOICES = 128 /* answers to one prompt */
};

/* Why a choice ended: a qp_finish, or one of these. */
enum {
    REQUEST_TIMED_OUT = 16, /* the deadline has passed */
    REQUEST_FAILED          /* see request->error */
};

/* A likely token, with the natural logarithm of its probability. */
typedef struct token_top {
    int32_t token;
    float logprob;
} token_top;

/* An event of a choice. Events come in order: with request->progress some for parts of the prompt,
 * one for each token, then one last event. */
typedef struct token_event {
    int32_t token;        /* in the last event: the stop token that ended the choice; -1: none; if
                           * `reading`: how many tokens of the prompt are read */
    bool reading;         /* no token: a part of the prompt was read */
    bool last;            /* the choice has ended, by `finish`; `token` is not part of the answer */
    uint8_t finish;       /* in the last event: a qp_finish, REQUEST_TIMED_OUT or REQUEST_FAILED */
    float logprob;        /* natural logarithm, if request->top_logprobs >= 0 */
    uint32_t n_top;       /* 0 .. request->top_logprobs */
    const token_top *top; /* [n_top], the likeliest first; valid until the next request_next() */
} token_event;

typedef struct choice choice;

typedef struct request {
    /* Set by a worker before batcher_submit(), constant afterwards; arrays are owned by the request
     * and freed with it. */
    int32_t *prompt; /* [n_prompt], at least one token */
    size_t n_prompt;
    size_t n_choices;       /* 0: 1; choice i has the seed of `sampling` + i */
    qp_sampling sampling;   /* stop texts are ignored here: a worker finds them and cancels */
    qp_logit_bias *biases;  /* owned; what sampling.logit_bias points to, or NULL */
    size_t max_tokens;      /* 0: until the context is full */
    size_t min_tokens;      /* before that many tokens, stop tokens of `sampling` are excluded */
    thought_rules thoughts; /* of the answers; zeros: they are like all text */
    bool ignore_eos;        /* stop tokens do not end a choice */
    int top_logprobs;       /* -1: no log-probabilities; else how many alternatives come with each
                             * token, at most REQUEST_MAX_TOP */
    bool prompt_logprobs; /* those of the prompt's tokens too, by choice 0; the prompt is computed,
                           * not taken from the cache */
    bool prompt_only;     /* nothing is chosen: each choice ends after the prompt, with LENGTH */
    bool progress;        /* choice 0 has events while its prompt is read */
    bool embed;           /* the mean of the last hidden states is wanted; no tokens are chosen */
    bool embed_last;      /* with `embed`: that of the last token in place of the mean */
    uint64_t cache_key;   /* prefixes are shared among requests of equal keys and adapters */
    session_adapters adapters;
    uint64_t deadline;                   /* clock_ns(); 0: none */
    void *context;                       /* the worker's own */
    void (*free_context)(void *context); /* called when the request is freed; may be NULL */

    /* Set by the engine thread; valid after the first event of a choice. */
    size_t cached_tokens;  /* tokens of the prompt found in the prefix cache */
    float *prompt_logprob; /* [n_prompt], if wanted; 0 for the first token */
    token_top *prompt_top; /* [n_prompt][top_logprobs], if wanted */
    float *embedding;      /* [hidden_size], if wanted; after the last event */
    qp_error error;        /* after an event with REQUEST_FAILED */
    uint64_t arrived, admitted, first_token, finished; /* clock_ns(); 0: not yet */

    choice *choices; /* [n_choices]; request.c */
    struct request_state *state;
} request;

/* With one reference, the caller's, and top_logprobs -1. NULL: no memory. */
request *request_new(void);

/* How many positions of a context the request needs at least: its prompt's, and one for an answer
 * if it wants one. */
size_t request_positions(const request *request);

void request_hold(request *request);
void request_release(request *request);

/* Takes the next event of a choice; false: none now. Only the worker that has taken the request may
 * call it. */
bool request_next(request *request, size_t choice, token_event *event);

/* Says that the worker has read all events. False: more have arrived, read again. After true
 * another worker may take the request. */
bool request_drained(request *request);

enum { REQUEST_ALL_CHOICES = -1 };

/* Ends a choice, or all of them, after the current pass. From any thread, at any time. The last
 * event still follows. */
void request_cancel(request *request, int choice);
