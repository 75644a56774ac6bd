/* Where weights come from: see source.h. */
#include "model/family/family.h"
#include "model/fp8.h"
#include "model/int_weights.h"
#include "model/source_part.h"
#include "tensor/codec.h"

#include <stdio.h>
#include <string.h>

/* The tensor that holds the weight's rows among others; NULL: it has one of its own. */
static const family_fused *fused_of(const weight_source *source, weight_slot slot)
{
    const family_fused *fused = family_fused_of(source->config->family, slot);
    if (!fused) return NULL;
    if (source->gguf) return fused->gguf ? fused : NULL;
    return source->safetensors ? fused : NULL;
}

const char *source_stem(const weight_source *source, weight_slot slot)
{
    const family_fused *fused = fused_of(source, slot);
    if (fused) return source->gguf ? fused->gguf : fused->json;
    if (!source->safetensors) return family_gguf_name(source->config->family, slot);
    return source->config->family->tensors[slot];
}

void source_name(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                 char *name, size_t size)
{
    const char *stem = source_stem(source, slot);
    const char *suffix = bias ? "bias" : "weight";
    const size_t length = strlen(stem);
    if (source->safetensors && stem[length - 1] == '.')
        snprintf(name, size, SOURCE_JSON_LAYER "%lld.%.*s%s", (long long)layer, (int)length - 1,
                 stem, bias ? "_bias" : "");
    else if (!weight_get_info(slot)->per_layer)
        snprintf(name, size, "%s.%s", stem, suffix);
    else if (source->safetensors)
        snprintf(name, size, SOURCE_JSON_LAYER "%lld.%s.%s", (long long)layer, stem, suffix);
    else
        snprintf(name, size, SOURCE_GGUF_LAYER "%lld.%s.%s", (long long)layer, stem, suffix);
}

/* Norms, biases and routers are F32. With a quantised type, v and the down projection of every
 * other layer are of the spec's other type, as in files called Q4_K_M; with MXFP4 all matrices but
 * those of experts, as in gpt-oss. */
static dtype asked_type(const weight_source *source, weight_slot slot, int64_t layer, bool bias)
{
    const synthetic_spec *spec = &source->synthetic;
    if (!spec->config) return spec->type; /* as files that are not here would have it */
    if (bias || weight_get_info(slot)->is_norm || slot == WEIGHT_ROUTER) return DTYPE_F32;
    if (slot == WEIGHT_TOKEN_EMBD || slot == WEIGHT_OUTPUT) return spec->other;
    if (spec->type == DTYPE_MXFP4 && source->config->n_experts)
        return weight_get_info(slot)->per_expert ? spec->type : spec->other;
    const family_fused *fused = family_fused_of(source->config->family, slot);
    bool alone = !fused || !fused->gguf; /* else a tensor of GGUF has one type for all its slots */
    bool better =
        (slot == WEIGHT_ATTN_V && alone) || slot == WEIGHT_FFN_DOWN || slot == WEIGHT_DOWN_EXPERTS;
    return better && layer % 2 == 0 && dtype_is_quantized(spec->other) ? spec->other : spec->type;
}

static dtype synthetic_type(const weight_source *source, weight_slot slot, int64_t layer, bool bias)
{
    const dtype type = asked_type(source, slot, layer, bias);
    return type == DTYPE_F8_128 && source->options->fp8_as_bf16 ? DTYPE_BF16 : type;
}

/* What each slot's weight is for. */
static const synthetic_role roles[WEIGHT_COUNT] = {
#define WEIGHT(SLOT, per, role, rows, columns, gguf) SYNTHETIC_##role,
#include "model/weights.def"
#undef WEIGHT
};

static synthetic_distribution distribution_of(const weight_source *source, weight_slot slot,
                                              bool bias)
{
    int64_t rows, columns;
    weight_shape(source->config, slot, &rows, &columns);
    synthetic_role role = bias ? SYNTHETIC_BIAS : roles[slot];
    return synthetic_distribution_of(source->synthetic.config, role, columns);
}

synthetic_stream source_synthetic_stream(const weight_source *source, weight_slot slot,
                                         int64_t layer, bool bias)
{
    char name[160];
    source_name(source, slot, layer, bias, name, sizeof name);
    return synthetic_stream_of(&source->synthetic, synthetic_tensor_id(name),
                               synthetic_type(source, slot, layer, bias),
                               distribution_of(source, slot, bias));
}

qp_status source_own_memory(weight_source *source, size_t bytes, const char *name, void **data,
                            qp_error *error)
{
    owned_buffer *owned = arena_alloc(source->arena, 1, sizeof *owned);
    if (!owned) return error_no_memory(error, name, sizeof *owned);
    TRY(buffer_alloc(&owned->memory, bytes, name, error));
    owned->next = source->owned;
    source->owned = owned;
    *data = owned->memory.data;
    return QP_OK;
}

typedef struct fill_task {
    const weight_source *source;
    const tensor *view;
    uint64_t id;
    synthetic_distribution distribution;
} fill_task;

static void fill_share(void *context, int worker, int n_workers)
{
    const fill_task *task = context;
    const tensor *view = task->view;
    int64_t rows = view->rank == 2 ? view->shape[0] : 1, columns = view->shape[view->rank - 1];
    int64_t begin, end;
    thread_share(rows, worker, n_workers, &begin, &end);
    if (begin == end) return;
    char *to = (char *)view->data + (size_t)begin * dtype_row_bytes(view->type, columns);
    synthetic_fill(&task->source->synthetic, task->id, view->type, task->distribution, to, begin,
                   end - begin, columns);
}

static qp_status make_synthetic(weight_source *source, weight_slot slot, int64_t layer, bool bias,
                                const char *name, tensor *out, qp_error *error)
{
    int64_t rows, columns;
    weight_shape(source->config, slot, &rows, &columns);
    dtype type = synthetic_type(source, slot, layer, bias);
    bool norm = weight_get_info(slot)->is_norm;
    tensor view = bias   ? tensor_1d(NULL, type, rows)
                  : norm ? tensor_1d(NULL, type, columns)
                         : tensor_2d(NULL, type, rows, columns);
    if (!source->options->sizes_only) {
        TRY(source_own_memory(source, tensor_bytes(&view), name, &view.data, error));
        fill_task task = {source, &view, synthetic_tensor_id(name),
                          distribution_of(source, slot, bias)};
        thread_pool_run(source->options->pool, fill_share, &task);
        if (source->options->progress)
            progress_advance(source->options->progress, tensor_bytes(&view));
    }
    if (weight_get_info(slot)->per_expert) view = tensor_split(view, 0, source->config->n_experts);
    *out = view;
    return QP_OK;
}

/* The rows of a fused tensor that are those of a slot, and all of them: not by_kv_head. */
typedef struct fused_rows {
    int64_t first, count, all;
} fused_rows;

static fused_rows rows_of(const model_config *c, const family_fused *fused, weight_slot slot)
{
    fused_rows rows = {0};
    for (int other = 0; other < WEIGHT_COUNT; other++) {
        int64_t count, columns;
        if (!(fused->slots >> other & 1)) continue;
        weight_shape(c, (weight_slot)other, &count, &columns);
        if (other == (int)slot) rows.first = rows.all, rows.count = count;
        rows.all += count;
    }
    return rows;
}

bool source_is_fused(const weight_source *source, weight_slot slot)
{
    return fused_of(source, slot) != NULL;
}

int64_t source_fused_rows(const model_config *c, weight_slot slot)
{
    return rows_of(c, family_fused_of(c->family, slot), slot).all;
}

int64_t source_fused_row(const model_config *c, weight_slot slot, int64_t row)
{
    const family_fused *fused = family_fused_of(c->family, slot);
    if (!fused->by_kv_head) return rows_of(c, fused, slot).first + row;
    int64_t group = c->n_heads / c->n_kv_heads;
    int64_t run = (slot == WEIGHT_ATTN_Q ? group : 1) * c->head_dim; /* rows of a KV head */
    int64_t first = slot == WEIGHT_ATTN_Q ? 0 : slot == WEIGHT_ATTN_K ? group : group + 1;
    return (row / run * (group + 2) + first) * c->head_dim + row % run;
}

static void gather_fused(const weight_source *source, weight_slot slot, const tensor *fused,
                         int64_t begin, int64_t rows, void *dst)
{
    size_t bytes = tensor_bytes(fused) / (size_t)fused->shape[0];
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)dst + (size_t)i * bytes,
               (const char *)fused->data +
                   (size_t)source_fused_row(source->config, slot, begin + i) * bytes,
               bytes);
}

/* A view of the slot's rows of a fused matrix, without data. */
static qp_status split_shape(const weight_source *source, weight_slot slot, const char *name,
                             const tensor *fused, tensor *out, qp_error *error)
{
    const fused_rows rows = rows_of(source->config, fused_of(source, slot), slot);
    if (fused->shape[0] != rows.all || fused->rank > 2) {
        char found[128];
        return error_set(error, QP_FORMAT, "%s: tensor \"%s\" must have %lld rows, found %s",
                         source->path, name, (long long)rows.all,
                         tensor_describe(fused, found, sizeof found));
    }
    tensor view = *fused;
    view.data = NULL;
    view.shape[0] = rows.count;
    *out = view;
    return QP_OK;
}

/* The slot's rows where they lie if they are together; else in memory of their own, or a view
 * without data where only sizes are asked for. */
static qp_status split_fused(weight_source *source, weight_slot slot, const char *name,
                             const tensor *fused, tensor *out, qp_error *error)
{
    tensor view;
    TRY(split_shape(source, slot, name, fused, &view, error));
    if (!fused_of(source, slot)->by_kv_head) {
        const size_t row = tensor_bytes(fused) / (size_t)fused->shape[0];
        view.data = (char *)fused->data + (size_t)source_fused_row(source->config, slot, 0) * row;
    } else if (!source->options->sizes_only || fused->rank == 1) { /* biases are always made */
        TRY(source_own_memory(source, tensor_bytes(&view), name, &view.data, error));
        gather_fused(source, slot, fused, 0, view.shape[0], view.data);
    }
    *out = view;
    return QP_OK;
}

/* --- Norms whose weights are stored less 1. --- */

static bool adds_one(const weight_source *source, weight_slot slot)
{
    return source->safetensors && weight_get_info(slot)->is_norm &&
           source->config->family->norms_add_one;
}

static void read_norm(const tensor *stored, float *dst)
{
    dtype_decode(stored->type, stored->data, dst, stored->shape[0]);
    for (int64_t i = 0; i < stored->shape[0]; i++)
        dst[i] += 1;
}

/* In F32 and in memory of its own, so that every kernel reads a plain norm. */
static qp_status get_norm(weight_source *source, const char *name, const tensor *stored,
                          tensor *out, qp_error *error)
{
    tensor view = *stored;
    if (view.rank != 1) {
        *out = view; /* the caller reports it */
        return QP_OK;
    }
    view = tensor_1d(NULL, DTYPE_F32, stored->shape[0]);
    if (!source->options->sizes_only) {
        TRY(source_own_memory(source, tensor_bytes(&view), name, &view.data, error));
        read_norm(stored, view.data);
    }
    *out = view;
    return QP_OK;
}

/* --- Matrices in FP8, as F8_128 or BF16. --- */

/* The type in which the matrix is seen. */
static dtype type_of_fp8(const weight_source *source, const fp8_matrix *matrix)
{
    const bool by_rows = matrix->block_columns >= matrix->columns;
    const bool as_bf16 =
        source->options->fp8_as_bf16 || (source->options->fp8_by_rows_only && !by_rows);
    return as_bf16 ? DTYPE_BF16 : fp8_type(matrix);
}

/* Rows [begin, begin + rows) of the matrix. */
static void convert_rows(const fp8_matrix *matrix, dtype type, int64_t begin, int64_t rows,
                         void *dst)
{
    if (type == DTYPE_F8_128)
        fp8_join_scales(matrix, begin, rows, dst);
    else
        fp8_decode(matrix, begin, rows, dst);
}

/* Rows [begin, begin + rows) of the slot. */
static void decode_rows(const weight_source *source, weight_slot slot, const fp8_matrix *matrix,
                        int64_t begin, int64_t rows, void *dst)
{
    const dtype type = type_of_fp8(source, matrix);
    if (!fused_of(source, slot)) {
        convert_rows(matrix, type, begin, rows, dst);
        return;
    }
    const size_t row_bytes = dtype_row_bytes(type, matrix->columns);
    for (int64_t i = 0; i < rows; i++)
        convert_rows(matrix, type, source_fused_row(source->config, slot, begin + i), 1,
                     (char *)dst + (size_t)i * row_bytes);
}

typedef struct decode_task {
    const weight_source *source;
    weight_slot slot;
    const fp8_matrix *matrix;
    const tensor *view;
} decode_task;

static void decode_share(void *context, int worker, int n_workers)
{
    const decode_task *task = context;
    int64_t begin, end;
    thread_share(task->view->shape[0], worker, n_workers, &begin, &end);
    if (begin < end)
        decode_rows(task->source, task->slot, task->matrix, begin, end - begin,
                    tensor_row(task->view, begin));
}

static qp_status get_fp8(weight_source *source, weight_slot slot, int64_t layer, const char *name,
                         tensor *out, qp_error *error)
{
    fp8_matrix matrix;
    TRY(fp8_find(source->safetensors, source->config, name, &matrix, error));
    TRY(fp8_check_scales(&matrix, source->path, name, error));
    tensor view = tensor_2d(NULL, type_of_fp8(source, &matrix), matrix.rows, matrix.columns);
    if (fused_of(source, slot)) TRY(split_shape(source, slot, name, &view, &view, error));
    source->n_fp8++;
    source->n_fp8_kept += view.type == DTYPE_F8_128;
    source->n_fp8_by_blocks += view.type == DTYPE_F8_128 && matrix.block_columns < matrix.columns;
    if (!source->options->sizes_only) {
        TRY(source_own_memory(source, tensor_bytes(&view), name, &view.data, error));
        decode_task task = {source, slot, &matrix, &view};
        thread_pool_run(source->options->pool, decode_share, &task);
        if (source->options->progress)
            progress_advance(source->options->progress, tensor_bytes(&view));
        if (source_is_mapped(source, slot, layer, matrix.data))
            buffer_release_pages(matrix.data, (size_t)(matrix.rows * matrix.columns));
    }
    *out = view;
    return QP_OK;
}

/* --- Matrices of whole numbers, as Q4_0, Q8_0 or F32. --- */

typedef struct int_task {
    const weight_source *source;
    weight_slot slot;
    const int_matrix *matrix;
    const tensor *view;
} int_task;

/* Rows [begin, begin + rows) of the slot. */
static void read_int_rows(const int_task *task, int64_t begin, int64_t rows, void *dst)
{
    const dtype type = task->view->type;
    if (!fused_of(task->source, task->slot)) {
        int_read(task->matrix, type, begin, rows, dst);
        return;
    }
    const size_t row_bytes = dtype_row_bytes(type, task->matrix->columns);
    for (int64_t i = 0; i < rows; i++)
        int_read(task->matrix, type, source_fused_row(task->source->config, task->slot, begin + i),
                 1, (char *)dst + (size_t)i * row_bytes);
}

static void read_int_share(void *context, int worker, int n_workers)
{
    const int_task *task = context;
    int64_t begin, end;
    thread_share(task->view->shape[0], worker, n_workers, &begin, &end);
    if (begin < end) read_int_rows(task, begin, end - begin, tensor_row(task->view, begin));
}

static qp_status get_int(weight_source *source, weight_slot slot, const char *name, tensor *out,
                         qp_error *error)
{
    int_matrix matrix;
    TRY(int_find(source->safetensors, source->config, name, &matrix, error));
    TRY(int_check_scales(&matrix, source->path, name, error));
    tensor view = tensor_2d(NULL, int_type(&matrix), matrix.rows, matrix.columns);
    if (fused_of(source, slot)) TRY(split_shape(source, slot, name, &view, &view, error));
    if (!source->options->sizes_only) {
        TRY(source_own_memory(source, tensor_bytes(&view), name, &view.data, error));
        int_task task = {source, slot, &matrix, &view};
        thread_pool_run(source->options->pool, read_int_share, &task);
        if (source->options->progress)
            progress_advance(source->options->progress, tensor_bytes(&view));
    }
    *out = view;
    return QP_OK;
}

static qp_status get_stored(weight_source *source, weight_slot slot, int64_t layer, bool bias,
                            const char *name, tensor *out, qp_error *error)
{
    if (source->gguf) {
        tensor stored = {0};
        TRY(gguf_get_tensor(source->gguf, name, &stored, error));
        *out = stored;
        if (stored.rank == 0 || !fused_of(source, slot)) return QP_OK;
        return split_fused(source, slot, name, &stored, out, error);
    }
    if (!source->safetensors) return make_synthetic(source, slot, layer, bias, name, out, error);
    if (source_experts(source, slot) != SOURCE_NO_EXPERTS)
        return source_get_experts(source, slot, layer, bias, name, out, error);
    if (!bias && fp8_is_stored(source->safetensors, name))
        return get_fp8(source, slot, layer, name, out, error);
    if (!bias && int_is_stored(source->safetensors, source->config, name))
        return get_int(source, slot, name, out, error);
    tensor view = {0};
    TRY(safetensors_get_tensor(source->safetensors, name, &view, error));
    if (view.rank && adds_one(source, slot)) return get_norm(source, name, &view, out, error);
    if (view.rank == 0 || !fused_of(source, slot)) {
        *out = view;
        return QP_OK;
    }
    TRY(split_fused(source, slot, name, &view, out, error));
    if (out->data && fused_of(source, slot)->by_kv_head && !bias &&
        source_is_mapped(source, slot, layer, view.data))
        buffer_release_pages(view.data, tensor_bytes(&view));
    return QP_OK;
}

/* A bias of safetensors in F32: it is small, and fast kernels read no other. */
static qp_status widen_bias(weight_source *source, const char *name, tensor *bias, qp_error *error)
{
    tensor wide = *bias;
    if (bias->rank == 0 || bias->type == DTYPE_F32) return QP_OK;
    wide = tensor_make(NULL, DTYPE_F32, bias->rank, bias->shape);
    TRY(source_own_memory(source, tensor_bytes(&wide), name, &wide.data, error));
    dtype_decode(bias->type, bias->data, wide.data, tensor_elements(bias));
    *bias = wide;
    return QP_OK;
}

qp_status source_get(weight_source *source, weight_slot slot, int64_t layer, bool bias, tensor *out,
                     qp_error *error)
{
    char name[160];
    source_name(source, slot, layer, bias, name, sizeof name);
    TRY(get_stored(source, slot, layer, bias, name, out, error));
    return bias && source->safetensors ? widen_bias(source, name, out, error) : QP_OK;
}

static void read_stored(const weight_source *source, const char *at, size_t bytes, void *dst)
{
    if (source->gguf && gguf_read(source->gguf, at, bytes, dst)) return;
    if (source->safetensors && safetensors_read(source->safetensors, at, bytes, dst)) return;
    memcpy(dst, at, bytes);
}

void source_read_rows(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                      const tensor *view, int64_t begin, int64_t rows, void *dst)
{
    char name[160];
    bool is_row = view->rank == 1 && !bias; /* a norm is one row, a bias a column */
    int64_t columns = view->rank == 2 || is_row ? view->shape[view->rank - 1] : 1;
    size_t bytes = dtype_row_bytes(view->type, columns);
    source_name(source, slot, layer, bias, name, sizeof name);
    if (view->data) {
        read_stored(source, (const char *)view->data + (size_t)begin * bytes, (size_t)rows * bytes,
                    dst);
    } else if (source_experts(source, slot) != SOURCE_NO_EXPERTS) {
        source_read_experts(source, slot, layer, bias, view, begin, rows, dst);
    } else if (source->safetensors && !bias && fp8_is_stored(source->safetensors, name)) {
        fp8_matrix matrix;
        if (fp8_find(source->safetensors, source->config, name, &matrix, NULL) == QP_OK)
            decode_rows(source, slot, &matrix, begin, rows, dst);
    } else if (source->safetensors && !bias &&
               int_is_stored(source->safetensors, source->config, name)) {
        int_matrix matrix;
        int_task task = {source, slot, &matrix, view};
        if (int_find(source->safetensors, source->config, name, &matrix, NULL) == QP_OK)
            read_int_rows(&task, begin, rows, dst);
    } else if (source->safetensors) {
        tensor fused = {0};
        safetensors_get_tensor(source->safetensors, name, &fused, NULL);
        if (adds_one(source, slot))
            read_norm(&fused, dst);
        else
            gather_fused(source, slot, &fused, begin, rows, dst);
    } else {
        synthetic_fill(&source->synthetic, synthetic_tensor_id(name), view->type,
                       distribution_of(source, slot, bias), dst, begin, rows, columns);
    }
}

bool source_is_mapped(const weight_source *source, weight_slot slot, int64_t layer,
                      const void *data)
{
    char name[160];
    const stored_tensor *stored = NULL;
    source_name(source, slot, layer, false, name, sizeof name);
    if (source->gguf) stored = gguf_find_tensor(source->gguf, name);
    if (source->safetensors) stored = safetensors_find_tensor(source->safetensors, name);
    const char *begin = stored ? stored->data : NULL, *at = data;
    return begin && at && at >= begin && at < begin + stored->bytes;
}

void source_discard(const weight_source *source, const void *data)
{
    for (const owned_buffer *owned = source->owned; data && owned; owned = owned->next) {
        if (owned->memory.data == data) buffer_discard(&owned->memory);
    }
}

void source_close(weight_source *source)
{
    gguf_close(source->gguf);
    safetensors_close(source->safetensors);
    for (owned_buffer *owned = source->owned; owned; owned = owned->next)
        buffer_free(&owned->memory);
}
