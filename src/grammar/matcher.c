/* The place of a text in a form: see matcher.h. */
#include "grammar/form.h"

#include <stdlib.h>
#include <string.h>

static void join(form *f, matcher *m)
{
    m->next = f->matchers;
    if (m->next) m->next->previous = m;
    f->matchers = m;
}

qp_status matcher_open(form *f, const int32_t *stops, size_t n_stops, size_t rows, matcher **out,
                       qp_error *error)
{
    const size_t bytes = mask_words(rows) * sizeof(uint32_t);
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
    qp_status status = f->s.failed == QP_OK ? QP_OK : form_give_up(f, error);
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
        if (ends) mask_allow(m->bits, token);
    }
}

static qp_status too_deep(qp_error *error)
{
    return error_set(error, QP_UNSUPPORTED, "the text is nested deeper than %d rules",
                     STACKS_MAX_DEPTH);
}

/* Writes the mask of a configuration; `found`: of its frames, NULL if it has none. */
static void set_bits(matcher *m, const mask *found, bool ends)
{
    const size_t words = mask_words((size_t)m->form->trie->vocab_size), all = mask_words(m->rows);
    memset(m->bits, 0, all * sizeof *m->bits);
    if (found) memcpy(m->bits, found->bits, (words < all ? words : all) * sizeof *m->bits);
    set_stops(m, ends);
    m->masked = !is_empty(m->bits, all);
}

static qp_status fill(matcher *m, qp_error *error)
{
    form *f = m->form;
    if (f->s.bytes > STACKS_KEEP_BYTES) TRY(form_forget(f, error));
    f->s.work = 0;
    f->s.too_deep = false;
    const config c = f->s.configs[m->config];
    const mask *found = c.count ? form_config_mask(f, m->config) : NULL;
    m->work += f->s.work;
    if (f->s.failed != QP_OK) return form_give_up(f, error);
    set_bits(m, found, c.ends);
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
    m->work += f->s.work;
    if (f->s.failed != QP_OK) return form_give_up(f, error);
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

/* The configuration after the bytes; CONFIG_DEAD where a step is not known. */
static uint32_t known_config(const stacks *s, uint32_t config, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length && config != CONFIG_DEAD; i++) {
        config =
            s->steps[(size_t)config * (size_t)s->m->n_classes + s->m->classes[(uint8_t)bytes[i]]];
        if (config == CONFIG_UNKNOWN) return CONFIG_DEAD;
    }
    return length ? config : CONFIG_DEAD;
}

bool matcher_follow(matcher *m, int32_t token)
{
    char bytes[TRIE_MAX_PIECE];
    form *f = m->form;
    if (m->over || is_stop(m, token)) return false;
    const size_t length = token_trie_bytes(f->trie, token, bytes);
    if (pthread_mutex_trylock(&f->lock) != 0) return false;
    const uint32_t config = known_config(&f->s, m->config, bytes, length);
    const mask *found = config == CONFIG_DEAD ? NULL : form_known_mask(f, config);
    if (found) set_bits(m, found, f->s.configs[config].ends);
    const bool follows = found && m->masked;
    if (follows) m->config = config;
    m->masked = follows;
    pthread_mutex_unlock(&f->lock);
    return follows;
}

uint64_t matcher_work(const matcher *m)
{
    return m->work;
}

bool matcher_may_end(matcher *m)
{
    pthread_mutex_lock(&m->form->lock);
    const bool ends = m->form->s.configs[m->config].ends;
    pthread_mutex_unlock(&m->form->lock);
    return ends;
}
