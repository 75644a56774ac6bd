/* The engine thread: takes submitted requests, ends finished choices, admits, steps, sleeps. */
#include "server/batcher_state.h"

#include "base/clock.h"

#include <string.h>

void choice_list_remove(choice_list *list, size_t index)
{
    list->count--;
    memmove(&list->items[index], &list->items[index + 1],
            (list->count - index) * sizeof *list->items);
}

/* ---- ends ---------------------------------------------------------------------------------- */

static void note_end(batcher *b, const choice *c)
{
    pthread_mutex_lock(&b->mutex);
    b->n_queued -= c->phase == CHOICE_WAITING;
    b->n_open--;
    pthread_mutex_unlock(&b->mutex);
    b->n_stalled -= c->phase == CHOICE_STALLED;
}

static double span(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) * 1e-9 : 0;
}

/* Of a request that has ended. */
static void note_times(batcher_stats *s, const request *r)
{
    histogram_add(&s->end_to_end, span(r->arrived, r->finished));
    if (r->max_tokens) histogram_add(&s->most_tokens, (double)r->max_tokens);
    histogram_add(&s->choices, (double)r->n_choices);
    size_t longest = 0;
    for (size_t i = 0; i < r->n_choices; i++)
        if (r->choices[i].count - r->n_prompt > longest)
            longest = r->choices[i].count - r->n_prompt;
    histogram_add(&s->longest_answer, (double)longest);
    if (!r->admitted) return;
    histogram_add(&s->reading, span(r->admitted, r->first_token ? r->first_token : r->finished));
    histogram_add(&s->running_time, span(r->admitted, r->finished));
    if (r->first_token) histogram_add(&s->making, span(r->first_token, r->finished));
}

void batcher_end_choice(batcher *b, choice *c, uint8_t finish, int32_t stop_token)
{
    request *r = c->request;
    if (c->session) batcher_leave_slot(b, c, finish != REQUEST_FAILED);
    parked_pages_free(&c->parked, &b->engine->pages);
    choice_close_sampler(c);
    const bool all = --r->state->n_running == 0;
    const size_t made = c->count - r->n_prompt;
    const uint64_t now = clock_ns();
    if (all) r->finished = now;
    b->stats.finished[finish]++;
    histogram_add(&b->stats.answer_length, (double)made);
    if (made > 1)
        histogram_add(&b->stats.per_token, span(r->first_token, now) / (double)(made - 1));
    if (all) note_times(&b->stats, r);
    choice_push(c, (token_event){.token = stop_token, .last = true, .finish = finish});
    batcher_note(b, r);
    note_end(b, c);
    c->phase = CHOICE_ENDED;
    if (all) request_release(r);
}

/* Whether the time of a choice is over: its deadline has passed, its client has not read for too
 * long, or more than max_queued choices are stalled; then the oldest ends. */
static bool is_late(const batcher *b, const choice *c, uint64_t now)
{
    const uint64_t deadline = c->request->deadline;
    if (deadline && now >= deadline) return true;
    if (c->phase != CHOICE_STALLED) return false;
    return now - c->stalled > b->options.stall_limit_ns || b->n_stalled > b->options.max_queued;
}

/* Ends choices of the list that are cancelled or late. */
static void end_over(batcher *b, choice_list *list, uint64_t now)
{
    for (size_t i = 0; i < list->count;) {
        choice *c = list->items[i];
        const bool late = is_late(b, c, now), cancelled = atomic_load(&c->cancelled);
        if (!late && !cancelled && !b->closing) {
            i++;
            continue;
        }
        choice_list_remove(list, i);
        batcher_end_choice(b, c, late && !cancelled ? REQUEST_TIMED_OUT : QP_FINISH_CANCELLED, -1);
    }
}

/* ---- the loop ------------------------------------------------------------------------------ */

static void take_submitted(batcher *b)
{
    pthread_mutex_lock(&b->mutex);
    for (size_t i = 0; i < b->submitted.count; i++)
        b->waiting.items[b->waiting.count++] = b->submitted.items[i];
    b->submitted.count = 0;
    b->signalled = false;
    pthread_mutex_unlock(&b->mutex);
}

static uint64_t first_deadline(const choice_list *list, uint64_t first)
{
    for (size_t i = 0; i < list->count; i++) {
        const uint64_t deadline = list->items[i]->request->deadline;
        if (deadline && deadline < first) first = deadline;
    }
    return first;
}

/* Sleeps until a signal or the next deadline. */
static void sleep_until_signal(batcher *b)
{
    const uint64_t until =
        first_deadline(&b->waiting, first_deadline(&b->running, clock_ns() + 1000000000));
    const struct timespec end = {.tv_sec = (time_t)(until / 1000000000),
                                 .tv_nsec = (long)(until % 1000000000)};
    pthread_mutex_lock(&b->mutex);
    while (!b->signalled)
        if (pthread_cond_timedwait(&b->work, &b->mutex, &end) != 0) break;
    pthread_mutex_unlock(&b->mutex);
}

static bool is_over(batcher *b)
{
    pthread_mutex_lock(&b->mutex);
    const bool over = b->closing && b->n_open == 0;
    pthread_mutex_unlock(&b->mutex);
    return over;
}

bool batcher_turn(batcher *b)
{
    take_submitted(b);
    stats_answer(b);
    const uint64_t now = clock_ns();
    end_over(b, &b->running, now);
    end_over(b, &b->waiting, now);
    batcher_admit(b);
    trace_before_step(b);
    const bool stepped = batcher_step(b);
    trace_after_step(b);
    atomic_store(&b->last_step, clock_ns());
    batcher_hand_on(b);
    if (b->events && b->options.wake) b->options.wake(b->options.wake_context);
    b->events = false;
    return stepped;
}

void batcher_run(batcher *b)
{
    while (!is_over(b))
        if (!batcher_turn(b)) {
            b->last_return = 0;
            sleep_until_signal(b);
        }
}
