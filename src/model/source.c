/* Where weights come from: see source.h. */
#include "model/source.h"

#include "model/family/family.h"
#include "model/fp8.h"
#include "model/joined_experts.h"
#include "tensor/codec.h"

#include <stdio.h>
#include <string.h>

/* What the names of a layer's tensors begin with, before its number. */
static const char json_layer[] = "model.layers.", gguf_layer[] = "blk.";

/* The tensor that holds the weight's rows among others; NULL: it has one of its own. */
static const family_fused *fused_of(const weight_source *source, weight_slot slot)
{
    const family_fused *fused = family_fused_of(source->config->family, slot);
    if (!fused) return NULL;
    if (source->gguf) return fused->gguf ? fused : NULL;
    return source->safetensors ? fused : NULL;
}

/* Without what comes before and after it. */
static const char *stored_name(const weight_source *source, weight_slot slot)
{
    const family_fused *fused = fused_of(source, slot);
    if (fused) return source->gguf ? fused->gguf : fused->json;
    if (!source->safetensors) return family_gguf_name(source->config->family, slot);
    return source->config->family->tensors[slot];
}

void source_name(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                 char *name, size_t size)
{
    const char *stem = stored_name(source, slot);
    const char *suffix = bias ? "bias" : "weight";
    const size_t length = strlen(stem);
    if (source->safetensors && stem[length - 1] == '.')
        snprintf(name, size, "%s%lld.%.*s%s", json_layer, (long long)layer, (int)length - 1, stem,
                 bias ? "_bias" : "");
    else if (!weight_get_info(slot)->per_layer)
        snprintf(name, size, "%s.%s", stem, suffix);
    else if (source->safetensors)
        snprintf(name, size, "%s%lld.%s.%s", json_layer, (long long)layer, stem, suffix);
    else
        snprintf(name, size, "%s%lld.%s.%s", gguf_layer, (long long)layer, stem, suffix);
}

/* Whether safetensors have a tensor for each expert: '*' in the name stands for its number. */
static bool is_split_by_expert(const weight_source *source, weight_slot slot)
{
    const char *stem = stored_name(source, slot);
    return source->safetensors && stem && strchr(stem, '*');
}

static void expert_name(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                        int64_t expert, char *name, size_t size)
{
    char all[160];
    source_name(source, slot, layer, bias, all, sizeof all);
    const char *star = strchr(all, '*');
    snprintf(name, size, "%.*s%lld%s", (int)(star - all), all, (long long)expert, star + 1);
}

/* Whether safetensors have one tensor for all experts of a layer: joined_experts.h. */
static bool is_joined(const weight_source *source, weight_slot slot)
{
    const char *stem = stored_name(source, slot);
    return source->safetensors && weight_get_info(slot)->per_expert && stem &&
           stem[strlen(stem) - 1] == '.';
}

/* Norms, biases and routers are F32. With a quantised type, v and the down projection of every
 * other layer are of the spec's other type, as in files called Q4_K_M. */
static dtype asked_type(const weight_source *source, weight_slot slot, int64_t layer, bool bias)
{
    const synthetic_spec *spec = &source->synthetic;
    if (!spec->config) return spec->type; /* as files that are not here would have it */
    if (bias || weight_get_info(slot)->is_norm || slot == WEIGHT_ROUTER) return DTYPE_F32;
    if (slot == WEIGHT_TOKEN_EMBD || slot == WEIGHT_OUTPUT) return spec->other;
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

static qp_status own_memory(weight_source *source, size_t bytes, const char *name, void **data,
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
        TRY(own_memory(source, tensor_bytes(&view), name, &view.data, error));
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

/* Where row `row` of a slot lies in the fused tensor. */
static int64_t fused_row(const model_config *c, weight_slot slot, int64_t row)
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
                   (size_t)fused_row(source->config, slot, begin + i) * bytes,
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
        view.data = (char *)fused->data + (size_t)fused_row(source->config, slot, 0) * row;
    } else if (!source->options->sizes_only || fused->rank == 1) { /* biases are always made */
        TRY(own_memory(source, tensor_bytes(&view), name, &view.data, error));
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
        TRY(own_memory(source, tensor_bytes(&view), name, &view.data, error));
        read_norm(stored, view.data);
    }
    *out = view;
    return QP_OK;
}

/* --- Experts that have a tensor each. --- */

/* The tensor of an expert, which must be like that of the first. */
static qp_status find_expert(const weight_source *source, weight_slot slot, int64_t layer,
                             bool bias, int64_t expert, const tensor *first, tensor *out,
                             qp_error *error)
{
    char name[160], want[128], found[128];
    *out = (tensor){0};
    expert_name(source, slot, layer, bias, expert, name, sizeof name);
    if (!bias && fp8_is_stored(source->safetensors, name))
        return error_set(error, QP_UNSUPPORTED,
                         "%s: tensor \"%s\" is in FP8, which quipu does not read of experts; use a "
                         "copy in BF16, or a GGUF file",
                         source->path, name);
    TRY(safetensors_get_tensor(source->safetensors, name, out, error));
    if (out->rank == 0)
        return error_set(error, QP_FORMAT,
                         "%s: tensor \"%s\" is missing; the model has experts 0 to %lld by its "
                         "config",
                         source->path, name, (long long)source->config->n_experts - 1);
    if (!first || (out->type == first->type && out->rank == first->rank &&
                   memcmp(out->shape, first->shape, (size_t)out->rank * sizeof *out->shape) == 0))
        return QP_OK;
    return error_set(error, QP_FORMAT, "%s: tensor \"%s\" must be %s as that of expert 0, found %s",
                     source->path, name, tensor_describe(first, want, sizeof want),
                     tensor_describe(out, found, sizeof found));
}

/* The experts' tensors in memory of their own, one after the other; without data where only sizes
 * are asked for. */
static qp_status stack_experts(weight_source *source, weight_slot slot, int64_t layer, bool bias,
                               const char *name, tensor *out, qp_error *error)
{
    tensor first, one;
    const int64_t n = source->config->n_experts;
    TRY(find_expert(source, slot, layer, bias, 0, NULL, &first, error));
    const size_t bytes = tensor_bytes(&first);
    for (int64_t e = 1; e < n; e++)
        TRY(find_expert(source, slot, layer, bias, e, &first, &one, error));
    if (first.rank != (bias ? 1 : 2))
        return error_set(error, QP_FORMAT, "%s: tensors \"%s\" must have %d dimensions, found %d",
                         source->path, name, bias ? 1 : 2, first.rank);
    tensor view = bias ? tensor_2d(NULL, first.type, n, first.shape[0])
                       : tensor_3d(NULL, first.type, n, first.shape[0], first.shape[1]);
    if (bias || !source->options->sizes_only)
        TRY(own_memory(source, (size_t)n * bytes, name, &view.data, error));
    for (int64_t e = 0; view.data && e < n; e++) {
        TRY(find_expert(source, slot, layer, bias, e, &first, &one, error));
        memcpy((char *)view.data + (size_t)e * bytes, one.data, bytes);
        if (!bias) buffer_release_pages(one.data, bytes);
    }
    *out = view;
    return QP_OK;
}

/* Rows [begin, begin + rows) of all experts' rows. */
static void read_experts(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                         const tensor *view, int64_t begin, int64_t rows, size_t row_bytes,
                         char *dst)
{
    const int64_t each = view->shape[0] / source->config->n_experts;
    for (int64_t row = begin, n; row < begin + rows; row += n, dst += (size_t)n * row_bytes) {
        tensor one = {0};
        n = each - row % each < begin + rows - row ? each - row % each : begin + rows - row;
        if (find_expert(source, slot, layer, bias, row / each, NULL, &one, NULL) != QP_OK) return;
        const char *at = (const char *)one.data + (size_t)(row % each) * row_bytes;
        if (!safetensors_read(source->safetensors, at, (size_t)n * row_bytes, dst))
            memcpy(dst, at, (size_t)n * row_bytes);
    }
}

/* --- Experts that have one tensor. --- */

static qp_status find_joined(const weight_source *source, weight_slot slot, int64_t layer,
                             joined_experts *out, qp_error *error)
{
    char name[160];
    const int64_t step = slot == WEIGHT_DOWN_EXPERTS ? 1 : 2;
    source_name(source, slot, layer, false, name, sizeof name);
    return joined_experts_find(source->safetensors, name, source->config->n_experts, step,
                               slot == WEIGHT_UP_EXPERTS, out, error);
}

typedef struct join_task {
    const joined_experts *experts;
    const tensor *view;
} join_task;

static void join_share(void *context, int worker, int n_workers)
{
    const join_task *task = context;
    int64_t begin, end;
    thread_share(task->view->shape[0], worker, n_workers, &begin, &end);
    if (begin < end)
        joined_experts_read(task->experts, begin, end - begin, tensor_row(task->view, begin));
}

static qp_status get_joined(weight_source *source, weight_slot slot, int64_t layer,
                            const char *name, tensor *out, qp_error *error)
{
    joined_experts x;
    TRY(find_joined(source, slot, layer, &x, error));
    if (x.type == DTYPE_COUNT) return QP_OK;
    tensor view = tensor_2d(NULL, x.type, x.n_experts * (x.rows / x.step), x.columns);
    if (!source->options->sizes_only) {
        TRY(own_memory(source, tensor_bytes(&view), name, &view.data, error));
        join_task task = {&x, &view};
        thread_pool_run(source->options->pool, join_share, &task);
    }
    *out = tensor_split(view, 0, x.n_experts);
    return QP_OK;
}

/* Biases of gate and up lie in turn, as their rows do. */
static qp_status get_joined_bias(weight_source *source, weight_slot slot, const char *name,
                                 tensor *out, qp_error *error)
{
    tensor all = {0};
    TRY(safetensors_get_tensor(source->safetensors, name, &all, error));
    if (all.rank != 2 || slot == WEIGHT_DOWN_EXPERTS || all.shape[1] % 2) {
        *out = all;
        return QP_OK;
    }
    tensor view = tensor_2d(NULL, all.type, all.shape[0], all.shape[1] / 2);
    const size_t element = dtype_block_bytes(all.type);
    TRY(own_memory(source, tensor_bytes(&view), name, &view.data, error));
    const char *from = (const char *)all.data + (slot == WEIGHT_UP_EXPERTS ? element : 0);
    for (int64_t i = 0; i < tensor_elements(&view); i++)
        memcpy((char *)view.data + (size_t)i * element, from + 2 * (size_t)i * element, element);
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
        convert_rows(matrix, type, fused_row(source->config, slot, begin + i), 1,
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
        TRY(own_memory(source, tensor_bytes(&view), name, &view.data, error));
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
    if (is_joined(source, slot))
        return bias ? get_joined_bias(source, slot, name, out, error)
                    : get_joined(source, slot, layer, name, out, error);
    if (is_split_by_expert(source, slot))
        return stack_experts(source, slot, layer, bias, name, out, error);
    if (!bias && fp8_is_stored(source->safetensors, name))
        return get_fp8(source, slot, layer, name, out, error);
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
    TRY(own_memory(source, tensor_bytes(&wide), name, &wide.data, error));
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
    } else if (is_joined(source, slot)) {
        joined_experts x;
        if (find_joined(source, slot, layer, &x, NULL) == QP_OK)
            joined_experts_read(&x, begin, rows, dst);
    } else if (is_split_by_expert(source, slot)) {
        read_experts(source, slot, layer, bias, view, begin, rows, bytes, dst);
    } else if (source->safetensors && !bias && fp8_is_stored(source->safetensors, name)) {
        fp8_matrix matrix;
        if (fp8_find(source->safetensors, source->config, name, &matrix, NULL) == QP_OK)
            decode_rows(source, slot, &matrix, begin, rows, dst);
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

/* --- Tensors of the file that are no weight. --- */

static bool cut_prefix(text_slice *name, const char *prefix)
{
    size_t length = strlen(prefix);
    if (name->length < length || memcmp(name->data, prefix, length) != 0) return false;
    name->data += length;
    name->length -= length;
    return true;
}

/* The number that a name begins with, which is cut off; -1: none. */
static int64_t cut_number(text_slice *name)
{
    const char *digits = name->data;
    int64_t number = 0;
    while (name->length && name->data - digits < 9 && *name->data >= '0' && *name->data <= '9') {
        number = 10 * number + (*name->data - '0');
        name->data++, name->length--;
    }
    return name->data == digits ? -1 : number;
}

/* The number of the layer that a tensor's name begins with, which is cut off; -1: none. */
static int64_t cut_layer(const weight_source *source, text_slice *name)
{
    text_slice rest = *name;
    if (!cut_prefix(&rest, source->safetensors ? json_layer : gguf_layer)) return -1;
    const int64_t layer = cut_number(&rest);
    if (layer < 0 || !cut_prefix(&rest, ".")) return -1;
    *name = rest;
    return layer;
}

/* Whether a stem has all of the name. */
static bool is_whole_name(const char *stem)
{
    return stem && stem[strlen(stem) - 1] == '.';
}

/* Cuts a stem off, in which '*' is the number of an expert. */
static bool cut_stem(const weight_source *source, text_slice *name, const char *stem)
{
    const char *star = strchr(stem, '*');
    char before[160];
    if (is_whole_name(stem)) {
        snprintf(before, sizeof before, "%.*s", (int)strlen(stem) - 1, stem);
        return cut_prefix(name, before);
    }
    if (!star) return cut_prefix(name, stem);
    snprintf(before, sizeof before, "%.*s", (int)(star - stem), stem);
    if (!cut_prefix(name, before)) return false;
    const int64_t expert = cut_number(name);
    return expert >= 0 && expert < source->config->n_experts && cut_prefix(name, star + 1);
}

/* Whether a name, its layer cut off, is that of the slot's weight, or of its bias. */
static bool is_slot(const weight_source *source, weight_slot slot, text_slice name)
{
    const model_config *c = source->config;
    const char *stem = stored_name(source, slot);
    if (!family_has(c->family, slot)) return false;
    if (!cut_stem(source, &name, stem)) return false;
    bool biased = (c->biases | c->biases_if_any) >> slot & 1;
    if (name.length == 0 || (biased && slice_is(name, "_bias"))) return is_whole_name(stem);
    if (slice_is(name, "_blocks") || slice_is(name, "_scales"))
        return is_whole_name(stem) && weight_get_info(slot)->per_expert;
    return slice_is(name, ".weight") || (biased && slice_is(name, ".bias"));
}

static bool is_rope_divisors(const weight_source *source, text_slice name)
{
    if (source->config->rope.scaling != ROPE_LONGROPE) return slice_is(name, "rope_freqs.weight");
    return slice_is(name, "rope_factors_short.weight") ||
           slice_is(name, "rope_factors_long.weight");
}

static bool is_known(const weight_source *source, text_slice name, int64_t layer)
{
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        if (weight_get_info((weight_slot)slot)->per_layer == (layer >= 0) &&
            is_slot(source, (weight_slot)slot, name))
            return true;
    }
    if (layer < 0 && source->gguf && is_rope_divisors(source, name)) return true;
    if (layer < 0) cut_prefix(&name, "model.");
    for (const char *const *unused = source->config->family->unused; *unused; unused++) {
        if (slice_is(name, *unused)) return true;
    }
    return false;
}

static qp_status check_known(const weight_source *source, const stored_tensor *stored,
                             qp_error *error)
{
    const model_config *c = source->config;
    char quoted[SLICE_QUOTE_SIZE];
    text_slice rest = stored->name;
    int64_t layer = cut_layer(source, &rest);
    if (layer >= c->n_layers)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: tensor \"%s\" belongs to layer %lld, but the model has the layers 0 "
                         "to %lld by its config",
                         source->path, slice_quote(stored->name, quoted), (long long)layer,
                         (long long)c->n_layers - 1);
    if (is_known(source, rest, layer)) return QP_OK;
    if (source->safetensors && fp8_is_companion(source->safetensors, stored->name.data))
        return QP_OK;
    return error_set(
        error, QP_UNSUPPORTED,
        "%s: tensor \"%s\" is not one that a %s model with this config has; without it "
        "the model would give other answers, so it is not left out",
        source->path, slice_quote(stored->name, quoted), c->family->name);
}

qp_status source_check_unread(const weight_source *source, qp_error *error)
{
    if (source->gguf) {
        for (size_t i = 0; i < gguf_tensor_count(source->gguf); i++)
            TRY(check_known(source, gguf_tensor_at(source->gguf, i), error));
    } else if (source->safetensors) {
        for (size_t i = 0; i < safetensors_tensor_count(source->safetensors); i++)
            TRY(check_known(source, safetensors_tensor_at(source->safetensors, i), error));
    }
    return QP_OK;
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
