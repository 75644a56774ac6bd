/* sampler_pick(): a row of logits, the sequence's tokens and the settings make a token. See
 * sampler.h and pick.h. */
#define _GNU_SOURCE /* memmem */
#include "engine/engine.h"
#include "engine/pick.h"
#include "engine/sampler.h"
#include "op/adjust_logits/adjust_logits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_BREAKER = 256 };

/* Room for one choice, which the engine keeps. */
static qp_status find_room(qp_engine *e, pick_room *room, qp_error *error)
{
    const size_t vocab = (size_t)e->program.config.vocab_size;
    const size_t context = (size_t)e->program.options.context;
    if (!room->candidates) room->candidates = malloc(vocab * sizeof *room->candidates);
    if (!room->counts) room->counts = malloc(vocab * sizeof *room->counts);
    if (!room->text) room->text = malloc(2 * (context + 1) * sizeof *room->text);
    if (room->candidates && room->counts && room->text) return QP_OK;
    return error_no_memory(error, "the choice of a token", vocab * sizeof *room->candidates);
}

/* What the plan's step "adjust_logits" does. */
static void penalise(const qp_sampler *s, const int32_t *tokens, size_t n, int32_t *counts,
                     pick_candidate *c, size_t vocab)
{
    const double *v = s->value;
    memset(counts, 0, vocab * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        counts[tokens[i]] = (counts[tokens[i]] | ADJUST_SEEN) + (i >= s->answer ? ADJUST_ONCE : 0);
    for (size_t i = 0; i < vocab; i++) {
        const int32_t times = counts[i] / ADJUST_ONCE;
        if (!counts[i]) continue;
        c[i].logit = c[i].logit > 0 ? c[i].logit / v[QP_REPETITION_PENALTY]
                                    : c[i].logit * v[QP_REPETITION_PENALTY];
        if (times) c[i].logit -= v[QP_PRESENCE_PENALTY] + v[QP_FREQUENCY_PENALTY] * times;
    }
}

static void read_logits(const qp_sampler *s, const float *logits, pick_candidate *c, size_t vocab)
{
    for (size_t i = 0; i < vocab; i++)
        c[i] = (pick_candidate){.logit = (double)logits[i], .token = (int32_t)i};
    for (size_t i = 0; i < s->n_biases; i++)
        c[s->biases[i].token].logit += (double)s->biases[i].bias;
}

static void exclude(const qp_sampler *s, pick_candidate *c, size_t vocab)
{
    for (size_t i = 0; s->allowed && i < vocab; i++)
        if (!(s->allowed[i / 32] >> i % 32 & 1)) c[i].logit = -INFINITY;
}

/* Whether a token has a byte that a breaker ends with. */
static bool may_end_breaker(const qp_sampler *s, int32_t token)
{
    size_t length = 0;
    const char *piece = tokenizer_piece(s->engine->vocabulary->tokenizer, token, &length);
    for (size_t i = 0; i < length; i++)
        if (s->broken.last[(uint8_t)piece[i]]) return true;
    return false;
}

/* Whether a breaker ends in the text's token i. */
static bool ends_breaker(const qp_sampler *s, const int32_t *tokens, size_t i)
{
    if (!may_end_breaker(s, tokens[i])) return false;
    char text[2 * LONGEST_BREAKER];
    size_t end = sizeof text, own = 0;
    for (size_t k = 0; k <= i && sizeof text - end < own + LONGEST_BREAKER; k++) {
        size_t length = 0;
        const char *piece =
            tokenizer_piece(s->engine->vocabulary->tokenizer, tokens[i - k], &length);
        const size_t count = length < end ? length : end;
        if (count) memcpy(text + end - count, piece + length - count, count);
        end -= count;
        if (k == 0) own = count;
        if (count < length) break;
    }
    for (size_t b = 0; b < s->n_breakers; b++) {
        const size_t length = strlen(s->breakers[b]), before = length ? length - 1 : 0;
        const size_t from = sizeof text - own > before ? sizeof text - own - before : 0;
        const size_t first = from > end ? from : end;
        if (length && memmem(text + first, sizeof text - first, s->breakers[b], length))
            return true;
    }
    return false;
}

/* The number of tokens up to the last breaker. Those that a call before has looked at stay as they
 * are: in a long text without a breaker all of them would else be looked at for each new token. */
static size_t count_broken(qp_sampler *s, const int32_t *tokens, size_t n)
{
    int32_t *seen = s->broken.tokens;
    size_t same = 0;
    while (same < n && same < s->broken.n && seen[same] == tokens[same])
        same++;
    if (s->broken.end > same) { /* the breaker was in a text that went on otherwise */
        s->broken.end = same;
        while (s->broken.end && !ends_breaker(s, tokens, s->broken.end - 1))
            s->broken.end--;
    }
    for (size_t i = same; i < n; i++) {
        seen[i] = tokens[i];
        if (ends_breaker(s, tokens, i)) s->broken.end = i + 1;
    }
    s->broken.n = n;
    return s->broken.end;
}

static void avoid_repetition(qp_sampler *s, pick_room *room, const int32_t *tokens, size_t n,
                             size_t vocab)
{
    const double last = s->value[QP_DRY_PENALTY_LAST_N];
    const size_t count = last >= 0 && last < (double)n ? (size_t)last : n;
    dry_text text = {.tokens = tokens + n - count, .n = count, .lengths = room->text + n};
    const bool breaks = s->engine->vocabulary && s->n_breakers;
    const size_t after = breaks ? n - count_broken(s, tokens, n) : n;
    text.limit = after < count ? after : count;
    memset(room->counts, 0, vocab * sizeof *room->counts);
    dry_penalise(s->value, &text, room->candidates, vocab, room->counts);
}

/* Mirostat's step towards the surprise that is wanted. */
static void learn(qp_sampler *s, const pick_candidate *chosen)
{
    const double surprise = -log2(chosen->p);
    s->mu -= s->value[QP_MIROSTAT_ETA] * (surprise - s->value[QP_MIROSTAT_TAU]);
}

qp_status sampler_pick(qp_sampler *s, const float *logits, const int32_t *held, size_t n_held,
                       int32_t last, int32_t *token, qp_error *error)
{
    qp_engine *e = s->engine;
    pick_room *room = &e->step.picks;
    const size_t vocab = (size_t)e->program.config.vocab_size;
    const uint64_t seed = (uint64_t)(int64_t)s->value[QP_SEED];
    TRY(find_room(e, room, error));
    size_t n = n_held;
    if (n) memcpy(room->text, held, n * sizeof *held);
    if (last >= 0) room->text[n++] = last;
    read_logits(s, logits, room->candidates, vocab);
    penalise(s, room->text, n, room->counts, room->candidates, vocab);
    avoid_repetition(s, room, room->text, n, vocab);
    exclude(s, room->candidates, vocab);
    const size_t kept = pick_filter(s->value, seed, n, s->mu, room->candidates, vocab);
    *token = 0; /* as the plan's step has it, where biases and masks exclude every token */
    if (kept == 0) return QP_OK;
    const size_t at = pick_draw(s->value, seed, n, room->candidates, kept);
    if (s->value[QP_MIROSTAT] != 0) learn(s, &room->candidates[at]);
    *token = room->candidates[at].token;
    return QP_OK;
}
