/* Where weights come from: see source.h. */
#include "model/source.h"

#include <stdio.h>
#include <string.h>

static const char *stored_name(const weight_source *source, weight_slot slot)
{
    const weight_info *info = weight_get_info(slot);
    if (!source->safetensors) return info->name;
    return source->config->family == FAMILY_INTERNLM2 ? info->internlm2 : info->llama;
}

void source_name(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                 char *name, size_t size)
{
    const char *stem = stored_name(source, slot);
    const char *suffix = bias ? "bias" : "weight";
    if (!stem) stem = "attention.wqkv"; /* q, k and v of InternLM2 */
    if (!weight_get_info(slot)->per_layer)
        snprintf(name, size, "%s.%s", stem, suffix);
    else if (source->safetensors)
        snprintf(name, size, "model.layers.%lld.%s.%s", (long long)layer, stem, suffix);
    else
        snprintf(name, size, "blk.%lld.%s.%s", (long long)layer, stem, suffix);
}

dtype source_synthetic_type(const weight_source *source, weight_slot slot, int64_t layer)
{
    const synthetic_spec *spec = &source->synthetic;
    if (weight_get_info(slot)->role == SYNTHETIC_NORM) return DTYPE_F32;
    if (slot == WEIGHT_TOKEN_EMBD || slot == WEIGHT_OUTPUT) return spec->other;
    bool better = slot == WEIGHT_ATTN_V || slot == WEIGHT_FFN_DOWN;
    return better && layer % 2 == 0 && dtype_is_quantized(spec->other) ? spec->other : spec->type;
}

synthetic_stream source_synthetic_stream(const weight_source *source, weight_slot slot,
                                         int64_t layer)
{
    const synthetic_spec *spec = &source->synthetic;
    synthetic_role role = weight_get_info(slot)->role;
    char name[160];
    int64_t rows, columns;
    source_name(source, slot, layer, false, name, sizeof name);
    weight_shape(source->config, slot, &rows, &columns);
    return synthetic_stream_of(spec, synthetic_tensor_id(name),
                               source_synthetic_type(source, slot, layer),
                               synthetic_distribution_of(spec->config, role, columns));
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

static qp_status make_synthetic(weight_source *source, weight_slot slot, int64_t layer,
                                const char *name, tensor *out, qp_error *error)
{
    const synthetic_config *config = source->synthetic.config;
    synthetic_role role = weight_get_info(slot)->role;
    int64_t rows, columns;
    weight_shape(source->config, slot, &rows, &columns);
    dtype type = source_synthetic_type(source, slot, layer);
    tensor view = role == SYNTHETIC_NORM ? tensor_1d(NULL, type, columns)
                                         : tensor_2d(NULL, type, rows, columns);
    if (!source->options->sizes_only) {
        TRY(own_memory(source, tensor_bytes(&view), name, &view.data, error));
        fill_task task = {source, &view, synthetic_tensor_id(name),
                          synthetic_distribution_of(config, role, columns)};
        thread_pool_run(source->options->pool, fill_share, &task);
        if (source->options->progress)
            progress_advance(source->options->progress, tensor_bytes(&view));
    }
    *out = view;
    return QP_OK;
}

/* InternLM2 keeps q, k and v in one matrix whose rows are, for each KV head, its query heads, its
 * key and its value: where row `row` of a slot lies in it. */
static int64_t fused_row(const model_config *c, weight_slot slot, int64_t row)
{
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

/* The slot's rows in memory of their own, or a view without data where only sizes are asked for. */
static qp_status split_wqkv(weight_source *source, weight_slot slot, const char *name,
                            const tensor *fused, tensor *out, qp_error *error)
{
    const model_config *c = source->config;
    int64_t total = config_qkv_hidden_units(c);
    if (fused->shape[0] != total || fused->rank > 2) {
        char found[128];
        return error_set(error, QP_FORMAT, "%s: tensor \"%s\" must have %lld rows, found %s",
                         source->path, name, (long long)total,
                         tensor_describe(fused, found, sizeof found));
    }
    tensor view = *fused;
    view.data = NULL;
    view.shape[0] = slot == WEIGHT_ATTN_Q ? config_q_hidden_units(c) : config_kv_hidden_units(c);
    if (!source->options->sizes_only) {
        TRY(own_memory(source, tensor_bytes(&view), name, &view.data, error));
        gather_fused(source, slot, fused, 0, view.shape[0], view.data);
    }
    *out = view;
    return QP_OK;
}

qp_status source_get(weight_source *source, weight_slot slot, int64_t layer, bool bias, tensor *out,
                     qp_error *error)
{
    char name[160];
    source_name(source, slot, layer, bias, name, sizeof name);
    if (source->gguf) return gguf_get_tensor(source->gguf, name, out, error);
    if (!source->safetensors)
        return bias ? QP_OK : make_synthetic(source, slot, layer, name, out, error);
    tensor view = {0};
    TRY(safetensors_get_tensor(source->safetensors, name, &view, error));
    if (view.rank == 0 || stored_name(source, slot)) {
        *out = view;
        return QP_OK;
    }
    TRY(split_wqkv(source, slot, name, &view, out, error));
    if (out->data && !bias && source_is_mapped(source, slot, layer, view.data))
        buffer_release_pages(view.data, tensor_bytes(&view));
    return QP_OK;
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
        memcpy(dst, (const char *)view->data + (size_t)begin * bytes, (size_t)rows * bytes);
    } else if (source->safetensors) {
        tensor fused = {0};
        safetensors_get_tensor(source->safetensors, name, &fused, NULL);
        gather_fused(source, slot, &fused, begin, rows, dst);
    } else {
        synthetic_distribution distribution = synthetic_distribution_of(
            source->synthetic.config, weight_get_info(slot)->role, columns);
        synthetic_fill(&source->synthetic, synthetic_tensor_id(name), view->type, distribution, dst,
                       begin, rows, columns);
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
    return stored && data && stored->data == data;
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
