/* Sessions: the tokens of a sequence and their pages. */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

static void free_session(engine_object *object)
{
    qp_session *s = (qp_session *)object;
    qp_engine *e = s->engine;
    if (!e->owner.closed) {
        page_list_free(&s->pages, &e->pages);
        e->n_sessions--;
        e->sessions[s->slot] = NULL;
    }
    free(s->tokens);
    free(s);
}

qp_status engine_open_session(qp_engine *engine, qp_session **out, qp_error *error)
{
    *out = NULL;
    if (engine->n_sessions == engine->max_sessions)
        return error_set(error, QP_INVALID,
                         "the engine was opened for %lld sessions, and all are in use; close one "
                         "or open it with more",
                         (long long)engine->max_sessions);
    const plan_options *o = &engine->program.options;
    qp_session *s = calloc(1, sizeof *s);
    if (!s) return error_no_memory(error, "a session", sizeof *s);
    engine_add_object(engine, &s->object, free_session);
    s->engine = engine;
    s->id = ++engine->n_opened;
    while (engine->sessions[s->slot])
        s->slot++;
    engine->sessions[s->slot] = s;
    engine->n_sessions++;
    s->tokens = malloc((size_t)o->context * sizeof *s->tokens);
    qp_status status = session_adapt(s, engine->adapters.begin, engine->adapters.n_begin, error);
    if (status == QP_OK)
        status = page_list_init(&s->pages, (o->context + o->page_size - 1) / o->page_size, error);
    if (status == QP_OK && !s->tokens)
        status = error_no_memory(error, "a session", (size_t)o->context * sizeof *s->tokens);
    if (status == QP_OK)
        *out = s;
    else
        qp_session_close(s);
    return status;
}

/* Both sessions share the pages: K and V of the common tokens are stored once. */
void session_share(qp_session *to, const qp_session *from)
{
    memcpy(to->tokens, from->tokens, from->count * sizeof *to->tokens);
    page_list_shrink(&to->pages, &to->engine->pages, 0);
    page_list_share(&to->pages, &from->pages, &to->engine->pages, (int64_t)from->count);
    to->count = from->count;
    to->rope_length = from->rope_length;
    to->adapters = from->adapters;
    to->n_kept = from->n_kept;
}

qp_status session_adapt(qp_session *s, const qp_adapter_use *uses, size_t n, qp_error *error)
{
    session_adapters found;
    const qp_engine *e = s->engine;
    TRY(engine_use_adapters(e->model, &e->adapters, uses, n, &found, error));
    if (s->count > 0 && found.key != s->adapters.key)
        return error_set(error, QP_INVALID,
                         "the session holds %zu tokens, which were read with other adapters: "
                         "forget them first, or open another session",
                         s->count);
    s->adapters = found;
    return QP_OK;
}

qp_status qp_session_adapt(qp_session *s, const qp_adapter_use *uses, size_t n, qp_error *error)
{
    TRY(engine_enter(s->engine, error));
    const qp_status status = session_adapt(s, uses, n, error);
    engine_leave(s->engine);
    return status;
}

qp_status qp_session_open(qp_engine *engine, qp_session **out, qp_error *error)
{
    *out = NULL;
    TRY(engine_enter_within(engine, error));
    const qp_status status = engine_open_session(engine, out, error);
    engine_leave(engine);
    return status;
}

qp_status qp_session_fork(const qp_session *session, qp_session **out, qp_error *error)
{
    *out = NULL;
    TRY(engine_enter_within(session->engine, error));
    const qp_status status = engine_open_session(session->engine, out, error);
    if (status == QP_OK) session_share(*out, session);
    engine_leave(session->engine);
    return status;
}

void qp_session_close(qp_session *s)
{
    if (s) engine_close_object(s->engine, &s->object);
}

const int32_t *qp_session_tokens(const qp_session *s, size_t *count)
{
    engine_wait(s->engine);
    *count = s->count;
    engine_leave(s->engine);
    return s->tokens;
}

qp_status qp_session_truncate(qp_session *s, size_t keep, qp_error *error)
{
    TRY(engine_enter(s->engine, error));
    session_truncate(s, keep);
    engine_leave(s->engine);
    return QP_OK;
}

void session_truncate(qp_session *s, size_t keep)
{
    if (s->count == 0) keep = 0; /* pages may have been taken for tokens that were never read */
    if (keep >= s->count && keep > 0) return;
    const int64_t full = (int64_t)keep / s->engine->pages.page_size;
    if (s->n_kept > full) s->n_kept = full;
    s->count = keep;
    s->engine->step.slots[s->slot].counted = -1;
    session_give_pages_back(s, 0);
}

qp_status session_take_pages(qp_session *s, size_t ahead, size_t n, qp_error *error)
{
    page_copy copy;
    const int64_t held = (int64_t)(s->count + ahead);
    TRY(page_list_grow(&s->pages, &s->engine->pages, held, held + (int64_t)n, &copy, error));
    if (!copy.needed) return QP_OK;
    return machine_copy_page(engine_memory(s->engine), copy.from, copy.to, error);
}

void session_give_pages_back(qp_session *s, size_t ahead)
{
    page_list_shrink(&s->pages, &s->engine->pages, (int64_t)(s->count + ahead));
}

/* ---- the prefix tree ----------------------------------------------------------------------- */

qp_status engine_open_prefixes(qp_engine *e, qp_error *error)
{
    if (e->prefixes.pool || e->batch.angles) return QP_OK;
    return prefix_tree_open(&e->prefixes, &e->pages, error);
}

size_t session_take_prefix(qp_session *s, uint64_t key, const int32_t *tokens, size_t count)
{
    prefix_tree *tree = &s->engine->prefixes;
    const int64_t size = s->engine->pages.page_size;
    prefix_walk walk = {0};
    key = session_adapters_key(&s->adapters, key);
    prefix_tree_find(tree, key, tokens, count, &walk);
    int64_t positions = walk.n_pages * size;
    if (positions >= (int64_t)count) positions = (int64_t)count - 1;
    if (positions <= 0) return 0;
    page_list_shrink(&s->pages, &s->engine->pages, 0);
    prefix_tree_take(tree, key, tokens, positions, &s->pages);
    memcpy(s->tokens, tokens, (size_t)positions * sizeof *tokens);
    s->count = (size_t)positions;
    s->rope_length = positions;
    s->n_kept = positions / size;
    s->engine->step.slots[s->slot].counted = -1;
    return s->count;
}

void session_keep_prefix(qp_session *s, uint64_t key, size_t count)
{
    const int64_t full = (int64_t)count / s->engine->pages.page_size;
    if (s->n_kept >= full) return;
    key = session_adapters_key(&s->adapters, key);
    s->n_kept = prefix_tree_keep(&s->engine->prefixes, key, s->tokens, count, s->n_kept, &s->pages);
}

/* ---- sequences without a session ------------------------------------------------------------ */

qp_status session_park(qp_session *s, parked_pages *out, qp_error *error)
{
    page_list empty;
    TRY(page_list_init(&empty, s->pages.capacity, error));
    session_give_pages_back(s, 0);
    *out = (parked_pages){s->pages, s->count, s->n_kept, s->rope_length};
    s->pages = empty;
    s->n_kept = 0;
    session_truncate(s, 0);
    return QP_OK;
}

void session_return(qp_session *s, parked_pages *parked, const int32_t *tokens)
{
    page_list_free(&s->pages, &s->engine->pages);
    s->pages = parked->pages;
    s->count = parked->count;
    s->n_kept = parked->n_kept;
    s->rope_length = parked->rope_length;
    memcpy(s->tokens, tokens, s->count * sizeof *tokens);
    s->engine->step.slots[s->slot].counted = -1;
    *parked = (parked_pages){0};
}

void parked_pages_free(parked_pages *parked, page_pool *pool)
{
    if (parked->pages.pages) page_list_free(&parked->pages, pool);
    *parked = (parked_pages){0};
}
