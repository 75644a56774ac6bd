/* A machine that stands in for a GPU: it has runs under way, which do their work when they are
 * waited for, and its tokens are a hash of all that it finds in the pages of a sequence and in the
 * history of its slot. So a token is right only if pages, copies of pages, histories and the passes
 * under way all are.
 */
#pragma once

#include "base/hash.h"
#include "engine/engine.h"
#include "op/adjust_logits/adjust_logits.h"
#include "op/adjust_logits/adjust_proposed.h"
#include "test.h"

#include <math.h>

enum { FAKE_SLOTS = 16, FAKE_ENTRIES = 64, FAKE_SHAPES = 16 };

typedef struct fake_entry { /* a run, or the copy of a page */
    machine_request request;
    batch batch; /* as it was; no memory: a copy */
    int32_t from, to;
} fake_entry;

typedef struct fake {
    const program *program;
    int32_t *cache;   /* [pages][page_size]: the token at each position */
    int32_t *history; /* [slots][vocab_size] */
    uint32_t *masks;  /* [slots][words of the vocabulary] */
    /* A token's bits, and so those of what follows, depend on the kind of its pass: prompts or not.
     */
    bool kinds;
    float *biases; /* [slots][vocab_size]; only minus infinity has an effect */
    machine own;   /* the engine's, meanwhile */
    int32_t last[FAKE_SLOTS];
    fake_entry queue[FAKE_ENTRIES];
    int n_queued, n_done, under_way;
    int64_t most_under_way, passes;
    int64_t shapes[FAKE_SHAPES][2], n_shapes; /* numbers of tokens and rows of logits of passes */
} fake;

static inline uint64_t mix(uint64_t hash, int64_t value)
{
    return hash_mix(hash ^ (uint64_t)value);
}

/* What a history adds to the hash, however it came about. */
static inline uint64_t history_term(int32_t token, int32_t seen)
{
    return hash_mix((uint64_t)token * 1000 + (uint64_t)seen);
}

static inline int32_t token_of(const fake *f, uint64_t hash)
{
    return (int32_t)(hash % (uint64_t)f->program->config.vocab_size);
}

/* The next token that mask and biases of the slot allow, where the row uses them. */
static inline int32_t allowed_token(const fake *f, uint64_t hash, int32_t slot, int32_t uses)
{
    const int32_t vocab = (int32_t)f->program->config.vocab_size;
    const uint32_t *mask = f->masks + slot * ADJUST_MASK_WORDS(vocab);
    const float *biases = f->biases + slot * vocab;
    int32_t token = token_of(f, hash);
    while ((uses & ADJUST_MASK && !(mask[token / 32] >> token % 32 & 1)) ||
           (uses & ADJUST_BIAS && isinf(biases[token])))
        token = (token + 1) % vocab;
    return token;
}

enum { FAKE_PROMPT = 1 << 24 }; /* added to tokens in the cache, if there are kinds */

static inline int32_t *cell(fake *f, const batch *b, int64_t sequence, int64_t position)
{
    const int64_t size = f->program->options.page_size;
    const int32_t at = batch_i32(b, PLAN_KV_INDPTR)[sequence] + (int32_t)(position / size);
    assert_true(at < batch_i32(b, PLAN_KV_INDPTR)[sequence + 1]);
    return &f->cache[batch_i32(b, PLAN_KV_INDICES)[at] * size + position % size];
}

/* What the history has of a token at output `output`: also the proposals that the rows up to it
 * read. */
static inline int32_t seen_at(fake *f, const batch *b, int64_t output, int64_t sequence,
                              int32_t token, int32_t seen)
{
    for (; batch_i32(b, PLAN_USES)[output] & ADJUST_PROPOSED; output--) {
        const int32_t row = batch_i32(b, PLAN_OUTPUT_ROWS)[output];
        if (*cell(f, b, sequence, batch_i32(b, PLAN_POSITION_IDS)[row]) == token)
            seen = (seen | ADJUST_SEEN) + ADJUST_ONCE;
    }
    return seen;
}

static inline int32_t choose(fake *f, const batch *b, int64_t output, int64_t sequence, int64_t end,
                             int pass)
{
    const int64_t vocab = f->program->config.vocab_size;
    int32_t *history = f->history + batch_i32(b, PLAN_SLOTS)[output] * vocab;
    int32_t uses = batch_i32(b, PLAN_USES)[output];
    uint64_t hash = 1, had = 0;
    for (int64_t p = 0; p < end; p++)
        hash = mix(hash, *cell(f, b, sequence, p));
    const int32_t slot = batch_i32(b, PLAN_SLOTS)[output];
    if (!(uses & ADJUST_PENALISE)) return allowed_token(f, hash, slot, uses);
    if (uses & ADJUST_COUNT || pass > 0) {
        int32_t *entry = &history[*cell(f, b, sequence, end - 1) & ~FAKE_PROMPT];
        *entry = (*entry | ADJUST_SEEN) + ADJUST_ONCE;
    }
    for (int32_t i = 0; i < vocab; i++) {
        const int32_t seen = seen_at(f, b, output, sequence, i, history[i]);
        if (seen) had += history_term(i, seen);
    }
    return allowed_token(f, mix(hash, (int64_t)had), slot, uses);
}

static inline void note_shape(fake *f, const batch *b)
{
    const int64_t shape[2] = {batch_tokens(b), batch_outputs(b)};
    for (int64_t i = 0; i < f->n_shapes; i++)
        if (memcmp(f->shapes[i], shape, sizeof shape) == 0) return;
    if (f->n_shapes < FAKE_SHAPES) memcpy(f->shapes[f->n_shapes++], shape, sizeof shape);
}

static inline void do_run(fake *f, const fake_entry *e)
{
    const machine_request *r = &e->request;
    const batch *b = &e->batch;
    const int64_t n = batch_outputs(b);
    const bool prompts = f->kinds && batch_tokens(b) == f->program->options.max_tokens;
    const int32_t kind = prompts ? FAKE_PROMPT : 0;
    note_shape(f, b);
    for (int pass = 0; pass < (r->passes ? r->passes : 1); pass++, f->passes++) {
        for (int64_t s = 0; s < b->sizes.of[AXIS_SEQUENCES]; s++)
            for (int32_t i = batch_i32(b, PLAN_QO_INDPTR)[s];
                 i < batch_i32(b, PLAN_QO_INDPTR)[s + 1]; i++) {
                const bool fed = pass > 0 || r->continues;
                *cell(f, b, s, batch_i32(b, PLAN_POSITION_IDS)[i] + pass) =
                    (fed ? f->last[s] : batch_i32(b, PLAN_TOKEN_IDS)[i]) | kind;
            }
        for (int64_t o = 0; r->choice != MACHINE_LOGITS && o < n; o++) {
            const int32_t row = batch_i32(b, PLAN_OUTPUT_ROWS)[o];
            int64_t s = 0;
            while (batch_i32(b, PLAN_QO_INDPTR)[s + 1] <= row)
                s++;
            const int64_t end = batch_i32(b, PLAN_POSITION_IDS)[row] + pass + 1;
            r->tokens[pass * n + o] = choose(f, b, o, s, end, pass);
        }
        for (int64_t o = 0; r->choice != MACHINE_LOGITS && o < n && o < FAKE_SLOTS; o++)
            f->last[o] = r->tokens[pass * n + o];
    }
}

static inline void do_copy(fake *f, int32_t from, int32_t to)
{
    const int64_t size = f->program->options.page_size;
    memcpy(f->cache + to * size, f->cache + from * size, (size_t)size * sizeof *f->cache);
}

static inline const char *fake_accepts(const void *self, const machine_request *r)
{
    const fake *f = self;
    if (r->continues && f->under_way == 0) return "there is nothing that it could continue";
    if (r->continues && !batch_decodes(r->batch)) return "it is another batch";
    return NULL;
}

static inline machine_pace fake_pace(const void *self, int64_t n, machine_choice choice)
{
    (void)self, (void)n, (void)choice;
    return (machine_pace){.passes = 5, .runs = 2};
}

static inline fake_entry *queue(fake *f)
{
    assert_true(f->n_queued - f->n_done < FAKE_ENTRIES);
    return &f->queue[f->n_queued++ % FAKE_ENTRIES];
}

static inline qp_status fake_run(void *self, const machine_request *r, qp_error *why)
{
    fake *f = self;
    fake_entry *e = queue(f);
    *e = (fake_entry){.request = *r, .from = -1};
    assert_int_equal(batch_init(&e->batch, f->program, why), QP_OK);
    e->batch.sizes = r->batch->sizes;
    memcpy(e->batch.memory, r->batch->memory, r->batch->memory_bytes);
    f->under_way++;
    if (f->under_way > f->most_under_way) f->most_under_way = f->under_way;
    return QP_OK;
}

static inline qp_status fake_wait(void *self, int *passes, qp_error *why)
{
    fake *f = self;
    (void)why;
    for (;;) {
        assert_true(f->n_done < f->n_queued);
        fake_entry *e = &f->queue[f->n_done++ % FAKE_ENTRIES];
        if (e->from >= 0) {
            do_copy(f, e->from, e->to);
            continue;
        }
        const machine_request *r = &e->request;
        do_run(f, e);
        f->under_way--;
        *passes = r->passes ? r->passes : 1;
        const int64_t n = batch_outputs(&e->batch);
        for (int pass = 0; r->on_tokens && pass < *passes; pass++)
            if (!r->on_tokens(r->context, r->tokens + pass * n)) break;
        batch_free(&e->batch);
        return QP_OK;
    }
}

static inline qp_status fake_write(void *self, plan_tensor_id id, int64_t slot, const void *data,
                                   size_t bytes, qp_error *why)
{
    fake *f = self;
    (void)why;
    assert_int_equal(f->under_way, 0);
    const int64_t vocab = f->program->config.vocab_size;
    if (id == PLAN_HISTORY) memcpy(f->history + slot * vocab, data, bytes);
    if (id == PLAN_BIAS) memcpy(f->biases + slot * vocab, data, bytes);
    if (id == PLAN_ALLOWED) memcpy(f->masks + slot * ADJUST_MASK_WORDS(vocab), data, bytes);
    return QP_OK;
}

static inline qp_status fake_copy_page(void *self, int32_t from, int32_t to, qp_error *why)
{
    fake *f = self;
    (void)why;
    if (f->under_way == 0 && f->n_done == f->n_queued)
        do_copy(f, from, to);
    else
        *queue(f) = (fake_entry){.from = from, .to = to};
    return QP_OK;
}

static inline float *fake_logits(void *self)
{
    static float row[1 << 16];
    (void)self;
    return row;
}

static const machine_type fake_type = {.name = "fake",
                                       .accepts = fake_accepts,
                                       .pace = fake_pace,
                                       .run = fake_run,
                                       .wait = fake_wait,
                                       .write = fake_write,
                                       .logits = fake_logits,
                                       .copy_page = fake_copy_page};

/* The engine's memory becomes the machine's; at most FAKE_SLOTS sessions. */
static inline void fake_enter(fake *f, qp_engine *engine)
{
    const size_t vocab = (size_t)engine->program.config.vocab_size;
    *f = (fake){.program = &engine->program};
    const plan_options *o = &engine->program.options;
    f->cache = calloc((size_t)(o->n_pages * o->page_size), sizeof *f->cache);
    f->history = calloc(FAKE_SLOTS * vocab, sizeof *f->history);
    f->masks = calloc(FAKE_SLOTS * (vocab / 32 + 1), sizeof *f->masks);
    f->biases = calloc(FAKE_SLOTS * vocab, sizeof *f->biases);
    f->own = engine->slots[ENGINE_MACHINES - 1];
    engine->slots[ENGINE_MACHINES - 1] = (machine){.type = &fake_type, .self = f};
}

static inline void fake_leave(fake *f, qp_engine *engine)
{
    step_drop(engine);
    assert_int_equal(f->under_way, 0);
    engine->slots[ENGINE_MACHINES - 1] = f->own;
    free(f->cache);
    free(f->history);
    free(f->masks);
    free(f->biases);
}

/* Passes of fixed shapes, which only a GPU has otherwise. The last session's place and the last
 * page are those of the rows that fill passes. */
static inline void fake_fix_shapes(qp_engine *e)
{
    const int64_t n_pages = e->pages.n_pages - 1, size = e->pages.page_size;
    e->max_sessions--;
    page_pool_free(&e->pages);
    assert_int_equal(page_pool_init(&e->pages, n_pages, size, NULL), QP_OK);
    assert_int_equal(step_fix_shapes(e, NULL), QP_OK);
}
