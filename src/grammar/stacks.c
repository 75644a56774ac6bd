/* Stacks of an automaton: see stacks.h. */
#include "grammar/stacks.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

enum { FRAME_BUCKETS = 1 << 15, CONFIG_BUCKETS = 1 << 13 };

static uint32_t fail(stacks *s, qp_status status)
{
    if (s->failed == QP_OK) s->failed = status;
    return 0;
}

bool stacks_spend(stacks *s, size_t work)
{
    s->work += work;
    if (s->work > STACKS_MAX_WORK) fail(s, QP_UNSUPPORTED);
    return s->failed == QP_OK;
}

/* Room for `more` items. */
static bool grow(stacks *s, void **items, size_t *capacity, size_t count, size_t more, size_t size)
{
    if (count + more <= *capacity) return true;
    size_t wanted = *capacity ? 2 * *capacity : 256;
    while (wanted < count + more)
        wanted *= 2;
    s->bytes += (wanted - *capacity) * size;
    if (s->bytes > STACKS_MAX_BYTES) return fail(s, QP_UNSUPPORTED);
    void *grown = realloc(*items, wanted * size);
    if (!grown) return fail(s, QP_NO_MEMORY);
    *items = grown;
    *capacity = wanted;
    return true;
}

#define GROW(s, items, more)                                                                       \
    grow(s, (void **)&(s)->items, &(s)->items##_capacity, (s)->n_##items, more, sizeof *(s)->items)

/* ---- Frames -------------------------------------------------------------------------------- */

uint32_t stacks_frame(stacks *s, uint32_t state, uint32_t count, uint32_t below)
{
    const uint64_t hash = hash_random(state, count, below);
    uint32_t *bucket = &s->frame_buckets[hash & (FRAME_BUCKETS - 1)];
    for (uint32_t i = *bucket; i; i = s->frames[i].next) {
        const frame *f = &s->frames[i];
        if (f->state == state && f->count == count && f->below == below) return i;
    }
    if (!GROW(s, frames, 1)) return 0;
    const uint32_t depth = s->frames[below].depth + 1;
    s->frames[s->n_frames] = (frame){state, count, below, depth, *bucket, 0, 0};
    return *bucket = (uint32_t)s->n_frames++;
}

/* A count that is out of reach of both limits, or beyond the lower one without an upper one. */
static uint32_t clear_count(const stacks *s, const state *at, uint32_t count)
{
    const bool far = at->max == GRAMMAR_UNBOUNDED || at->max - count > s->horizon;
    if (at->max == 0 || !far) return count;
    if (count >= at->min) return at->min;
    return at->min - count > s->horizon ? 0 : count;
}

uint32_t stacks_clear(stacks *s, uint32_t index)
{
    if (index == 0 || s->failed != QP_OK) return 0;
    if (s->frames[index].clear) return s->frames[index].clear;
    const frame f = s->frames[index];
    const uint32_t below = stacks_clear(s, f.below);
    const uint32_t count = clear_count(s, &s->m->states[f.state], f.count);
    const uint32_t clear = stacks_frame(s, f.state, count, below);
    return s->frames[index].clear = clear;
}

/* ---- Configurations ------------------------------------------------------------------------ */

static int rising(const void *left, const void *right)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

/* The configuration with the frames in `found`. */
static uint32_t intern(stacks *s, bool ends)
{
    const size_t n = s->n_found;
    if (s->failed != QP_OK || (n == 0 && !ends)) return CONFIG_DEAD;
    if (n > STACKS_MAX_FRAMES) return fail(s, QP_UNSUPPORTED);
    if (n > 1) qsort(s->found, n, sizeof *s->found, rising);
    uint64_t hash = ends;
    for (size_t i = 0; i < n; i++)
        hash = hash_mix(hash ^ s->found[i]);
    uint32_t *bucket = &s->config_buckets[hash & (CONFIG_BUCKETS - 1)];
    for (uint32_t i = *bucket; i; i = s->configs[i].next) {
        const config *c = &s->configs[i];
        if (c->count == n && c->ends == ends &&
            (n == 0 || memcmp(s->members + c->first, s->found, n * sizeof *s->found) == 0))
            return i;
    }
    const size_t classes = (size_t)s->m->n_classes, at = s->n_configs * classes;
    if (!GROW(s, configs, 1) || !GROW(s, members, n) ||
        !grow(s, (void **)&s->steps, &s->steps_capacity, at, classes, sizeof *s->steps))
        return CONFIG_DEAD;
    memset(s->steps + at, 0xFF, classes * sizeof *s->steps);
    if (n) memcpy(s->members + s->n_members, s->found, n * sizeof *s->found);
    s->configs[s->n_configs] = (config){(uint32_t)s->n_members, (uint32_t)n, *bucket, ends};
    s->n_members += n;
    return *bucket = (uint32_t)s->n_configs++;
}

/* The states that a state leads to by SPLIT and JUMP alone; found when it is first needed. */
static const reach *find_reach(stacks *s, uint32_t from)
{
    reach *r = &s->reaches[from];
    if (r->known || s->failed != QP_OK) return r;
    const uint32_t first = (uint32_t)s->n_reached;
    const size_t bottom = s->n_todo; /* of the states to look at, above the frames of a closure */
    s->reach_stamp++;
    if (GROW(s, todo, 1)) s->todo[s->n_todo++] = from;
    while (s->n_todo > bottom && s->failed == QP_OK) {
        const uint32_t index = s->todo[--s->n_todo];
        const state *at = &s->m->states[index];
        stacks_spend(s, 1);
        if (s->reaches[index].stamp == s->reach_stamp) continue;
        s->reaches[index].stamp = s->reach_stamp;
        if (at->kind != STATE_SPLIT && at->kind != STATE_JUMP) {
            if (GROW(s, reached, 1)) s->reached[s->n_reached++] = index;
            continue;
        }
        if (!GROW(s, todo, 2)) break;
        s->todo[s->n_todo++] = at->a;
        if (at->kind == STATE_SPLIT) s->todo[s->n_todo++] = at->b;
    }
    s->n_todo = bottom;
    *r = (reach){first, (uint32_t)s->n_reached - first, s->reach_stamp, s->failed == QP_OK};
    return r;
}

/* Notes a frame that the closure has not met. */
static void push_state(stacks *s, uint32_t state, uint32_t count, uint32_t below)
{
    const uint32_t index = stacks_frame(s, state, count, below);
    if (s->failed != QP_OK || s->frames[index].stamp == s->stamp) return;
    s->frames[index].stamp = s->stamp;
    if (GROW(s, todo, 1)) s->todo[s->n_todo++] = index;
}

/* The same for all states that it leads to. */
static void push(stacks *s, uint32_t state, uint32_t count, uint32_t below)
{
    if (s->frames[below].depth >= STACKS_MAX_DEPTH) {
        s->too_deep = true;
        return;
    }
    const reach *r = find_reach(s, state);
    for (uint32_t i = 0; i < r->count && s->failed == QP_OK; i++)
        push_state(s, s->reached[r->first + i], count, below);
}

static void push_frame(stacks *s, uint32_t index)
{
    const frame *f = &s->frames[index];
    push(s, f->state, f->count, f->below);
}

/* Enters the rule that a CALL names; the frame below it says where it returns. */
static void call(stacks *s, const frame *f, const state *at)
{
    const uint32_t below =
        at->b == STATE_TAIL ? f->below : stacks_frame(s, at->b, f->count, f->below);
    if (s->failed == QP_OK) push(s, at->a, 0, below);
}

/* Returns whether the frame pops to the end. */
static bool pop(stacks *s, const frame *f)
{
    if (f->below == 0) return true;
    push_frame(s, f->below);
    return false;
}

/* Follows all frames of `todo` to BYTES states. */
static uint32_t close_over(stacks *s)
{
    bool ends = false;
    s->n_found = 0;
    while (s->n_todo > 0 && s->failed == QP_OK) {
        const uint32_t index = s->todo[--s->n_todo];
        const frame f = s->frames[index];
        const state *at = &s->m->states[f.state];
        if (!stacks_spend(s, 1)) return CONFIG_DEAD;
        switch (at->kind) {
        case STATE_BYTES:
            if (GROW(s, found, 1)) s->found[s->n_found++] = index;
            break;
        case STATE_CALL:
            call(s, &f, at);
            break;
        case STATE_COUNT:
            if (at->max == GRAMMAR_UNBOUNDED || f.count < at->max) push(s, at->a, f.count, f.below);
            if (f.count >= at->min) push(s, at->b, 0, f.below);
            break;
        case STATE_AGAIN: {
            const bool full = at->max == GRAMMAR_UNBOUNDED && f.count >= at->min;
            push(s, at->a, f.count + !full, f.below);
            break;
        }
        case STATE_RETURN:
            ends |= pop(s, &f);
            break;
        case STATE_FAIL:
        case STATE_SPLIT:
        case STATE_JUMP: /* they are never on top */
            break;
        }
    }
    s->n_todo = 0;
    return intern(s, ends);
}

static void begin(stacks *s)
{
    if (++s->stamp == 0) { /* all stamps have been used */
        for (size_t i = 0; i < s->n_frames; i++)
            s->frames[i].stamp = 0;
        s->stamp = 1;
    }
    s->n_todo = 0;
}

uint32_t stacks_root(stacks *s)
{
    begin(s);
    push(s, s->m->entry, 0, 0);
    return close_over(s);
}

uint32_t stacks_resume(stacks *s, uint32_t index)
{
    begin(s);
    push_frame(s, index);
    return close_over(s);
}

uint32_t stacks_compute(stacks *s, uint32_t from, uint8_t byte)
{
    begin(s);
    for (uint32_t i = 0; i < s->configs[from].count; i++) {
        const uint32_t index = s->members[s->configs[from].first + i];
        const frame f = s->frames[index];
        s->work++;
        if (byte_set_has(&s->m->sets[s->m->states[f.state].a], byte))
            push(s, f.state + 1, f.count, f.below);
    }
    const uint32_t next = close_over(s);
    if (s->failed != QP_OK) return CONFIG_DEAD;
    s->steps[(size_t)from * (size_t)s->m->n_classes + s->m->classes[byte]] = next;
    return next;
}

/* ---- Memory -------------------------------------------------------------------------------- */

/* Frame 0 and configuration 0. */
static qp_status begin_tables(stacks *s, qp_error *error)
{
    s->frame_buckets = calloc(FRAME_BUCKETS, sizeof *s->frame_buckets);
    s->config_buckets = calloc(CONFIG_BUCKETS, sizeof *s->config_buckets);
    s->reaches = calloc(s->m->n_states, sizeof *s->reaches);
    const size_t classes = (size_t)s->m->n_classes;
    if (!s->frame_buckets || !s->config_buckets || !s->reaches || !GROW(s, frames, 1) ||
        !GROW(s, configs, 1) ||
        !grow(s, (void **)&s->steps, &s->steps_capacity, 0, classes, sizeof *s->steps))
        return error_no_memory(error, "the grammar", 0);
    s->frames[s->n_frames++] = (frame){0};
    s->configs[s->n_configs++] = (config){0};
    memset(s->steps, 0, classes * sizeof *s->steps); /* dead stays dead */
    return QP_OK;
}

qp_status stacks_open(stacks *s, const automaton *m, uint32_t horizon, qp_error *error)
{
    *s = (stacks){.m = m, .horizon = horizon};
    return begin_tables(s, error);
}

void stacks_free(stacks *s)
{
    free(s->frames);
    free(s->frame_buckets);
    free(s->configs);
    free(s->config_buckets);
    free(s->members);
    free(s->steps);
    free(s->reaches);
    free(s->reached);
    free(s->todo);
    free(s->found);
    *s = (stacks){0};
}

/* Copies a frame and those below it. The depth is limited, and so is this recursion. */
static uint32_t move_frame(const stacks *from, stacks *to, uint32_t index)
{
    const frame *f = &from->frames[index];
    return index ? stacks_frame(to, f->state, f->count, move_frame(from, to, f->below)) : 0;
}

qp_status stacks_compact(stacks *s, uint32_t **configs, size_t n, qp_error *error)
{
    stacks fresh;
    qp_status status = stacks_open(&fresh, s->m, s->horizon, error);
    if (status != QP_OK) {
        stacks_free(&fresh);
        return status;
    }
    for (size_t i = 0; i < n; i++) {
        const config *c = &s->configs[*configs[i]];
        fresh.n_found = 0;
        for (uint32_t k = 0; k < c->count && GROW(&fresh, found, 1); k++)
            fresh.found[fresh.n_found++] = move_frame(s, &fresh, s->members[c->first + k]);
        *configs[i] = intern(&fresh, c->ends); /* dead after a failure */
    }
    if (fresh.failed != QP_OK) status = stacks_error(&fresh, error);
    stacks_free(s);
    *s = fresh;
    return status;
}

qp_status stacks_error(const stacks *s, qp_error *error)
{
    if (s->failed == QP_NO_MEMORY) return error_no_memory(error, "the grammar", s->bytes);
    return error_set(
        error, s->failed,
        "the form is too ambiguous: a token has more than %d ways to be read, or takes "
        "more than %d steps or %d MiB",
        STACKS_MAX_FRAMES, STACKS_MAX_WORK, STACKS_MAX_BYTES >> 20);
}
