/* Requests: their memory, rings and references. See request.h and request_engine.h. */
#include "server/request_engine.h"

#include "base/status.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

size_t request_positions(const request *r)
{
    return r->n_prompt + !(r->prompt_only || r->embed);
}

request *request_new(void)
{
    request *r = calloc(1, sizeof *r);
    request_state *state = calloc(1, sizeof *state);
    if (!r || !state) {
        free(r);
        free(state);
        return NULL;
    }
    atomic_init(&state->references, 1);
    atomic_init(&state->ready, REQUEST_IDLE);
    r->state = state;
    r->sampling.size = sizeof r->sampling;
    r->top_logprobs = -1;
    return r;
}

void request_hold(request *r)
{
    atomic_fetch_add(&r->state->references, 1);
}

void request_unprepare(request *r)
{
    for (size_t i = 0; r->choices && i < r->n_choices; i++) {
        free(r->choices[i].tokens);
        free(r->choices[i].tops);
        free(r->choices[i].hidden_sum);
    }
    free(r->choices);
    free(r->prompt_logprob);
    free(r->prompt_top);
    free(r->embedding);
    r->embedding = NULL;
    r->choices = NULL;
    r->prompt_logprob = NULL;
    r->prompt_top = NULL;
}

void request_release(request *r)
{
    if (!r || atomic_fetch_sub(&r->state->references, 1) > 1) return;
    if (r->free_context) r->free_context(r->context);
    request_unprepare(r);
    free(r->prompt);
    free(r->biases);
    free(r->state);
    free(r);
}

/* ---- before the engine thread has it ------------------------------------------------------- */

static qp_status prepare_choice(request *r, size_t i, size_t context, qp_error *error)
{
    choice *c = &r->choices[i];
    const size_t most = context - r->n_prompt, wanted = r->max_tokens;
    c->request = r;
    c->index = i;
    c->stop_token = -1;
    c->capacity = r->n_prompt + (wanted && wanted < most ? wanted : most);
    c->count = r->n_prompt;
    c->tokens = malloc(c->capacity * sizeof *c->tokens);
    const size_t tops = r->top_logprobs > 0 ? (size_t)r->top_logprobs * RING_EVENTS : 0;
    if (tops) c->tops = malloc(tops * sizeof *c->tops);
    if (!c->tokens || (tops && !c->tops))
        return error_no_memory(error, "a request", c->capacity * sizeof *c->tokens);
    memcpy(c->tokens, r->prompt, r->n_prompt * sizeof *c->tokens);
    return QP_OK;
}

static qp_status prepare_prompt_logprobs(request *r, qp_error *error)
{
    const size_t n = r->n_prompt, top = r->top_logprobs > 0 ? (size_t)r->top_logprobs : 0;
    if (!r->prompt_logprobs) return QP_OK;
    r->prompt_logprob = calloc(n, sizeof *r->prompt_logprob);
    if (top) r->prompt_top = calloc(n * top, sizeof *r->prompt_top);
    if (r->prompt_logprob && (!top || r->prompt_top)) return QP_OK;
    return error_no_memory(error, "the prompt's log-probabilities", n * (1 + top) * 8);
}

/* Only for choice 0, because all choices have the same prompt. */
static qp_status prepare_embedding(request *r, size_t hidden_size, qp_error *error)
{
    if (!r->embed) return QP_OK;
    r->embedding = calloc(hidden_size, sizeof *r->embedding);
    r->choices[0].hidden_sum = calloc(hidden_size, sizeof *r->choices[0].hidden_sum);
    if (r->embedding && r->choices[0].hidden_sum) return QP_OK;
    return error_no_memory(error, "an embedding", hidden_size * sizeof(double));
}

qp_status request_prepare(request *r, size_t context, size_t hidden_size, qp_error *error)
{
    if (r->n_choices == 0) r->n_choices = 1;
    r->choices = calloc(r->n_choices, sizeof *r->choices);
    qp_status status = r->choices ? prepare_prompt_logprobs(r, error)
                                  : error_no_memory(error, "a request", sizeof *r->choices);
    for (size_t i = 0; i < r->n_choices && status == QP_OK; i++)
        status = prepare_choice(r, i, context, error);
    if (status == QP_OK) status = prepare_embedding(r, hidden_size, error);
    if (status != QP_OK) request_unprepare(r);
    return status;
}

/* ---- events -------------------------------------------------------------------------------- */

/* How many events fit, if these are at least `least`; else 0, and the choice is paused. */
static size_t room_for(choice *c, size_t least)
{
    for (int look = 0; look < 2; look++) {
        const size_t used = atomic_load(&c->written) - atomic_load(&c->read);
        if (used + least < RING_EVENTS) {
            if (atomic_load(&c->paused)) atomic_store(&c->paused, false);
            return RING_EVENTS - 1 - used;
        }
        atomic_store(&c->paused, true); /* then check again: the reader may not have seen it */
    }
    return 0;
}

size_t choice_room(choice *c)
{
    return room_for(c, 1);
}

bool choice_has_room(choice *c, size_t events)
{
    return room_for(c, events) > 0;
}

token_top *choice_next_top(choice *c)
{
    const unsigned at = atomic_load(&c->written) % RING_EVENTS;
    return c->tops ? c->tops + at * (size_t)c->request->top_logprobs : NULL;
}

void choice_push(choice *c, token_event event)
{
    const unsigned written = atomic_load(&c->written);
    assert(written - atomic_load(&c->read) < RING_EVENTS);
    c->ring[written % RING_EVENTS] = event;
    atomic_store(&c->written, written + 1);
}

void choice_close_sampler(choice *c)
{
    qp_sampler_close(c->sampler);
    masks_end(c->form);
    c->sampler = NULL;
    c->form = NULL;
}

bool request_next(request *r, size_t index, token_event *event)
{
    choice *c = &r->choices[index];
    if (c->in_hand) {
        c->in_hand = false;
        atomic_fetch_add(&c->read, 1);
        if (atomic_exchange(&c->paused, false)) batcher_signal(r->state->batcher);
    }
    const unsigned read = atomic_load(&c->read);
    if (read == atomic_load(&c->written)) return false;
    *event = c->ring[read % RING_EVENTS];
    return c->in_hand = true;
}

bool request_note_event(request *r)
{
    int seen = atomic_load(&r->state->ready);
    for (;;) {
        const int next = seen == REQUEST_IDLE ? REQUEST_READY : REQUEST_READY_AGAIN;
        if (atomic_compare_exchange_weak(&r->state->ready, &seen, next))
            return seen == REQUEST_IDLE;
    }
}

bool request_drained(request *r)
{
    int seen = REQUEST_READY;
    if (atomic_compare_exchange_strong(&r->state->ready, &seen, REQUEST_IDLE)) return true;
    atomic_store(&r->state->ready, REQUEST_READY);
    return false;
}

void request_cancel(request *r, int index)
{
    for (size_t i = 0; r->choices && i < r->n_choices; i++)
        if (index == REQUEST_ALL_CHOICES || (size_t)index == i)
            atomic_store(&r->choices[i].cancelled, true);
    if (r->state->batcher) batcher_signal(r->state->batcher);
}
