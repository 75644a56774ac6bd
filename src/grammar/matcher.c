/* Masks of tokens: see matcher.h. */
#include "grammar/matcher.h"

#include "base/clock.h"
#include "base/hash.h"
#include "grammar/stacks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct mask {
    uint64_t key;
    uint32_t *bits;
    uint32_t *exits; /* [n_exits] of a local mask: nodes of the trie where the rule may end */
    size_t n_exits, exits_capacity;
} mask;

/* Masks by key, with open addressing. */
typedef struct mask_table {
    mask **slots;
    size_t count, capacity;
} mask_table;

struct qp_grammar {
    atomic_uint references;
    const token_trie *trie;
    automaton m;
    pthread_mutex_t lock; /* over all that follows */
    stacks s;
    mask_table local, of_frame, of_config;
    matcher *matchers;
    uint32_t path[TRIE_MAX_PIECE + 2]; /* configurations of a walk, by depth */
};

struct qp_matcher {
    form *form;
    matcher *next, *previous;
    uint32_t config;
    bool over;   /* a stop token was taken */
    bool masked; /* `bits` are those of the present configuration */
    size_t rows;
    int32_t stops[QP_MAX_STOP_TOKENS];
    size_t n_stops;
    uint32_t bits[]; /* [(rows + 31) / 32] */
};

static size_t words_of(size_t rows)
{
    return (rows + 31) / 32;
}

static void set_bit(uint32_t *bits, int32_t token)
{
    bits[token >> 5] |= UINT32_C(1) << (token & 31);
}

/* ---- Tables -------------------------------------------------------------------------------- */

static void mask_free(mask *m)
{
    if (!m) return;
    free(m->bits);
    free(m->exits);
    free(m);
}

static void table_free(mask_table *t)
{
    for (size_t i = 0; i < t->capacity; i++)
        mask_free(t->slots[i]);
    free(t->slots);
    *t = (mask_table){0};
}

static mask **find_slot(const mask_table *t, uint64_t key)
{
    size_t at = hash_mix(key) & (t->capacity - 1);
    while (t->slots[at] && t->slots[at]->key != key)
        at = (at + 1) & (t->capacity - 1);
    return &t->slots[at];
}

static bool table_grow(mask_table *t)
{
    if (2 * (t->count + 1) <= t->capacity) return true;
    mask_table grown = {.count = t->count, .capacity = t->capacity ? 2 * t->capacity : 64};
    grown.slots = calloc(grown.capacity, sizeof *grown.slots);
    if (!grown.slots) return false;
    for (size_t i = 0; i < t->capacity; i++)
        if (t->slots[i]) *find_slot(&grown, t->slots[i]->key) = t->slots[i];
    free(t->slots);
    *t = grown;
    return true;
}

/* A mask of a key without one, all zero; NULL when memory is out. */
static mask *table_add(form *f, mask_table *t, uint64_t key)
{
    const size_t words = words_of((size_t)f->trie->vocab_size);
    mask *m = calloc(1, sizeof *m);
    if (m) m->bits = calloc(words + 1, sizeof *m->bits);
    if (!m || !m->bits || !table_grow(t)) {
        mask_free(m);
        f->s.failed = QP_NO_MEMORY;
        return NULL;
    }
    f->s.bytes += sizeof *m + words * sizeof *m->bits;
    m->key = key;
    t->count++;
    return *find_slot(t, key) = m;
}

static mask *table_find(const mask_table *t, uint64_t key)
{
    return t->capacity ? *find_slot(t, key) : NULL;
}

/* ---- Walks --------------------------------------------------------------------------------- */

static void allow_tokens(const token_trie *t, const trie_step *node, uint32_t *bits)
{
    for (uint32_t i = node->tokens; i < node[1].tokens; i++)
        set_bit(bits, t->tokens[i]);
}

static void add_exit(form *f, mask *m, uint32_t node)
{
    if (m->n_exits == m->exits_capacity) {
        const size_t wanted = m->exits_capacity ? 2 * m->exits_capacity : 16;
        uint32_t *grown = realloc(m->exits, wanted * sizeof *grown);
        if (!grown) {
            f->s.failed = QP_NO_MEMORY;
            return;
        }
        f->s.bytes += (wanted - m->exits_capacity) * sizeof *grown;
        m->exits = grown;
        m->exits_capacity = wanted;
    }
    m->exits[m->n_exits++] = node;
}

/* Walks nodes [from, to) of the trie, from a configuration at `depth`. `out` receives the tokens
 * that lead somewhere, and with `local` also the nodes where the stack ends. */
static void walk(form *f, uint32_t start, uint32_t from, uint32_t to, size_t depth, bool local,
                 mask *out)
{
    const token_trie *t = f->trie;
    stacks *s = &f->s;
    f->path[depth] = start;
    for (uint32_t i = from; i < to && s->failed == QP_OK;) {
        const trie_step *node = &t->nodes[i];
        const uint32_t next = stacks_step(s, f->path[node->depth - 1], node->byte);
        if (next == CONFIG_DEAD) {
            i = node->end;
            continue;
        }
        const config *c = &s->configs[next];
        f->path[node->depth] = next;
        if (c->ends && local) add_exit(f, out, i);
        if (c->count > 0 || !local) allow_tokens(t, node, out->bits);
        i = c->count > 0 ? i + 1 : node->end;
    }
}

/* What a state allows whatever lies on the stack. */
static mask *local_mask(form *f, uint32_t state, uint32_t count)
{
    const uint64_t key = (uint64_t)state << 32 | count;
    mask *m = table_find(&f->local, key);
    if (m) return m;
    const uint32_t alone = stacks_frame(&f->s, state, count, 0);
    const uint32_t start = f->s.failed == QP_OK ? stacks_resume(&f->s, alone) : CONFIG_DEAD;
    m = f->s.failed == QP_OK ? table_add(f, &f->local, key) : NULL;
    if (m) walk(f, start, 0, f->trie->n_nodes, 0, true, m);
    return m;
}

static mask *frame_mask(form *f, uint32_t index)
{
    const uint32_t clear = stacks_clear(&f->s, index);
    if (f->s.failed != QP_OK) return NULL;
    mask *m = table_find(&f->of_frame, clear);
    if (m) return m;
    const frame at = f->s.frames[clear];
    const mask *local = local_mask(f, at.state, at.count);
    if (f->s.failed != QP_OK) return NULL;
    m = table_add(f, &f->of_frame, clear);
    if (!m) return NULL;
    memcpy(m->bits, local->bits, words_of((size_t)f->trie->vocab_size) * sizeof *m->bits);
    const uint32_t rest = at.below ? stacks_resume(&f->s, at.below) : CONFIG_DEAD;
    for (size_t i = 0; i < local->n_exits; i++) {
        const trie_step *node = &f->trie->nodes[local->exits[i]];
        if (at.below && rest == CONFIG_DEAD) break;
        allow_tokens(f->trie, node, m->bits);
        if (at.below) walk(f, rest, local->exits[i] + 1, node->end, node->depth, false, m);
    }
    return f->s.failed == QP_OK ? m : NULL;
}

/* Whether a token may reach the limit of the depth, which local masks do not know. */
static bool is_deep(const form *f, const config *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (f->s.frames[f->s.members[c->first + i]].depth > STACKS_MAX_DEPTH / 2) return true;
    return false;
}

/* The mask of all frames of a configuration that has one at least. */
static mask *config_mask(form *f, uint32_t index)
{
    const config c = f->s.configs[index];
    const bool deep = is_deep(f, &c);
    if (c.count == 1 && !deep) return frame_mask(f, f->s.members[c.first]);
    mask *m = table_find(&f->of_config, index);
    if (m) return m;
    m = table_add(f, &f->of_config, index);
    if (deep && m) {
        walk(f, index, 0, f->trie->n_nodes, 0, false, m);
        return m;
    }
    for (uint32_t i = 0; m && i < c.count; i++) {
        const mask *part = frame_mask(f, f->s.members[c.first + i]);
        if (!part) return NULL;
        for (size_t w = 0; w < words_of((size_t)f->trie->vocab_size); w++)
            m->bits[w] |= part->bits[w];
    }
    return m;
}

/* ---- Memory -------------------------------------------------------------------------------- */

/* Forgets everything but where the texts are. */
static qp_status forget(form *f, qp_error *error)
{
    size_t n = 0, i = 0;
    for (const matcher *m = f->matchers; m; m = m->next)
        n++;
    uint32_t **configs = malloc((n + 1) * sizeof *configs);
    if (!configs) return error_no_memory(error, "the grammar", n);
    for (matcher *m = f->matchers; m; m = m->next)
        configs[i++] = &m->config;
    table_free(&f->local);
    table_free(&f->of_frame);
    table_free(&f->of_config);
    qp_status status = stacks_compact(&f->s, configs, n, error);
    free(configs);
    return status;
}

/* After a failure nothing that was computed can be trusted. */
static qp_status give_up(form *f, qp_error *error)
{
    qp_status status = stacks_error(&f->s, error);
    forget(f, NULL);
    return status;
}

/* ---- Forms --------------------------------------------------------------------------------- */

qp_status form_open(grammar *g, const token_trie *trie, form **out, qp_error *error)
{
    form *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return error_no_memory(error, "the grammar", sizeof *f);
    atomic_init(&f->references, 1);
    pthread_mutex_init(&f->lock, NULL);
    f->trie = trie;
    qp_status status = automaton_compile(g, &f->m, error);
    if (status == QP_OK) status = stacks_open(&f->s, &f->m, (uint32_t)trie->longest + 1, error);
    if (status == QP_OK)
        *out = f;
    else
        form_release(f);
    return status;
}

void form_hold(form *f)
{
    atomic_fetch_add(&f->references, 1);
}

void form_release(form *f)
{
    if (!f || atomic_fetch_sub(&f->references, 1) > 1) return;
    table_free(&f->local);
    table_free(&f->of_frame);
    table_free(&f->of_config);
    stacks_free(&f->s);
    automaton_free(&f->m);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

void form_warm(form *f, uint64_t ns)
{
    const uint64_t end = clock_ns() + ns;
    for (size_t i = 0; i < f->m.n_states && clock_ns() < end; i++) {
        if (f->m.states[i].kind != STATE_BYTES) continue;
        pthread_mutex_lock(&f->lock);
        f->s.work = 0;
        local_mask(f, (uint32_t)i, 0);
        const bool full = f->s.failed != QP_OK || f->s.bytes > STACKS_KEEP_BYTES / 2;
        if (f->s.failed != QP_OK) forget(f, NULL);
        pthread_mutex_unlock(&f->lock);
        if (full) break;
    }
}

/* ---- Matchers ------------------------------------------------------------------------------ */

static void join(form *f, matcher *m)
{
    m->next = f->matchers;
    if (m->next) m->next->previous = m;
    f->matchers = m;
}

qp_status matcher_open(form *f, const int32_t *stops, size_t n_stops, size_t rows, matcher **out,
                       qp_error *error)
{
    const size_t bytes = words_of(rows) * sizeof(uint32_t);
    *out = NULL;
    if (n_stops == 0)
        return error_set(error, QP_INVALID,
                         "an answer that is bound to a form ends with a stop token, and none is "
                         "set");
    matcher *m = calloc(1, sizeof *m + bytes);
    if (!m) return error_no_memory(error, "the mask", bytes);
    m->form = f;
    m->rows = rows;
    m->n_stops = n_stops < QP_MAX_STOP_TOKENS ? n_stops : QP_MAX_STOP_TOKENS;
    memcpy(m->stops, stops, m->n_stops * sizeof *stops);
    form_hold(f);
    pthread_mutex_lock(&f->lock);
    f->s.work = 0;
    m->config = stacks_root(&f->s);
    qp_status status = f->s.failed == QP_OK ? QP_OK : give_up(f, error);
    if (status == QP_OK) join(f, m);
    pthread_mutex_unlock(&f->lock);
    if (status == QP_OK) {
        *out = m;
    } else {
        form_release(f);
        free(m);
    }
    return status;
}

void matcher_close(matcher *m)
{
    if (!m) return;
    form *f = m->form;
    pthread_mutex_lock(&f->lock);
    if (m->next) m->next->previous = m->previous;
    if (m->previous)
        m->previous->next = m->next;
    else
        f->matchers = m->next;
    pthread_mutex_unlock(&f->lock);
    form_release(f);
    free(m);
}

static bool is_stop(const matcher *m, int32_t token)
{
    for (size_t i = 0; i < m->n_stops; i++)
        if (m->stops[i] == token) return true;
    return false;
}

static bool is_empty(const uint32_t *bits, size_t words)
{
    uint32_t any = 0;
    for (size_t i = 0; i < words; i++)
        any |= bits[i];
    return any == 0;
}

/* Stop tokens are allowed at the end alone, also if they stand for text. */
static void set_stops(matcher *m, bool ends)
{
    for (size_t i = 0; i < m->n_stops; i++) {
        const int32_t token = m->stops[i];
        if (token < 0 || (size_t)token >= m->rows) continue;
        m->bits[token >> 5] &= ~(UINT32_C(1) << (token & 31));
        if (ends) set_bit(m->bits, token);
    }
}

static qp_status too_deep(qp_error *error)
{
    return error_set(error, QP_UNSUPPORTED, "the text is nested deeper than %d rules",
                     STACKS_MAX_DEPTH);
}

static qp_status fill(matcher *m, qp_error *error)
{
    form *f = m->form;
    const size_t words = words_of((size_t)f->trie->vocab_size), all = words_of(m->rows);
    if (f->s.bytes > STACKS_KEEP_BYTES) TRY(forget(f, error));
    f->s.work = 0;
    f->s.too_deep = false;
    const config c = f->s.configs[m->config];
    const mask *found = c.count ? config_mask(f, m->config) : NULL;
    if (f->s.failed != QP_OK) return give_up(f, error);
    memset(m->bits, 0, all * sizeof *m->bits);
    if (found) memcpy(m->bits, found->bits, (words < all ? words : all) * sizeof *m->bits);
    set_stops(m, c.ends);
    m->masked = !is_empty(m->bits, all);
    if (m->masked) return QP_OK;
    if (f->s.too_deep) return too_deep(error);
    return error_set(error, QP_UNSUPPORTED,
                     "no token of the vocabulary goes on with a text of the form");
}

qp_status matcher_mask(matcher *m, const uint32_t **out, qp_error *error)
{
    qp_status status = QP_OK;
    *out = m->bits;
    if (m->masked) return QP_OK;
    if (m->over) return error_set(error, QP_INVALID, "the text has ended");
    pthread_mutex_lock(&m->form->lock);
    status = fill(m, error);
    pthread_mutex_unlock(&m->form->lock);
    return status;
}

static qp_status refuse(int32_t token, qp_error *error)
{
    return error_set(error, QP_INVALID, "token %d is not allowed by the form of the answer",
                     (int)token);
}

static qp_status follow(matcher *m, const char *bytes, size_t length, int32_t token,
                        qp_error *error)
{
    form *f = m->form;
    uint32_t config = m->config;
    f->s.work = 0;
    f->s.too_deep = false;
    for (size_t i = 0; i < length && f->s.failed == QP_OK; i++)
        config = stacks_step(&f->s, config, (uint8_t)bytes[i]);
    if (f->s.failed != QP_OK) return give_up(f, error);
    if (config == CONFIG_DEAD && f->s.too_deep) return too_deep(error);
    if (length == 0 || config == CONFIG_DEAD) return refuse(token, error);
    m->masked = m->masked && config == m->config;
    m->config = config;
    return QP_OK;
}

qp_status matcher_take(matcher *m, int32_t token, qp_error *error)
{
    char bytes[TRIE_MAX_PIECE];
    if (m->over) return error_set(error, QP_INVALID, "the text has ended");
    if (is_stop(m, token)) {
        m->masked = false;
        m->over = matcher_may_end(m);
        return m->over ? QP_OK : refuse(token, error);
    }
    const size_t length = token_trie_bytes(m->form->trie, token, bytes);
    pthread_mutex_lock(&m->form->lock);
    qp_status status = follow(m, bytes, length, token, error);
    pthread_mutex_unlock(&m->form->lock);
    return status;
}

bool matcher_may_end(matcher *m)
{
    pthread_mutex_lock(&m->form->lock);
    const bool ends = m->form->s.configs[m->config].ends;
    pthread_mutex_unlock(&m->form->lock);
    return ends;
}
