/* Importance matrices as files of llama.cpp: see imatrix.h.
 *
 * The older form, little-endian: i32 entries; for each entry i32 length, name, i32 calls, i32 n, n
 * floats, which are mean squares times calls; then, not in the oldest files, i32 chunks, i32 length
 * and the name of the text. GGUF: NAME.in_sum2 (matrices, columns), sums of squares, and
 * NAME.counts (matrices, 1).
 */
#include "convert/imatrix.h"

#include "engine/importance.h"
#include "file/gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_ENTRIES = 1 << 20, MOST_NAME = 255 };

void imatrix_free(imatrix *m)
{
    arena_free(&m->memory);
    *m = (imatrix){0};
}

/* A copy of n floats, which must be finite and at least 0. */
static qp_status copy_floats(imatrix *m, text_slice name, const char *what, const void *from,
                             int64_t n, const float **out, qp_error *error)
{
    float *copy = arena_alloc(&m->memory, (size_t)n, sizeof *copy);
    if (!copy) return error_no_memory(error, "an importance matrix", (size_t)n * sizeof *copy);
    memcpy(copy, from, (size_t)n * sizeof *copy);
    for (int64_t i = 0; i < n; i++)
        if (!(copy[i] >= 0) || isinf(copy[i]))
            return error_set(error, QP_FORMAT,
                             "%s: %.*s has %s of %g at %lld, expected finite numbers of at least 0",
                             m->path, (int)name.length, name.data, what, (double)copy[i],
                             (long long)i);
    *out = copy;
    return QP_OK;
}

static qp_status make_room(imatrix *m, size_t count, qp_error *error)
{
    m->of = arena_alloc(&m->memory, count, sizeof *m->of);
    return m->of ? QP_OK : error_no_memory(error, "an importance matrix", count * sizeof *m->of);
}

static qp_status copy_name(imatrix *m, text_slice name, text_slice *out, qp_error *error)
{
    const char *copy = arena_strndup(&m->memory, name.data, name.length);
    if (!copy) return error_no_memory(error, "a tensor's name", name.length);
    *out = (text_slice){copy, name.length};
    return QP_OK;
}

/* ---- The older form -------------------------------------------------------------------------- */

typedef struct cursor {
    const char *at;
    size_t left;
    const char *path;
} cursor;

static qp_status take(cursor *c, size_t bytes, const char *what, const void **out, qp_error *error)
{
    if (bytes > c->left)
        return error_set(
            error, QP_FORMAT,
            "%s: ends within %s: %zu bytes are left, expected %zu; it is cut off, or no "
            "importance matrix of llama.cpp",
            c->path, what, c->left, bytes);
    *out = c->at;
    c->at += bytes;
    c->left -= bytes;
    return QP_OK;
}

static qp_status take_count(cursor *c, const char *what, int32_t least, int32_t most, int32_t *out,
                            qp_error *error)
{
    const void *from = NULL;
    TRY(take(c, sizeof *out, what, &from, error));
    memcpy(out, from, sizeof *out);
    if (*out >= least && *out <= most) return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%s: %s is %d, expected %d to %d; it is damaged, or no importance matrix of "
                     "llama.cpp",
                     c->path, what, *out, least, most);
}

static qp_status read_entry(imatrix *m, cursor *c, imatrix_entry *out, qp_error *error)
{
    const void *from = NULL;
    int32_t length = 0, calls = 0, n = 0;
    text_slice name;
    TRY(take_count(c, "the length of a name", 1, MOST_NAME, &length, error));
    TRY(take(c, (size_t)length, "a name", &from, error));
    TRY(copy_name(m, (text_slice){from, (size_t)length}, &name, error));
    TRY(take_count(c, "the number of calls", 0, INT32_MAX, &calls, error));
    TRY(take_count(c, "the number of values", 1, INT32_MAX, &n, error));
    TRY(take(c, (size_t)n * sizeof(float), "the values of a tensor", &from, error));
    *out = (imatrix_entry){.name = name, .n = 1, .columns = n};
    TRY(copy_floats(m, name, "a mean square", from, n, &out->sums, error));
    const float count = calls > 0 ? (float)calls : 1;
    return copy_floats(m, name, "a count", &count, 1, &out->counts, error);
}

static qp_status read_older(imatrix *m, const void *bytes, size_t size, qp_error *error)
{
    int32_t entries = 0, chunks = 0;
    cursor c = {bytes, size, m->path};
    TRY(take_count(&c, "the number of entries", 1, MOST_ENTRIES, &entries, error));
    TRY(make_room(m, (size_t)entries, error));
    for (int32_t i = 0; i < entries; i++)
        TRY(read_entry(m, &c, &m->of[m->count++], error));
    if (c.left == 0) return QP_OK;
    TRY(take_count(&c, "the number of chunks", 0, INT32_MAX, &chunks, error));
    m->n_chunks = (size_t)chunks;
    return QP_OK;
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static bool ends_with(text_slice name, const char *end)
{
    const size_t n = strlen(end);
    return name.length > n && memcmp(name.data + name.length - n, end, n) == 0;
}

static qp_status check_tensor(const imatrix *m, const stored_tensor *t, int64_t rows,
                              int64_t columns, qp_error *error)
{
    const bool right = t && t->type == DTYPE_F32 && t->rank <= 2;
    const int64_t found_rows = right && t->rank == 2 ? t->shape[0] : 1;
    const int64_t found_columns = right ? t->shape[t->rank - 1] : 0;
    if (right && (rows < 0 || (found_rows == rows && found_columns == columns))) return QP_OK;
    if (right)
        return error_set(error, QP_FORMAT, "%s: %.*s is (%lld, %lld), expected (%lld, %lld)",
                         m->path, (int)t->name.length, t->name.data, (long long)found_rows,
                         (long long)found_columns, (long long)rows, (long long)columns);
    return error_set(error, QP_FORMAT, "%s: %.*s is no matrix in F32", m->path,
                     t ? (int)t->name.length : 9, t ? t->name.data : "a counter");
}

static qp_status read_pair(imatrix *m, const gguf *file, const stored_tensor *sums, qp_error *error)
{
    char counts_name[MOST_NAME + 16];
    const text_slice name = {sums->name.data, sums->name.length - strlen(".in_sum2")};
    imatrix_entry *out = &m->of[m->count];
    TRY(check_tensor(m, sums, -1, 0, error));
    *out = (imatrix_entry){.n = sums->rank == 2 ? sums->shape[0] : 1,
                           .columns = sums->shape[sums->rank - 1]};
    snprintf(counts_name, sizeof counts_name, "%.*s.counts", (int)name.length, name.data);
    const stored_tensor *counts = gguf_find_tensor(file, counts_name);
    if (!counts)
        return error_set(error, QP_FORMAT, "%s: %.*s has no %s beside it", m->path,
                         (int)sums->name.length, sums->name.data, counts_name);
    TRY(check_tensor(m, counts, out->n, 1, error));
    TRY(copy_name(m, name, &out->name, error));
    TRY(copy_floats(m, out->name, "a sum of squares", sums->data, out->n * out->columns, &out->sums,
                    error));
    TRY(copy_floats(m, out->name, "a count", counts->data, out->n, &out->counts, error));
    m->count++;
    return QP_OK;
}

static qp_status read_pairs(imatrix *m, const gguf *file, qp_error *error)
{
    int64_t chunks = 0;
    text_slice type = {0};
    TRY(gguf_get_string(file, "general.type", &type, error));
    if (!slice_is(type, "imatrix"))
        return error_set(error, QP_FORMAT,
                         "%s: general.type is \"%.*s\", expected \"imatrix\": it is no importance "
                         "matrix",
                         m->path, (int)type.length, type.data ? type.data : "");
    TRY(gguf_get_i64(file, "imatrix.chunk_count", &chunks, error));
    m->n_chunks = chunks > 0 ? (size_t)chunks : 0;
    TRY(make_room(m, gguf_tensor_count(file) + 1, error));
    for (size_t i = 0; i < gguf_tensor_count(file); i++)
        if (ends_with(gguf_tensor_at(file, i)->name, ".in_sum2"))
            TRY(read_pair(m, file, gguf_tensor_at(file, i), error));
    if (m->count > 0) return QP_OK;
    return error_set(error, QP_FORMAT, "%s: has no tensor NAME.in_sum2", m->path);
}

qp_status imatrix_read(const void *bytes, size_t size, const char *name, imatrix *out,
                       qp_error *error)
{
    gguf *file = NULL;
    out->path = name;
    if (size < 4 || memcmp(bytes, "GGUF", 4) != 0) return read_older(out, bytes, size, error);
    qp_status status = gguf_open_memory(bytes, size, name, &file, error);
    if (status == QP_OK) status = read_pairs(out, file, error);
    gguf_close(file);
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void put_entry(gguf_writer *w, const imatrix_entry *e)
{
    char name[MOST_NAME + 16];
    const int64_t sums[] = {e->n, e->columns}, counts[] = {e->n, 1};
    snprintf(name, sizeof name, "%.*s.in_sum2", (int)e->name.length, e->name.data);
    gguf_put_tensor(w, slice_of(name), DTYPE_F32, 2, sums);
    snprintf(name, sizeof name, "%.*s.counts", (int)e->name.length, e->name.data);
    gguf_put_tensor(w, slice_of(name), DTYPE_F32, 2, counts);
}

static qp_status write_all(const imatrix *m, gguf_writer *w, qp_error *error)
{
    const text_slice texts[] = {slice_of(m->path)};
    gguf_put_string(w, "general.type", slice_of("imatrix"));
    gguf_put_strings(w, "imatrix.datasets", texts, 1);
    gguf_put_u32(w, "imatrix.chunk_count", (uint32_t)m->n_chunks);
    gguf_put_u32(w, "imatrix.chunk_size", IMPORTANCE_CHUNK);
    for (size_t i = 0; i < m->count; i++)
        put_entry(w, &m->of[i]);
    TRY(gguf_writer_begin(w, error));
    for (size_t i = 0; i < m->count; i++) {
        const imatrix_entry *e = &m->of[i];
        TRY(gguf_writer_data(w, e->sums, (size_t)(e->n * e->columns) * sizeof(float), error));
        TRY(gguf_writer_data(w, e->counts, (size_t)e->n * sizeof(float), error));
    }
    return gguf_writer_finish(w, error);
}

qp_status imatrix_write(const imatrix *m, const char *path, qp_error *error)
{
    gguf_writer *writer = NULL;
    qp_status status = gguf_writer_create(path, 0, &writer, error);
    if (status == QP_OK) status = write_all(m, writer, error);
    gguf_writer_destroy(writer);
    return status;
}
