/* The state of a session in a file: see qp_session_save() in quipu.h, and page_file.h.
 *
 * After the header come the number of tokens and the length that RoPE angles are made for. Each
 * record's parent is the one before it; the last page may be partly filled.
 */
#include "engine/engine.h"
#include "engine/page_file.h"

#include <stdlib.h>
#include <string.h>

static const char magic[16] = "quipu session 1", what[] = "a session of quipu";

typedef struct session_header {
    uint64_t tokens;
    int64_t rope_length;
    uint64_t adapters; /* session_adapters.key */
    uint64_t checksum; /* of the bytes before it */
} session_header;

static uint64_t sum_of(const session_header *h)
{
    return page_file_sum(h, offsetof(session_header, checksum));
}

/* ---- save ---------------------------------------------------------------------------------- */

static qp_status write_pages(page_file *f, const qp_session *s, int32_t *tokens, qp_error *error)
{
    const size_t page_size = (size_t)f->header.page_size;
    session_header head = {
        .tokens = s->count, .rope_length = s->rope_length, .adapters = s->adapters.key};
    head.checksum = sum_of(&head);
    TRY(page_file_write(f, &head, sizeof head, error));
    for (uint64_t i = 0; i < f->header.count; i++) {
        const size_t left = s->count - i * page_size, n = left < page_size ? left : page_size;
        memset(tokens, 0, page_size * sizeof *tokens);
        memcpy(tokens, s->tokens + i * page_size, n * sizeof *tokens);
        TRY(page_file_write_record(f, i, (page_file_entry){(int64_t)i - 1, 0}, tokens,
                                   s->pages.pages[i], error));
    }
    return page_file_end(f, error);
}

static qp_status save(qp_session *s, const char *path, qp_error *error)
{
    page_file f;
    const size_t page_size = (size_t)s->engine->pages.page_size;
    step_drop(s->engine); /* machines are read while nothing runs */
    int32_t *tokens = malloc(page_size * sizeof *tokens);
    qp_status status = page_file_init(&f, s->engine, path, magic, what, error);
    if (status == QP_OK && !tokens) status = error_no_memory(error, what, page_size);
    if (status == QP_OK)
        status = page_file_begin(&f, (s->count + page_size - 1) / page_size, error);
    if (status == QP_OK) status = write_pages(&f, s, tokens, error);
    free(tokens);
    page_file_close(&f);
    return status;
}

qp_status qp_session_save(qp_session *s, const char *path, qp_error *error)
{
    TRY(engine_enter(s->engine, error));
    const qp_status status = save(s, path, error);
    engine_leave(s->engine);
    return status;
}

/* ---- load ---------------------------------------------------------------------------------- */

static qp_status check_header(const page_file *f, const session_header *h, qp_error *error)
{
    const qp_engine *e = f->engine;
    const uint64_t context = (uint64_t)e->program.options.context, size = f->header.page_size;
    if (h->checksum != sum_of(h) || h->tokens > INT32_MAX || h->rope_length < (int64_t)h->tokens ||
        f->header.count != (h->tokens + size - 1) / size)
        return error_set(error, QP_FORMAT, "%s is damaged: its number of tokens is wrong", f->path);
    if (h->tokens <= context && (uint64_t)h->rope_length <= context) return QP_OK;
    return error_set(error, QP_INVALID,
                     "%s holds a session of %llu tokens, and the context has room for %llu (%s)",
                     f->path, (unsigned long long)h->tokens, (unsigned long long)context,
                     engine_about_context(e));
}

static qp_status damaged(const page_file *f, uint64_t index, const char *how, qp_error *error)
{
    return error_set(error, QP_FORMAT, "%s is damaged: page %llu of %llu %s", f->path,
                     (unsigned long long)index + 1, (unsigned long long)f->header.count, how);
}

static qp_status read_page(page_file *f, uint64_t index, size_t n, qp_session *s, qp_error *error)
{
    page_file_entry entry;
    const int64_t vocab_size = f->engine->program.config.vocab_size;
    const page_file_found found = page_file_read_record(f, index, &entry);
    if (found == PAGE_FILE_ENDED) return damaged(f, index, "is missing, the file was cut", error);
    if (found == PAGE_FILE_DAMAGED) return damaged(f, index, "has a wrong checksum", error);
    const int32_t *tokens = page_file_tokens(f);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab_size)
            return damaged(f, index, "has a token outside the vocabulary", error);
    memcpy(s->tokens + index * f->header.page_size, tokens, n * sizeof *tokens);
    return page_file_restore_page(f, s->pages.pages[index], error);
}

static qp_status read_session(page_file *f, qp_session *s, qp_error *error)
{
    session_header head;
    bool found;
    TRY(page_file_open(f, &found, error));
    if (!found) return error_set(error, QP_IO, "%s: there is no such file", f->path);
    if (!page_file_read(f, &head, sizeof head))
        return error_set(error, QP_FORMAT, "%s is damaged: it was cut after its header", f->path);
    TRY(check_header(f, &head, error));
    if (head.adapters != s->adapters.key)
        return error_set(error, QP_FORMAT,
                         "%s holds a session with other adapters, or other scales of them, than "
                         "this one has",
                         f->path);
    if (head.tokens > 0) TRY(session_take_pages(s, 0, (size_t)head.tokens, error));
    for (uint64_t i = 0; i < f->header.count; i++) {
        const uint64_t left = head.tokens - i * f->header.page_size;
        const uint64_t n = left < f->header.page_size ? left : f->header.page_size;
        TRY(read_page(f, i, (size_t)n, s, error));
    }
    s->count = (size_t)head.tokens;
    s->rope_length = head.rope_length;
    s->engine->step.slots[s->slot].counted = -1;
    return QP_OK;
}

static qp_status load(qp_session *s, const char *path, qp_error *error)
{
    page_file f;
    if (s->count > 0)
        return error_set(error, QP_INVALID,
                         "a session is loaded into an empty one, but this holds %zu tokens: "
                         "truncate it to 0, or open another",
                         s->count);
    step_drop(s->engine);
    qp_status status = page_file_init(&f, s->engine, path, magic, what, error);
    if (status == QP_OK) status = read_session(&f, s, error);
    if (status != QP_OK) session_give_pages_back(s, 0);
    page_file_close(&f);
    return status;
}

qp_status qp_session_load(qp_session *s, const char *path, qp_error *error)
{
    TRY(engine_enter(s->engine, error));
    const qp_status status = load(s, path, error);
    engine_leave(s->engine);
    return status;
}
