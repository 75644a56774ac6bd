/* The thread that makes masks: see masks.h. */
#include "server/masks.h"

#include "quipu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum text_state { TEXT_ASKS, TEXT_IS_SERVED, TEXT_HAS_MASK };

struct mask_text {
    mask_maker *maker;
    mask_text *next; /* in the list of texts that ask */
    form *form;
    size_t rows, n_stops;
    int32_t stops[QP_MAX_STOP_TOKENS];

    /* Of the thread while it serves the text, else of the caller. */
    matcher *matcher; /* NULL: not opened yet */
    int32_t token;    /* to take before the next mask; -1: none */
    const uint32_t *mask;
    qp_status status;
    qp_error error;

    /* Under the maker's lock. */
    enum text_state state;
    bool ended; /* by the caller: the thread frees it */
    uint64_t work;
};

struct mask_maker {
    void (*made)(void *context);
    void *context;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    mask_text *first; /* texts that ask */
    bool closing;
};

static void text_free(mask_text *t)
{
    matcher_close(t->matcher);
    form_release(t->form);
    free(t);
}

/* ---- the thread ---------------------------------------------------------------------------- */

/* Ended texts come first, because they give memory back. */
static bool comes_before(const mask_text *a, const mask_text *b)
{
    return a->ended != b->ended ? a->ended : a->work < b->work;
}

static mask_text *take_next(mask_maker *maker)
{
    mask_text **best = &maker->first;
    for (mask_text **at = best; *at; at = &(*at)->next)
        if (comes_before(*at, *best)) best = at;
    mask_text *found = *best;
    if (found) *best = found->next;
    return found;
}

static qp_status make_mask(mask_text *t)
{
    if (!t->matcher)
        TRY(matcher_open(t->form, t->stops, t->n_stops, t->rows, &t->matcher, &t->error));
    if (t->token >= 0) TRY(matcher_take(t->matcher, t->token, &t->error));
    return matcher_mask(t->matcher, &t->mask, &t->error);
}

/* Serves a text without the lock. */
static void serve(mask_maker *maker, mask_text *t)
{
    t->state = TEXT_IS_SERVED;
    bool ended = t->ended;
    pthread_mutex_unlock(&maker->lock);
    if (!ended) t->status = make_mask(t);
    pthread_mutex_lock(&maker->lock);
    ended = t->ended;
    t->state = TEXT_HAS_MASK;
    if (!ended && t->matcher) t->work = matcher_work(t->matcher);
    pthread_mutex_unlock(&maker->lock);
    if (ended)
        text_free(t);
    else
        maker->made(maker->context);
    pthread_mutex_lock(&maker->lock);
}

static void *make_masks(void *context)
{
    mask_maker *maker = context;
    pthread_mutex_lock(&maker->lock);
    for (;;) {
        mask_text *next = take_next(maker);
        if (next)
            serve(maker, next);
        else if (maker->closing)
            break;
        else
            pthread_cond_wait(&maker->asked, &maker->lock);
    }
    pthread_mutex_unlock(&maker->lock);
    return NULL;
}

qp_status masks_open(void (*made)(void *context), void *context, mask_maker **out, qp_error *error)
{
    mask_maker *maker = *out = calloc(1, sizeof *maker);
    if (!maker) return error_no_memory(error, "the masks", sizeof *maker);
    maker->made = made;
    maker->context = context;
    pthread_mutex_init(&maker->lock, NULL);
    pthread_cond_init(&maker->asked, NULL);
    if (pthread_create(&maker->thread, NULL, make_masks, maker) == 0) return QP_OK;
    pthread_mutex_destroy(&maker->lock);
    pthread_cond_destroy(&maker->asked);
    free(maker);
    *out = NULL;
    return error_set(error, QP_IO, "the system gives no thread for the masks");
}

void masks_close(mask_maker *maker)
{
    if (!maker) return;
    pthread_mutex_lock(&maker->lock);
    maker->closing = true;
    pthread_cond_signal(&maker->asked);
    pthread_mutex_unlock(&maker->lock);
    pthread_join(maker->thread, NULL);
    pthread_mutex_destroy(&maker->lock);
    pthread_cond_destroy(&maker->asked);
    free(maker);
}

/* ---- the caller ---------------------------------------------------------------------------- */

/* Under the lock. */
static void ask(mask_text *t)
{
    t->state = TEXT_ASKS;
    t->next = t->maker->first;
    t->maker->first = t;
    pthread_cond_signal(&t->maker->asked);
}

static void ask_for(mask_text *t, int32_t token)
{
    t->token = token;
    pthread_mutex_lock(&t->maker->lock);
    ask(t);
    pthread_mutex_unlock(&t->maker->lock);
}

qp_status masks_begin(mask_maker *maker, form *form, const int32_t *stops, size_t n_stops,
                      size_t rows, mask_text **out, qp_error *error)
{
    mask_text *t = *out = calloc(1, sizeof *t);
    if (!t) return error_no_memory(error, "the form of an answer", sizeof *t);
    *t = (mask_text){.maker = maker, .form = form, .rows = rows};
    t->n_stops = n_stops < QP_MAX_STOP_TOKENS ? n_stops : QP_MAX_STOP_TOKENS;
    if (t->n_stops) memcpy(t->stops, stops, t->n_stops * sizeof *stops);
    form_hold(form);
    ask_for(t, -1);
    return QP_OK;
}

void masks_end(mask_text *t)
{
    if (!t) return;
    mask_maker *maker = t->maker;
    pthread_mutex_lock(&maker->lock);
    t->ended = true; /* to close a matcher may mean to wait for its form: the thread does it */
    if (t->state == TEXT_HAS_MASK) ask(t);
    pthread_mutex_unlock(&maker->lock);
}

void masks_take(mask_text *t, int32_t token)
{
    if (t->status == QP_OK && !matcher_follow(t->matcher, token)) ask_for(t, token);
}

qp_status masks_get(mask_text *t, const uint32_t **out, qp_error *error)
{
    pthread_mutex_lock(&t->maker->lock);
    const bool made = t->state == TEXT_HAS_MASK;
    pthread_mutex_unlock(&t->maker->lock);
    *out = NULL;
    if (!made) return QP_OK;
    if (t->status != QP_OK) *error = t->error;
    *out = t->mask;
    return t->status;
}
