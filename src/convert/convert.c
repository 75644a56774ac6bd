/* Models as GGUF files: qp_convert() in quipu.h.
 *
 * The list of tensors is made first, so that the head of the file can be written. Then each tensor
 * is converted in pieces of whole rows: all threads read, permute, decode and encode rows, and one
 * thread writes them. Rows whose type does not change are copied.
 */
#include "base/buffer.h"
#include "base/files.h"
#include "base/sized.h"
#include "convert/imatrix.h"
#include "file/mapping.h"
#include "file/synthetic.h"
#include "engine/generation_config.h"
#include "model/adapter.h"
#include "model/family/family.h"
#include "tensor/codec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PIECE_BYTES = 4 << 20 }; /* of a tensor, as floats, for each thread */
#define F16_MOST 65504.0f

/* --- Rows. --- */

/* One piece of a tensor during conversion. */
typedef struct piece {
    const convert_job *job;
    const target *target;
    int64_t first, rows;
    char *out;                 /* [rows] as they will be stored */
    char *stored;              /* [threads] a row as it is stored; of the types' larger size */
    float *values;             /* [threads][2][columns]: before and after */
    _Atomic int64_t bad_row;   /* a row that holds a value that is not finite; -1: none */
    _Atomic int64_t large_row; /* a row whose values the new type cannot hold; -1: none */
    _Atomic int64_t n_clamped; /* values of such rows, where the options say so */
} piece;

/* The old tensor's row for row `row` of the new one. Rotary embedding pairs neighbours 2i and 2i +
 * 1 of a head in GGUF, and i and i + turned / 2 in the other order. */
static int64_t source_row(const target *t, int64_t row)
{
    int64_t within = t->turned ? row % t->head_dim : 0;
    if (within >= t->turned) return row;
    return row - within + within % 2 * (t->turned / 2) + within / 2;
}

/* Rows of a tensor that holds several slots, one after the other. */
static void read_fused_rows(const piece *p, int64_t row, int64_t rows, char *dst)
{
    const target *t = p->target;
    const model *m = p->job->model;
    for (int slot = 0; slot < WEIGHT_COUNT && rows > 0; slot++) {
        int64_t count, columns;
        if (!(t->fused >> slot & 1)) continue;
        weight_shape(model_get_config(m), (weight_slot)slot, &count, &columns);
        const int64_t n = row + rows < count ? rows : count - row;
        if (row < count) {
            model_read_rows(m, (weight_slot)slot, t->layer, t->bias, row, n, dst);
            dst += (size_t)n * dtype_row_bytes(t->from, t->columns);
            rows -= n;
        }
        row = row > count ? row - count : 0;
    }
}

static void read_rows(const piece *p, int64_t row, int64_t rows, char *dst)
{
    const target *t = p->target;
    size_t bytes = dtype_row_bytes(t->from, t->columns);
    if (t->fused)
        read_fused_rows(p, row, rows, dst);
    else if (t->data)
        memcpy(dst, (const char *)t->data + (size_t)row * bytes, (size_t)rows * bytes);
    else
        model_read_rows(p->job->model, t->slot, t->layer, t->bias, row, rows, dst);
}

static bool all_finite(const float *values, int64_t n)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += !(fabsf(values[i]) < INFINITY);
    return bad == 0;
}

/* Encodes a row; false: the type cannot hold it. F16, and the scales of blocks, end at 65504. */
static bool encode_row(const target *t, int64_t row, const float *values, char *out, float *decoded)
{
    const float *importance =
        t->importance ? t->importance + row / t->matrix_rows * t->columns : NULL;
    dtype_encode_weighted(t->to, values, importance, out, t->columns);
    dtype_decode(t->to, out, decoded, t->columns);
    return all_finite(decoded, t->columns);
}

static int64_t clamp(float *values, int64_t n)
{
    int64_t clamped = 0;
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(values[i]) <= F16_MOST) continue;
        values[i] = copysignf(F16_MOST, values[i]);
        clamped++;
    }
    return clamped;
}

/* Converts a stored row; `values`, `decoded`: room for it as floats. */
static void convert_row(piece *p, int64_t row, const char *stored, char *out, float *values,
                        float *decoded)
{
    const target *t = p->target;
    dtype_decode(t->from, stored, values, t->columns);
    if (!all_finite(values, t->columns)) p->bad_row = row;
    bool holds = encode_row(t, row, values, out, decoded);
    if (!holds && p->job->options->clamp) {
        p->n_clamped += clamp(values, t->columns);
        holds = encode_row(t, row, values, out, decoded);
    }
    if (!holds) p->large_row = row;
}

static void convert_share(void *context, int worker, int n_workers)
{
    piece *p = context;
    const target *t = p->target;
    int64_t begin, end;
    thread_share(p->rows, worker, n_workers, &begin, &end);
    size_t from_bytes = dtype_row_bytes(t->from, t->columns);
    size_t to_bytes = dtype_row_bytes(t->to, t->columns);
    if (t->from == t->to && !t->turned && begin < end) {
        read_rows(p, p->first + begin, end - begin, p->out + (size_t)begin * to_bytes);
        return;
    }
    char *stored = p->stored + (size_t)worker * from_bytes;
    float *values = p->values + (size_t)worker * 2 * (size_t)t->columns;
    for (int64_t i = begin; i < end; i++) {
        char *out = p->out + (size_t)i * to_bytes;
        int64_t row = source_row(t, p->first + i);
        read_rows(p, row, 1, t->from == t->to ? out : stored);
        if (t->from == t->to) continue;
        convert_row(p, row, stored, out, values, values + t->columns);
    }
}

/* --- Tensors. --- */

static bool is_cancelled(const convert_job *job)
{
    return job->options->cancel && *job->options->cancel;
}

static int64_t rows_of_piece(const convert_job *job, const target *t)
{
    size_t room = (size_t)PIECE_BYTES * (size_t)thread_pool_size(job->pool);
    int64_t rows = (int64_t)(room / ((size_t)t->columns * sizeof(float)));
    return rows < 1 ? 1 : rows < t->rows ? rows : t->rows;
}

static qp_status not_finite(const target *t, int64_t row, qp_error *error)
{
    return error_set(error, QP_FORMAT,
                     "tensor %.*s: row %lld holds NaN or an infinity, expected finite numbers to "
                     "encode as %s; the model is damaged: fetch it again",
                     (int)t->name.length, t->name.data, (long long)row, dtype_name(t->to));
}

static qp_status too_large(const piece *p, qp_error *error)
{
    const target *t = p->target;
    const long long row = p->large_row;
    double most = 0;
    read_rows(p, row, 1, p->stored);
    dtype_decode(t->from, p->stored, p->values, t->columns);
    for (int64_t i = 0; i < t->columns; i++)
        if (fabs((double)p->values[i]) > fabs(most)) most = p->values[i];
    return error_set(
        error, QP_UNSUPPORTED,
        "tensor %.*s: row %lld holds %g, which is too large for %s (F16 and the scales "
        "of blocks end at 65504); give --type BF16 or F32, or --clamp",
        (int)t->name.length, t->name.data, row, most, dtype_name(t->to));
}

static qp_status write_tensor(convert_job *job, const target *t, qp_error *error)
{
    size_t threads = (size_t)thread_pool_size(job->pool);
    size_t from_bytes = dtype_row_bytes(t->from, t->columns);
    size_t to_bytes = dtype_row_bytes(t->to, t->columns);
    int64_t at_once = rows_of_piece(job, t);
    buffer out = {0}, stored = {0}, values = {0};
    int64_t n_clamped = 0;
    qp_status status = buffer_alloc(&out, (size_t)at_once * to_bytes, "rows", error);
    if (status == QP_OK) status = buffer_alloc(&stored, threads * from_bytes, "rows", error);
    if (status == QP_OK)
        status =
            buffer_alloc(&values, threads * 2 * (size_t)t->columns * sizeof(float), "rows", error);
    for (int64_t row = 0; status == QP_OK && row < t->rows; row += at_once) {
        int64_t rows = t->rows - row < at_once ? t->rows - row : at_once;
        piece p = {job, t, row, rows, out.data, stored.data, values.data, -1, -1, 0};
        thread_pool_run(job->pool, convert_share, &p);
        if (p.bad_row >= 0)
            status = not_finite(t, p.bad_row, error);
        else if (p.large_row >= 0)
            status = too_large(&p, error);
        n_clamped += p.n_clamped;
        if (status == QP_OK)
            status = gguf_writer_data(job->writer, out.data, (size_t)rows * to_bytes, error);
        progress_advance(&job->progress, (size_t)rows * to_bytes);
        if (status == QP_OK && is_cancelled(job))
            status = error_set(error, QP_CANCELLED, "%s: cancelled; nothing was written",
                               job->options->out);
    }
    buffer_free(&out);
    buffer_free(&stored);
    buffer_free(&values);
    if (n_clamped)
        strbuf_printf(&job->warnings, "tensor %.*s: %lld values beyond %g were changed to it\n",
                      (int)t->name.length, t->name.data, (long long)n_clamped, (double)F16_MOST);
    /* A mapped file's pages are not needed again after they were read. */
    if (t->data && t->slot < WEIGHT_COUNT) model_release_weight(job->model, t->slot, t->layer);
    return status;
}

static qp_status write_tensors(convert_job *job, qp_error *error)
{
    uint64_t total = 0;
    for (size_t i = 0; i < job->n_targets; i++) {
        const target *t = &job->targets[i];
        gguf_put_tensor(job->writer, t->name, t->to, t->rank, t->shape);
        total += (uint64_t)t->rows * dtype_row_bytes(t->to, t->columns);
    }
    TRY(gguf_writer_begin(job->writer, error));
    progress_begin(&job->progress, "writing", total);
    for (size_t i = 0; i < job->n_targets; i++)
        TRY(write_tensor(job, &job->targets[i], error));
    TRY(gguf_writer_finish(job->writer, error));
    progress_end(&job->progress);
    return QP_OK;
}

/* --- The whole. --- */

/* An existing file may be replaced, but not the model itself by its conversion: the model would be
 * lost if the new type was a mistake. */
static qp_status check_out(const qp_convert_options *options, qp_error *error)
{
    struct stat from, to;
    if (stat(options->out, &to) != 0) return QP_OK;
    if (!S_ISREG(to.st_mode))
        return error_set(error, QP_INVALID, "%s: expected a file to write, found a %s",
                         options->out, S_ISDIR(to.st_mode) ? "directory" : "device or a pipe");
    if (stat(options->model, &from) != 0 || from.st_dev != to.st_dev || from.st_ino != to.st_ino)
        return QP_OK;
    return error_set(error, QP_INVALID, "%s: is the model itself; name another file", options->out);
}

static void tell_warnings(convert_job *job)
{
    const qp_convert_options *options = job->options;
    char *line = job->warnings.data;
    while (options->log && line && *line) {
        char *end = strchr(line, '\n');
        if (end) *end = '\0';
        options->log(options->log_context, QP_LOG_WARNING, line);
        line = end ? end + 1 : NULL;
    }
    strbuf_clear(&job->warnings);
}

static void on_progress(void *context, const progress *progress)
{
    const convert_job *job = context;
    strbuf line = {0};
    progress_print(progress, &line);
    job->options->progress(job->options->progress_context, strbuf_text(&line),
                           progress->done >= progress->total);
    strbuf_free(&line);
}

/* The model's sampling settings are written beside the new file. */
static qp_status copy_settings(const qp_convert_options *options, qp_error *error)
{
    enum { LIMIT = 1 << 20 };
    char from[GENERATION_CONFIG_PATH], to[GENERATION_CONFIG_PATH];
    strbuf text = {0};
    if (synthetic_is_name(options->model)) return QP_OK;
    TRY(generation_config_path(options->model, from, error));
    TRY(generation_config_path(options->out, to, error));
    if (!file_exists(from)) return QP_OK;
    qp_status status = files_read(from, LIMIT, &text, error);
    if (status == QP_OK) status = files_write(to, text.data, text.length, error);
    strbuf_free(&text);
    return status;
}

/* They are added to the weights. */
static qp_status choose_adapters(const qp_convert_options *o, adapter_choice choices[ADAPTER_MAX],
                                 adapter_choices *out, qp_error *error)
{
    if (o->n_adapters > ADAPTER_MAX)
        return error_set(error, QP_INVALID, "a model has at most %d adapters, found %zu",
                         ADAPTER_MAX, o->n_adapters);
    for (size_t i = 0; i < o->n_adapters; i++) {
        const double scale = o->adapters[i].scale == 0 ? 1 : o->adapters[i].scale;
        if (!isfinite(scale))
            return error_set(error, QP_INVALID,
                             "%s: the scale of an adapter must be a finite number, found %g",
                             o->adapters[i].path, scale);
        choices[i] = (adapter_choice){o->adapters[i].path, scale};
    }
    *out = (adapter_choices){choices, (int64_t)o->n_adapters, true};
    return QP_OK;
}

/* A GGUF file's tensors are copied as they are, with weights of one slot in place of theirs. */
static qp_status check_merged(const convert_job *job, qp_error *error)
{
    const model_config *c = model_get_config(job->model);
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        const family_fused *fused = family_fused_of(c->family, (weight_slot)slot);
        if (!fused || !fused->gguf || !(c->adapters.slots >> slot & 1)) continue;
        if (!c->adapters.merged || !model_gguf(job->model)) continue;
        return error_set(error, QP_UNSUPPORTED,
                         "%s: an adapter is not added to \"%s\", which holds several weights of a "
                         "layer; convert the model's directory of safetensors",
                         model_path(job->model), fused->gguf);
    }
    return QP_OK;
}

static qp_status run(convert_job *job, imatrix *matrix, qp_error *error)
{
    const qp_convert_options *options = job->options;
    adapter_choice adapters[ADAPTER_MAX];
    model_options sizes_only = {.sizes_only = true, .fp8_as_bf16 = true};
    if (!options->model || !options->out)
        return error_set(error, QP_INVALID, "a model and a file to write are needed");
    if (options->type) TRY(mix_find(options->type, &job->mix, error));
    TRY(choose_adapters(options, adapters, &sizes_only.adapters, error));
    TRY(thread_pool_create(options->threads ? options->threads : threads_available(), &job->pool,
                           error));
    sizes_only.pool = job->pool;
    TRY(model_open(options->model, &sizes_only, &job->model, error));
    TRY(check_merged(job, error));
    TRY(check_out(options, error));
    TRY(gguf_writer_create(options->out, 0, &job->writer, error));
    TRY(convert_list_targets(job, error));
    if (job->importance.from) TRY(imatrix_open(job, matrix, error));
    if (job->importance.out) TRY(imatrix_write(matrix, job->importance.out, error));
    TRY(convert_put_keys(job, error));
    tell_warnings(job);
    TRY(write_tensors(job, error));
    tell_warnings(job);
    return copy_settings(options, error);
}

qp_status qp_convert(const qp_convert_options *given, qp_error *error)
{
    return convert_model(given, &(convert_importance){0}, error);
}

qp_status convert_model(const qp_convert_options *given, const convert_importance *importance,
                        qp_error *error)
{
    qp_convert_options options;
    TRY(SIZED_READ(qp_convert_options, given, &options, error));
    convert_job job = {.options = &options, .importance = *importance};
    if (options.progress) job.progress = (progress){.sink = on_progress, .context = &job};
    imatrix matrix = {0};
    qp_status status = run(&job, &matrix, error);
    imatrix_free(&matrix);
    gguf_writer_destroy(job.writer);
    thread_pool_destroy(job.pool);
    model_close(job.model);
    arena_free(&job.arena);
    strbuf_free(&job.warnings);
    free(job.targets);
    return status;
}
