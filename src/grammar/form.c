/* Masks of a form: see matcher.h and form.h. */
#include "grammar/form.h"

#include "base/clock.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

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
    const size_t words = mask_words((size_t)f->trie->vocab_size);
    mask *m = calloc(1, sizeof *m);
    if (m) m->bits = calloc(words + 1, sizeof *m->bits);
    f->s.bytes += sizeof *m + words * sizeof *m->bits;
    const bool fits = f->s.bytes <= STACKS_MAX_BYTES;
    if (!fits || !m || !m->bits || !table_grow(t)) {
        mask_free(m);
        f->s.failed = fits ? QP_NO_MEMORY : QP_UNSUPPORTED;
        return NULL;
    }
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
        mask_allow(bits, t->tokens[i]);
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
    for (uint32_t i = from, met = 0; i < to && s->failed == QP_OK; met++) {
        const trie_step *node = &t->nodes[i];
        if (met % FORM_WALK == 0 && !stacks_spend(s, 1)) return;
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
    memcpy(m->bits, local->bits, mask_words((size_t)f->trie->vocab_size) * sizeof *m->bits);
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

mask *form_config_mask(form *f, uint32_t index)
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
        for (size_t w = 0; w < mask_words((size_t)f->trie->vocab_size); w++)
            m->bits[w] |= part->bits[w];
    }
    return m;
}

const mask *form_known_mask(const form *f, uint32_t index)
{
    const config *c = &f->s.configs[index];
    const uint32_t clear = c->count == 1 ? f->s.frames[f->s.members[c->first]].clear : 0;
    if (c->count == 1 && !is_deep(f, c)) return clear ? table_find(&f->of_frame, clear) : NULL;
    return table_find(&f->of_config, index);
}

/* ---- Memory -------------------------------------------------------------------------------- */

qp_status form_forget(form *f, qp_error *error)
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

qp_status form_give_up(form *f, qp_error *error)
{
    qp_status status = stacks_error(&f->s, error);
    form_forget(f, NULL);
    return status;
}

/* ---- The form ---------------------------------------------------------------------------------
 */

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

const tokenizer *form_tokenizer(const form *f)
{
    return f->trie->tokenizer;
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
        if (f->s.failed != QP_OK) form_forget(f, NULL);
        pthread_mutex_unlock(&f->lock);
        if (full) break;
    }
}
