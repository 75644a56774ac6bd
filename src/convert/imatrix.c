/* Importance matrices of a conversion: see imatrix.h. */
#include "convert/imatrix.h"

#include "engine/importance.h"
#include "file/mapping.h"

#include <string.h>

/* ---- From a text ----------------------------------------------------------------------------- */

static void on_chunk(void *context, size_t chunk, size_t n_chunks)
{
    convert_job *job = context;
    if (chunk == 1) progress_begin(&job->progress, "reading the text", n_chunks);
    progress_advance(&job->progress, 1);
    if (chunk == n_chunks) progress_end(&job->progress);
}

static const importance *find_measured(const importance_list *list, const target *t)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->of[i].slot == t->slot && list->of[i].layer == t->layer) return &list->of[i];
    return NULL;
}

static qp_status add_measured(imatrix *m, const target *t, const importance *from, qp_error *error)
{
    const int64_t n = from->n_experts * (from->columns + 1);
    float *sums = arena_alloc(&m->memory, (size_t)n, sizeof *sums);
    if (!sums) return error_no_memory(error, "an importance matrix", (size_t)n * sizeof *sums);
    for (int64_t i = 0; i < n; i++)
        sums[i] = (float)from->sums[i];
    m->of[m->count++] = (imatrix_entry){.name = t->name,
                                        .n = from->n_experts,
                                        .columns = from->columns,
                                        .sums = sums,
                                        .counts = sums + from->n_experts * from->columns};
    return QP_OK;
}

static qp_status measure(convert_job *job, const char *text, size_t length, imatrix *m,
                         qp_error *error)
{
    importance_list list = {0};
    const qp_convert_options *o = job->options;
    const qp_engine_options options = {.size = sizeof options,
                                       .model = o->model,
                                       .threads = o->threads,
                                       .log = o->log,
                                       .log_context = o->log_context};
    qp_status status =
        importance_measure(&options, text, length, on_chunk, job, o->cancel, &list, error);
    m->n_chunks = list.n_chunks;
    m->of = status == QP_OK ? arena_alloc(&m->memory, job->n_targets + 1, sizeof *m->of) : NULL;
    if (status == QP_OK && !m->of)
        status = error_no_memory(error, "an importance matrix", job->n_targets);
    for (size_t i = 0; status == QP_OK && i < job->n_targets; i++) {
        const target *t = &job->targets[i];
        const importance *found =
            t->slot < WEIGHT_COUNT && !t->bias ? find_measured(&list, t) : NULL;
        if (found && t->rank >= 2) status = add_measured(m, t, found, error);
    }
    importance_free(&list);
    return status;
}

/* ---- Of the tensors -------------------------------------------------------------------------- */

static imatrix_entry *find_entry(const imatrix *m, text_slice name)
{
    for (size_t i = 0; i < m->count; i++)
        if (slice_equals(m->of[i].name, name)) return &m->of[i];
    return NULL;
}

/* Mean squares; of a matrix that no row was multiplied with all are 1. */
static qp_status give(imatrix *m, const imatrix_entry *e, target *t, qp_error *error)
{
    const int64_t matrices = t->rank > 2 ? t->shape[0] : 1, n = e->n * e->columns;
    if (n != matrices * t->columns)
        return error_set(error, QP_FORMAT,
                         "%s: %.*s has %lld values, expected %lld matrices of %lld: it is of "
                         "another model",
                         m->path, (int)t->name.length, t->name.data, (long long)n,
                         (long long)matrices, (long long)t->columns);
    float *means = arena_alloc(&m->memory, (size_t)n, sizeof *means);
    if (!means) return error_no_memory(error, "an importance matrix", (size_t)n * sizeof *means);
    for (int64_t i = 0; i < n; i++) {
        const float count = e->counts[i / e->columns];
        means[i] = count > 0 ? e->sums[i] / count : 1;
    }
    t->importance = means;
    t->matrix_rows = t->rows / matrices;
    return QP_OK;
}

static void warn(convert_job *job, const imatrix *m, const char *what, size_t n, text_slice example)
{
    if (n)
        strbuf_printf(&job->warnings, "%s: %zu tensors %s, such as %.*s\n", m->path, n, what,
                      (int)example.length, example.data);
}

static qp_status give_all(convert_job *job, imatrix *m, qp_error *error)
{
    size_t without = 0, unknown = 0;
    text_slice missing = {0}, unused = {0};
    for (size_t i = 0; i < job->n_targets; i++) {
        target *t = &job->targets[i];
        imatrix_entry *e = find_entry(m, t->name);
        if (e) {
            e->used = true;
            TRY(give(m, e, t, error));
        } else if (dtype_is_quantized(t->to) && t->from != t->to) {
            if (!without++) missing = t->name;
        }
    }
    for (size_t i = 0; i < m->count; i++)
        if (!m->of[i].used && !unknown++) unused = m->of[i].name;
    if (unknown == m->count)
        return error_set(error, QP_FORMAT,
                         "%s: the model has none of its tensors, such as %.*s: it is of another "
                         "model",
                         m->path, (int)unused.length, unused.data);
    warn(job, m, "are not of the model", unknown, unused);
    warn(job, m, "are quantised without importance", without, missing);
    return QP_OK;
}

/* A file of llama.cpp has a number first, whose highest byte is 0, or is GGUF. */
static bool is_text(const mapping *file)
{
    return memchr(file->data, 0, file->size) == NULL;
}

qp_status imatrix_open(convert_job *job, imatrix *out, qp_error *error)
{
    mapping file;
    const char *path = job->importance.from;
    TRY(mapping_open(path, &file, error));
    out->path = path;
    qp_status status = is_text(&file) ? measure(job, (const char *)file.data, file.size, out, error)
                                      : imatrix_read(file.data, file.size, path, out, error);
    mapping_close(&file);
    if (status == QP_OK) status = give_all(job, out, error);
    return status;
}
