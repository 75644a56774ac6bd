/* The prefix tree in a file: see prefix_file.h. A record's parent is an earlier record. */
#include "engine/prefix_file.h"

#include "engine/engine.h"
#include "engine/page_file.h"

#include <assert.h>
#include <stdlib.h>

static const char magic[16] = "quipu prefixes 1", what[] = "a prompt cache";

/* ---- save ---------------------------------------------------------------------------------- */

/* `places` [n_pages]: the records of pages. */
static qp_status write_all(page_file *f, int64_t *places, qp_error *error)
{
    const prefix_tree *t = &f->engine->prefixes;
    int32_t page = t->pool->newest;
    for (uint64_t i = 0; i < f->header.count; i++, page = t->pool->older[page]) {
        const int64_t parent = t->parents[page] < 0 ? -1 : places[t->parents[page]];
        assert(parent < (int64_t)i);
        places[page] = (int64_t)i;
        TRY(page_file_write_record(f, i, (page_file_entry){parent, t->keys[page]},
                                   t->tokens + page * t->pool->page_size, page, error));
    }
    return page_file_end(f, error);
}

static qp_status save(page_file *f, uint64_t count, qp_error *error)
{
    const size_t bytes = (size_t)f->engine->pages.n_pages * sizeof(int64_t);
    TRY(page_file_begin(f, count, error));
    int64_t *places = malloc(bytes);
    if (!places) return error_no_memory(error, what, bytes);
    const qp_status status = write_all(f, places, error);
    free(places);
    return status;
}

qp_status prefix_file_save(qp_engine *e, const char *path, uint64_t most, prefix_file_result *out,
                           qp_error *error)
{
    page_file f;
    *out = (prefix_file_result){0};
    step_drop(e); /* machines are read while nothing runs */
    qp_status status = page_file_init(&f, e, path, magic, what, error);
    const uint64_t idle = (uint64_t)e->pages.n_idle, head = sizeof f.header;
    const uint64_t room = most > head ? (most - head) / f.record.size : 0;
    const uint64_t count = idle < room ? idle : room;
    *out = (prefix_file_result){
        .pages = count, .skipped = idle - count, .bytes = head + count * f.record.size};
    if (status == QP_OK) status = save(&f, count, error);
    page_file_close(&f);
    return status;
}

/* ---- restore ------------------------------------------------------------------------------- */

/* The tree's node of the record; -1: it is left out. `pages`: those of earlier records. */
static qp_status restore_record(page_file *f, uint64_t index, page_file_entry entry, int32_t *pages,
                                qp_error *error)
{
    const int64_t parent = entry.parent;
    if (parent >= (int64_t)index || (parent >= 0 && pages[parent] < 0)) return QP_OK;
    pages[index] = prefix_tree_restore(&f->engine->prefixes, entry.key,
                                       parent < 0 ? -1 : pages[parent], page_file_tokens(f));
    return pages[index] < 0 ? QP_OK : page_file_restore_page(f, pages[index], error);
}

static qp_status read_all(page_file *f, int32_t *pages, prefix_file_result *out, qp_error *error)
{
    page_file_entry entry;
    for (uint64_t i = 0; i < f->header.count; i++) {
        const page_file_found found = page_file_read_record(f, i, &entry);
        pages[i] = -1;
        if (found == PAGE_FILE_ENDED) {
            out->damaged += f->header.count - i;
            break;
        }
        out->damaged += found == PAGE_FILE_DAMAGED;
        if (found == PAGE_FILE_DAMAGED) continue;
        TRY(restore_record(f, i, entry, pages, error));
        out->pages += pages[i] >= 0;
        out->skipped += pages[i] < 0;
    }
    return QP_OK;
}

static qp_status restore(page_file *f, prefix_file_result *out, qp_error *error)
{
    TRY(page_file_open(f, &out->found, error));
    if (!out->found) return QP_OK;
    out->bytes = f->bytes;
    const uint64_t most = out->bytes / f->record.size;
    if (f->header.count > most) out->damaged = f->header.count - most; /* cut off */
    if (f->header.count > most) f->header.count = most;
    int32_t *pages = malloc((f->header.count + 1) * sizeof *pages);
    if (!pages) return error_no_memory(error, what, f->header.count * sizeof *pages);
    const qp_status status = read_all(f, pages, out, error);
    free(pages);
    return status;
}

qp_status prefix_file_restore(qp_engine *e, const char *path, prefix_file_result *out,
                              qp_error *error)
{
    page_file f;
    *out = (prefix_file_result){0};
    qp_status status = page_file_init(&f, e, path, magic, what, error);
    if (status == QP_OK) status = restore(&f, out, error);
    page_file_close(&f);
    return status;
}
