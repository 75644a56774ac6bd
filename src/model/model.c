/* A model: see model.h. */
#include "model/model.h"

#include "base/files.h"
#include "base/names.h"
#include "file/mapping.h"
#include "model/adapter.h"
#include "model/config_read.h"
#include "model/source.h"
#include "tensor/codec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_JSON_LIMIT = 1 << 20 };

struct model {
    model_config config;
    model_options options;
    weight_source source;
    arena arena;
    char *path;
    model_weight whole[WEIGHT_COUNT];
    model_weight (*layers)[WEIGHT_COUNT]; /* [n_layers] */
    uint64_t weight_bytes;
    model_adapter *adapters; /* [options.adapters.n] */
};

static const weight_info infos[WEIGHT_COUNT] = {
#define PER_MODEL  false, false
#define PER_LAYER  true, false
#define PER_EXPERT true, true
#define WEIGHT(SLOT, per, role, rows, columns, gguf)                                               \
    {gguf, PER_##per, SYNTHETIC_##role == SYNTHETIC_NORM},
#include "model/weights.def"
#undef WEIGHT
};

const weight_info *weight_get_info(weight_slot slot)
{
    return &infos[slot];
}

void weight_shape(const model_config *c, weight_slot slot, int64_t *rows, int64_t *columns)
{
    switch (slot) {
#define WEIGHT(SLOT, per, role, row_count, column_count, gguf)                                     \
    case WEIGHT_##SLOT:                                                                            \
        *rows = row_count, *columns = column_count;                                                \
        break;
#include "model/weights.def"
#undef WEIGHT
    default:
        *rows = *columns = 0;
    }
}

static qp_status check_shape(const model *m, weight_slot slot, int64_t layer, bool bias,
                             const tensor *found, qp_error *error)
{
    int64_t rows, columns;
    weight_shape(&m->config, slot, &rows, &columns);
    bool vector = bias || infos[slot].is_norm;
    tensor expected = {.type = found->type, .rank = vector ? 1 : 2, .shape = {rows, columns}};
    if (vector) expected.shape[0] = bias ? rows : columns;
    if (infos[slot].per_expert) expected = tensor_split(expected, 0, m->config.n_experts);
    if (found->rank == expected.rank &&
        memcmp(found->shape, expected.shape, (size_t)found->rank * sizeof *found->shape) == 0)
        return QP_OK;
    char name[160], want[128], have[128];
    source_name(&m->source, slot, layer, bias, name, sizeof name);
    tensor_describe(&expected, want, sizeof want);
    tensor_describe(found, have, sizeof have);
    return error_set(error, QP_FORMAT,
                     "%s: tensor \"%s\" must be %s by the model's sizes, found %s", m->path, name,
                     want, have);
}

/* The experts' matrices, or biases, one after the other. */
static void join_experts(weight_slot slot, tensor *view)
{
    if (!infos[slot].per_expert || view->rank < 2) return;
    const int64_t rows = view->shape[0] * view->shape[1];
    *view = view->rank == 3 ? tensor_2d(view->data, view->type, rows, view->shape[2])
                            : tensor_1d(view->data, view->type, rows);
}

/* A router with NaN would choose experts by chance, a sink with NaN hide every position. */
static qp_status check_finite(const model *m, weight_slot slot, int64_t layer, bool bias,
                              const tensor *view, qp_error *error)
{
    enum { PIECE = 256 };
    const int64_t all = tensor_elements(view), piece = view->rank == 2 ? view->shape[1] : all;
    float values[PIECE];
    if (!view->data || piece % dtype_block_elements(view->type)) return QP_OK;
    for (int64_t i = 0, n; i < all; i += n) {
        n = all - i < PIECE ? all - i : PIECE;
        dtype_decode(view->type, (const char *)view->data + dtype_row_bytes(view->type, i), values,
                     n);
        for (int64_t k = 0; k < n; k++) {
            char name[160];
            if (isfinite(values[k])) continue;
            source_name(&m->source, slot, layer, bias, name, sizeof name);
            return error_set(error, QP_FORMAT,
                             "%s: tensor \"%s\" has the value %g in row %lld; it must be finite",
                             m->path, name, (double)values[k], (long long)((i + k) / piece));
        }
    }
    return QP_OK;
}

static qp_status report_missing(const model *m, weight_slot slot, int64_t layer, bool bias,
                                qp_error *error)
{
    char name[160];
    source_name(&m->source, slot, layer, bias, name, sizeof name);
    return error_set(error, QP_FORMAT, "%s: tensor \"%s\" is missing%s", m->path, name,
                     bias ? ", but the model has biases by its config" : "");
}

static qp_status bind_bias(model *m, weight_slot slot, int64_t layer, tensor *bias, qp_error *error)
{
    const uint32_t may = m->config.biases | m->config.biases_if_any;
    if (!(may >> slot & 1)) return QP_OK;
    TRY(source_get(&m->source, slot, layer, true, bias, error));
    if (bias->rank == 0 && m->config.biases >> slot & 1)
        return report_missing(m, slot, layer, true, error);
    if (bias->rank == 0) return QP_OK;
    m->weight_bytes += tensor_bytes(bias);
    TRY(check_shape(m, slot, layer, true, bias, error));
    join_experts(slot, bias);
    return slot == WEIGHT_ROUTER ? check_finite(m, slot, layer, true, bias, error) : QP_OK;
}

/* A stored output projection of a tied model must be the embedding once more: programs differ in
 * which of two different ones they take. */
static qp_status check_tied(model *m, const tensor *embedding, qp_error *error)
{
    tensor stored = {0};
    if (!m->source.safetensors) return QP_OK;
    TRY(source_get(&m->source, WEIGHT_OUTPUT, 0, false, &stored, error));
    if (stored.rank == 0) return QP_OK;
    TRY(check_shape(m, WEIGHT_OUTPUT, 0, false, &stored, error));
    if (stored.type == embedding->type && stored.data && embedding->data &&
        memcmp(stored.data, embedding->data, tensor_bytes(embedding)) == 0)
        return QP_OK;
    char name[160], table[160];
    source_name(&m->source, WEIGHT_OUTPUT, 0, false, name, sizeof name);
    source_name(&m->source, WEIGHT_TOKEN_EMBD, 0, false, table, sizeof table);
    return error_set(error, QP_UNSUPPORTED,
                     "%s: \"tie_word_embeddings\" is true, but tensor \"%s\" differs from \"%s\"; "
                     "set it to false, or remove the tensor, as the model is meant",
                     m->path, name, table);
}

static model_weight *weight_of(void *context, weight_slot slot, int64_t layer)
{
    model *m = context;
    return infos[slot].per_layer ? &m->layers[layer][slot] : &m->whole[slot];
}

static qp_status bind_weight(model *m, weight_slot slot, int64_t layer, qp_error *error)
{
    model_weight *weight = weight_of(m, slot, layer);
    if (slot == WEIGHT_OUTPUT && m->config.tied) {
        *weight = m->whole[WEIGHT_TOKEN_EMBD];
        return check_tied(m, &weight->weight, error);
    }
    TRY(source_get(&m->source, slot, layer, false, &weight->weight, error));
    if (weight->weight.rank == 0) return report_missing(m, slot, layer, false, error);
    TRY(check_shape(m, slot, layer, false, &weight->weight, error));
    join_experts(slot, &weight->weight);
    if (slot == WEIGHT_ROUTER || slot == WEIGHT_ATTN_SINKS)
        TRY(check_finite(m, slot, layer, false, &weight->weight, error));
    m->weight_bytes += tensor_bytes(&weight->weight);
    return bind_bias(m, slot, layer, &weight->bias, error);
}

static qp_status bind_weights(model *m, qp_error *error)
{
    m->layers = arena_alloc(&m->arena, (size_t)m->config.n_layers, sizeof *m->layers);
    if (!m->layers) return error_no_memory(error, "the table of layers", 0);
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        int64_t layers = infos[slot].per_layer ? m->config.n_layers : 1;
        if (!family_has(m->config.family, (weight_slot)slot)) continue;
        for (int64_t layer = 0; layer < layers; layer++)
            TRY(bind_weight(m, (weight_slot)slot, layer, error));
    }
    return QP_OK;
}

/* A tensor of divisors, one for each frequency; NULL: there is none. */
static qp_status get_rope_divisors(const model *m, const char *name, const float **out,
                                   qp_error *error)
{
    tensor view = {0};
    TRY(gguf_get_tensor(m->source.gguf, name, &view, error));
    *out = view.data;
    if (view.rank == 0) return QP_OK;
    const char *problem = NULL;
    if (view.type != DTYPE_F32 || view.rank != 1 || view.shape[0] != m->config.rope.dim / 2)
        problem = "must be F32 with half the rotary dimension";
    for (int64_t i = 0; !problem && i < view.shape[0]; i++) {
        if (!((*out)[i] >= 1e-6f && (*out)[i] <= 1e9f)) problem = "must hold positive divisors";
    }
    char found[128];
    if (!problem) return QP_OK;
    return error_set(error, QP_FORMAT, "%s: tensor \"%s\" %s (%lld), found %s", m->path, name,
                     problem, (long long)m->config.rope.dim / 2,
                     tensor_describe(&view, found, sizeof found));
}

/* GGUF keeps llama3's RoPE scaling as a divisor for each frequency, and longrope's as two. */
static qp_status bind_rope_divisors(model *m, qp_error *error)
{
    rope_config *rope = &m->config.rope;
    if (rope->scaling != ROPE_LONGROPE)
        return get_rope_divisors(m, "rope_freqs.weight", &rope->divisors, error);
    TRY(get_rope_divisors(m, "rope_factors_long.weight", &rope->long_divisors, error));
    TRY(get_rope_divisors(m, "rope_factors_short.weight", &rope->divisors, error));
    if (rope->divisors) return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%s: tensor \"rope_factors_short.weight\" is missing beside that of long "
                     "contexts",
                     m->path);
}

static qp_status open_gguf(model *m, qp_error *error)
{
    TRY(gguf_open(m->path, &m->source.gguf, error));
    TRY(config_from_gguf(m->source.gguf, &m->arena, &m->config, error));
    return bind_rope_divisors(m, error);
}

/* Whether a directory holds weights; otherwise it may still hold a config or a tokenizer. */
static bool holds_safetensors(const char *directory)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[4096];
        int length = snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        if (length < (int)sizeof path && file_exists(path)) return true;
    }
    return false;
}

/* The type that config.json says its weights have; BF16 where it says none that there is. */
static qp_status read_stored_type(const cJSON *json, const char *where, dtype *out, qp_error *error)
{
    static const struct {
        const char *name;
        dtype type;
    } types[] = {{"float32", DTYPE_F32}, {"float16", DTYPE_F16}, {"bfloat16", DTYPE_BF16}};
    const char *name = "";
    *out = DTYPE_BF16;
    TRY(json_get_string(json, "torch_dtype", where, &name, error));
    TRY(json_get_string(json, "dtype", where, &name, error));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, name) == 0) *out = types[i].type;
    }
    return QP_OK;
}

/* Sizes and the type of the weights by a file like Hugging Face's config.json. */
static qp_status read_config(model *m, const char *path, qp_error *error)
{
    char *text;
    size_t length;
    TRY(file_read_text(path, CONFIG_JSON_LIMIT, &text, &length, error));
    cJSON *json;
    qp_status status = json_parse(text, length, path, &json, error);
    free(text);
    TRY(status);
    status = config_from_json(json, path, &m->arena, &m->config, error);
    if (status == QP_OK) status = read_stored_type(json, path, &m->source.synthetic.type, error);
    cJSON_Delete(json);
    TRY(status);
    if (!*m->config.name) m->config.name = files_last(m->path);
    return QP_OK;
}

/* A config.json alone, by whatever name. */
static qp_status open_config(model *m, qp_error *error)
{
    TRY(read_config(m, m->path, error));
    m->config.biases_if_any = 0; /* there are none to find */
    return QP_OK;
}

/* sentence-transformers' file beside a model that was trained for embeddings. */
static qp_status read_pooling(model *m, qp_error *error)
{
    char path[4096], *text;
    size_t length;
    const bool fits =
        snprintf(path, sizeof path, "%s/1_Pooling/config.json", m->path) < (int)sizeof path;
    if (!fits || !file_exists(path)) return QP_OK;
    TRY(file_read_text(path, CONFIG_JSON_LIMIT, &text, &length, error));
    cJSON *json;
    qp_status status = json_parse(text, length, path, &json, error);
    free(text);
    TRY(status);
    if (cJSON_IsTrue(json_get(json, "pooling_mode_lasttoken")))
        m->config.pooling = POOLING_LAST;
    else if (cJSON_IsTrue(json_get(json, "pooling_mode_mean_tokens")))
        m->config.pooling = POOLING_MEAN;
    else if (cJSON_IsTrue(json_get(json, "pooling_mode_cls_token")))
        m->config.pooling = POOLING_FIRST;
    cJSON_Delete(json);
    return QP_OK;
}

static qp_status open_directory(model *m, qp_error *error)
{
    char path[4096];
    TRY(files_join(m->path, "config.json", path, sizeof path, error));
    if (!file_exists(path))
        return error_set(error, QP_IO,
                         "%s: a folder without config.json is no model; name a .gguf file, or a "
                         "folder as Hugging Face has it",
                         m->path);
    TRY(read_config(m, path, error));
    TRY(read_pooling(m, error));
    if (m->options.config_is_enough && !holds_safetensors(m->path)) {
        m->config.biases_if_any = 0; /* there are none to find */
        return QP_OK;
    }
    return safetensors_open(m->path, &m->source.safetensors, error);
}

/* Synthetic weights of the sizes that a config.json, or one in a folder, has. */
static qp_status open_synthetic_config(model *m, const char *path, qp_error *error)
{
    char file[4200];
    model_config *c = &m->config;
    synthetic_config *own = arena_alloc(&m->arena, 1, sizeof *own);
    if (!own) return error_no_memory(error, "the sizes of the weights", sizeof *own);
    snprintf(file, sizeof file, file_is_directory(path) ? "%s/config.json" : "%s", path);
    TRY(read_config(m, file, error));
    c->biases_if_any = 0; /* there are none to find */
    *own = (synthetic_config){.name = c->name,
                              .family = c->family->name,
                              .hidden_size = c->hidden_size,
                              .n_layers = c->n_layers,
                              .n_heads = c->n_heads,
                              .head_dim = c->head_dim,
                              .intermediate_size = c->intermediate_size,
                              .tied = c->tied};
    const dtype stored = m->source.synthetic.type;
    return synthetic_parse(m->path, own, stored, &m->source.synthetic, error);
}

static qp_status open_source(model *m, qp_error *error)
{
    char config[4096];
    if (synthetic_config_path(m->path, config, sizeof config))
        return open_synthetic_config(m, config, error);
    if (synthetic_is_name(m->path)) {
        TRY(synthetic_parse(m->path, NULL, DTYPE_BF16, &m->source.synthetic, error));
        return config_from_synthetic(&m->source.synthetic, &m->config, error);
    }
    if (file_is_directory(m->path)) return open_directory(m, error);
    if (m->options.config_is_enough && name_ends_with(m->path, ".json"))
        return open_config(m, error);
    if (name_ends_with(m->path, ".json"))
        return error_set(
            error, QP_INVALID,
            "%s: a JSON file has no weights; pass the directory that holds them beside "
            "config.json, or synthetic:%s for weights that are made up",
            m->path, m->path);
    if (name_ends_with(m->path, ".safetensors"))
        return error_set(error, QP_INVALID,
                         "%s: pass the directory that holds it: config.json is needed beside it",
                         m->path);
    return open_gguf(m, error);
}

static qp_status open_adapters(model *m, qp_error *error)
{
    const int64_t n = m->options.adapters.n;
    if (n == 0) return QP_OK;
    m->adapters = arena_alloc(&m->arena, (size_t)n, sizeof *m->adapters);
    if (!m->adapters) return error_no_memory(error, "the table of adapters", (size_t)n);
    return adapter_open_all(&m->source, &m->config, m->adapters, weight_of, m, error);
}

qp_status model_open(const char *path, const model_options *options, model **out, qp_error *error)
{
    model *m = calloc(1, sizeof *m);
    if (!m) return error_no_memory(error, "the model", sizeof *m);
    m->options = options ? *options : (model_options){0};
    if (m->options.adapters.merge && m->options.adapters.n) m->options.sizes_only = false;
    m->path = arena_strdup(&m->arena, path);
    qp_status status = m->path ? QP_OK : error_no_memory(error, "the model's path", strlen(path));
    m->source = (weight_source){
        .path = m->path, .options = &m->options, .config = &m->config, .arena = &m->arena};
    if (status == QP_OK) status = open_source(m, error);
    if (status == QP_OK) status = bind_weights(m, error);
    if (status == QP_OK) status = source_check_unread(&m->source, error);
    if (status == QP_OK) status = open_adapters(m, error);
    m->config.fp8_by_rows = m->source.n_fp8_by_blocks == 0;
    if (status != QP_OK) {
        model_close(m);
        return status;
    }
    *out = m;
    return QP_OK;
}

void model_close(model *m)
{
    if (!m) return;
    source_close(&m->source);
    arena_free(&m->arena);
    free(m);
}

const model_config *model_get_config(const model *m)
{
    return &m->config;
}

bool model_is_config(const model *m)
{
    return !m->source.gguf && !m->source.safetensors && !m->source.synthetic.config;
}

const model_weight *model_get_weight(const model *m, weight_slot slot, int64_t layer)
{
    return infos[slot].per_layer ? &m->layers[layer][slot] : &m->whole[slot];
}

const model_adapter *model_get_adapter(const model *m, int64_t adapter)
{
    return &m->adapters[adapter];
}

bool model_has_weights(const model *m)
{
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        const model_weight *weight = model_get_weight(m, (weight_slot)slot, 0);
        if (weight->weight.rank && !weight->weight.data) return false;
    }
    return true;
}

void model_read_rows(const model *m, weight_slot slot, int64_t layer, bool bias, int64_t begin,
                     int64_t rows, void *dst)
{
    const model_weight *weight = model_get_weight(m, slot, layer);
    source_read_rows(&m->source, slot, layer, bias, bias ? &weight->bias : &weight->weight, begin,
                     rows, dst);
}

const char *model_path(const model *m)
{
    return m->path;
}

gguf *model_gguf(const model *m)
{
    return m->source.gguf;
}

bool model_synthetic_stream(const model *m, weight_slot slot, int64_t layer, bool bias,
                            synthetic_stream *out)
{
    if (m->source.gguf || m->source.safetensors || model_is_config(m)) return false;
    if (m->options.adapters.merge) return false;
    *out = source_synthetic_stream(&m->source, slot, layer, bias);
    return true;
}

/* The weight's bytes where they lie in a mapped file; NULL where they do not. */
static const tensor *mapped_weight(const model *m, weight_slot slot, int64_t layer)
{
    if (slot == WEIGHT_OUTPUT && m->config.tied) slot = WEIGHT_TOKEN_EMBD;
    const tensor *view = &model_get_weight(m, slot, layer)->weight;
    return view->data && source_is_mapped(&m->source, slot, layer, view->data) ? view : NULL;
}

bool model_is_mapped(const model *m, weight_slot slot, int64_t layer)
{
    return mapped_weight(m, slot, layer) != NULL;
}

uint64_t model_stamp(const model *m)
{
    if (m->source.gguf) return gguf_stamp(m->source.gguf);
    return m->source.safetensors ? safetensors_stamp(m->source.safetensors) : 0;
}

void model_release_metadata(const model *m)
{
    if (m->source.gguf) gguf_release_pages(m->source.gguf);
}

void model_release_weight(const model *m, weight_slot slot, int64_t layer)
{
    const tensor *view = mapped_weight(m, slot, layer);
    if (view) buffer_release_pages(view->data, tensor_bytes(view));
}

void model_read_sparsely(const model *m, weight_slot slot, int64_t layer)
{
    const tensor *view = mapped_weight(m, slot, layer);
    if (view) buffer_read_sparsely(view->data, tensor_bytes(view));
}

void model_discard_weight(const model *m, weight_slot slot, int64_t layer)
{
    const tensor *view = &model_get_weight(m, slot, layer)->weight;
    if (m->options.discardable) source_discard(&m->source, view->data);
}

int64_t model_fp8_matrices(const model *m)
{
    return m->source.n_fp8;
}

int64_t model_fp8_kept(const model *m)
{
    return m->source.n_fp8_kept;
}

uint64_t model_weight_bytes(const model *m)
{
    return m->weight_bytes;
}

/* Of the experts that a token does not use. */
static uint64_t model_idle_bytes(const model *m)
{
    uint64_t bytes = 0;
    for (int slot = 0; slot < WEIGHT_COUNT; slot++)
        for (int64_t layer = 0; infos[slot].per_expert && layer < m->config.n_layers; layer++)
            bytes += tensor_bytes(&m->layers[layer][slot].weight);
    return m->config.n_experts ? bytes / (uint64_t)m->config.n_experts *
                                     (uint64_t)(m->config.n_experts - m->config.n_experts_used)
                               : 0;
}

uint64_t model_read_bytes(const model *m)
{
    const tensor *embedding = &m->whole[WEIGHT_TOKEN_EMBD].weight;
    const uint64_t used = m->weight_bytes - model_idle_bytes(m);
    if (m->config.tied) return used;
    uint64_t rows = (uint64_t)embedding->shape[0], whole = tensor_bytes(embedding);
    return used - whole + whole / rows;
}
