/* Opening, closing and the workers' side of the batcher: see batcher.h. */
#include "server/batcher_state.h"

#include "base/clock.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_QUEUED = 1024 };

static void *run(void *b)
{
    batcher_run(b);
    return NULL;
}

/* ---- open and close ------------------------------------------------------------------------ */

static bool list_init(choice_list *list, size_t capacity)
{
    *list = (choice_list){0};
    return (list->items = calloc(capacity, sizeof(choice *))) != NULL;
}

static void wake_for_mask(void *b)
{
    batcher_signal(b);
}

static qp_status allocate(batcher *b, qp_error *error)
{
    const size_t n = b->n_slots, queued = b->options.max_queued;
    b->sessions = calloc(n, sizeof(qp_session *));
    b->in_use = calloc(n, sizeof *b->in_use);
    b->keys = calloc(n, sizeof *b->keys);
    b->sequences = calloc(n, sizeof *b->sequences);
    b->called = calloc(n, sizeof(choice *));
    if (!b->sessions || !b->in_use || !b->keys || !b->sequences || !b->called ||
        !list_init(&b->submitted, queued) || !list_init(&b->waiting, queued * 2 + n) ||
        !list_init(&b->running, n))
        return error_no_memory(error, "the batcher", (queued * 2 + n * 4) * sizeof(choice *));
    for (size_t i = 0; i < n; i++) {
        qp_session *s;
        TRY(qp_session_open(b->engine, &s, error));
        b->sessions[s->slot] = s;
    }
    TRY(masks_open(wake_for_mask, b, &b->masks, error));
    return engine_open_prefixes(b->engine, error);
}

static void init_sleep(batcher *b)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->work, &monotonic);
    pthread_cond_init(&b->answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

qp_status batcher_create(const batcher_options *options, qp_engine *engine, batcher **out,
                         qp_error *error)
{
    *out = NULL;
    batcher *b = calloc(1, sizeof *b);
    if (!b) return error_no_memory(error, "the batcher", sizeof *b);
    b->options = *options;
    if (b->options.max_queued == 0) b->options.max_queued = DEFAULT_QUEUED;
    if (b->options.age_limit_ns == 0) b->options.age_limit_ns = 2000000000;
    if (b->options.stall_limit_ns == 0) b->options.stall_limit_ns = 600000000000;
    if (b->options.prompt_ns == 0) b->options.prompt_ns = 5000000;
    if (b->options.prompt_passes == 0) b->options.prompt_passes = 1;
    if (b->options.group_ns == 0) b->options.group_ns = 4000000;
    b->engine = engine;
    b->info = *qp_engine_get_info(engine);
    b->n_slots = (size_t)engine->max_sessions;
    atomic_init(&b->last_step, clock_ns());
    stats_init(&b->stats);
    init_sleep(b);
    qp_status status = allocate(b, error);
    if (status == QP_OK)
        *out = b;
    else
        batcher_close(b);
    return status;
}

qp_status batcher_open(const batcher_options *options, qp_engine *engine, batcher **out,
                       qp_error *error)
{
    TRY(batcher_create(options, engine, out, error));
    (*out)->started = pthread_create(&(*out)->thread, NULL, run, *out) == 0;
    if ((*out)->started) return QP_OK;
    batcher_close(*out);
    *out = NULL;
    return error_set(error, QP_IO, "the system gives no thread for the engine");
}

static void release_ready(batcher *b)
{
    for (request *r; (r = batcher_take_ready(b));)
        request_release(r);
}

void batcher_stop(batcher *b)
{
    pthread_mutex_lock(&b->mutex);
    const bool stopped = b->closing;
    b->closing = b->signalled = true;
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->mutex);
    if (stopped) return;
    if (b->started)
        pthread_join(b->thread, NULL);
    else
        batcher_run(b);
    pthread_mutex_lock(&b->mutex);
    b->ended = true;
    pthread_cond_broadcast(&b->answered);
    pthread_mutex_unlock(&b->mutex);
}

void batcher_close(batcher *b)
{
    if (!b) return;
    batcher_stop(b);
    release_ready(b);
    masks_close(b->masks);
    qp_trace_close(b->trace);
    for (size_t i = 0; b->sessions && i < b->n_slots; i++)
        qp_session_close(b->sessions[i]);
    free(b->sessions);
    free(b->in_use);
    free(b->keys);
    free(b->sequences);
    free(b->called);
    free(b->submitted.items);
    free(b->waiting.items);
    free(b->running.items);
    pthread_cond_destroy(&b->work);
    pthread_cond_destroy(&b->answered);
    batcher_stats_free(&b->snapshot);
    pthread_mutex_destroy(&b->mutex);
    free(b);
}

/* ---- submitting ---------------------------------------------------------------------------- */

static qp_status check_prompt(const batcher *b, const request *r, qp_error *error)
{
    const int64_t vocab_size = b->info.vocab_size;
    if (r->n_prompt == 0)
        return error_set(error, QP_INVALID, "the prompt is empty; give at least one token");
    if (request_positions(r) > (size_t)b->info.context)
        return error_set(error, QP_INVALID,
                         "a prompt of %zu tokens%s needs %zu positions, but the context has %lld",
                         r->n_prompt,
                         request_positions(r) > r->n_prompt ? " and one for an answer" : "",
                         request_positions(r), (long long)b->info.context);
    for (size_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= vocab_size)
            return error_set(error, QP_INVALID,
                             "token %zu of the prompt is %d, but the vocabulary has the ids 0 to "
                             "%lld",
                             i, r->prompt[i], (long long)vocab_size - 1);
    return QP_OK;
}

static qp_status check(const batcher *b, const request *r, qp_error *error)
{
    TRY(check_prompt(b, r, error));
    if (r->n_choices > REQUEST_MAX_CHOICES)
        return error_set(error, QP_INVALID, "%zu choices are asked for, at most %d can be",
                         r->n_choices, REQUEST_MAX_CHOICES);
    if (r->top_logprobs > REQUEST_MAX_TOP)
        return error_set(error, QP_INVALID, "%d alternatives are asked for, at most %d can be",
                         r->top_logprobs, REQUEST_MAX_TOP);
    if (r->embed && r->n_choices > 1)
        return error_set(error, QP_INVALID, "an embedding has one choice, found %zu", r->n_choices);
    if (r->embed && b->engine->program.tensors[PLAN_X_OUT].kind == PLAN_ABSENT)
        return error_set(error, QP_UNSUPPORTED,
                         "embeddings need the last hidden states, which fused operators do not "
                         "keep: leave --fuse out");
    return QP_OK;
}

static qp_status enqueue(batcher *b, request *r, qp_error *error)
{
    if (b->closing)
        return error_set(error, QP_CANCELLED, "the server is ending and takes no more requests");
    if (b->n_queued + r->n_choices > b->options.max_queued)
        return error_set(error, QP_NO_MEMORY, "%zu answers wait already, and %zu may; try later",
                         b->n_queued, b->options.max_queued);
    request_hold(r);
    r->arrived = clock_ns();
    r->state->n_running = r->n_choices;
    r->state->id = ++b->n_requests;
    for (size_t i = 0; i < r->n_choices; i++)
        b->submitted.items[b->submitted.count++] = &r->choices[i];
    b->n_queued += r->n_choices;
    b->n_open += r->n_choices;
    return QP_OK;
}

qp_status batcher_submit(batcher *b, request *r, qp_error *error)
{
    TRY(check(b, r, error));
    TRY(request_prepare(r, (size_t)b->info.context, (size_t)b->engine->program.config.hidden_size,
                        error));
    r->state->batcher = b;
    pthread_mutex_lock(&b->mutex);
    qp_status status = enqueue(b, r, error);
    b->signalled = true;
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->mutex);
    if (status != QP_OK) request_unprepare(r);
    return status;
}

void batcher_signal(batcher *b)
{
    pthread_mutex_lock(&b->mutex);
    b->signalled = true;
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->mutex);
}

/* ---- requests with events ------------------------------------------------------------------ */

request *batcher_take_ready(batcher *b)
{
    pthread_mutex_lock(&b->mutex);
    request *r = b->ready.first;
    if (r) b->ready.first = r->state->next_ready;
    pthread_mutex_unlock(&b->mutex);
    return r;
}

/* The list holds a reference, which batcher_take_ready() gives to the caller. */
static void append(request_list *list, request *r)
{
    request_hold(r);
    r->state->next_ready = NULL;
    if (list->first)
        list->last->state->next_ready = r;
    else
        list->first = r;
    list->last = r;
}

void batcher_note(batcher *b, request *r)
{
    b->events = true;
    if (request_note_event(r)) append(&b->noted, r);
}

void batcher_hand_on(batcher *b)
{
    if (!b->noted.first) return;
    pthread_mutex_lock(&b->mutex);
    if (b->ready.first)
        b->ready.last->state->next_ready = b->noted.first;
    else
        b->ready.first = b->noted.first;
    b->ready.last = b->noted.last;
    pthread_mutex_unlock(&b->mutex);
    b->noted = (request_list){0};
}

uint64_t batcher_last_step(const batcher *b)
{
    return atomic_load(&b->last_step);
}
