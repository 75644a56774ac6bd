/* One LoRA adapter: see adapter_file.h. */
#include "model/adapter_file.h"

#include "file/mapping.h"
#include "base/files.h"
#include "base/names.h"
#include "model/adapter.h"
#include "model/family/family.h"
#include "model/source_part.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_LIMIT = 1 << 20, NAME = 224 };

#define PEFT_PREFIX "base_model.model."

/* ---- PEFT's adapter_config.json -------------------------------------------------------------- */

/* What a key must not be, because quipu does not compute it. */
static qp_status refuse_key(const adapter_file *f, const char *key, bool is_set, const char *what,
                            qp_error *error)
{
    if (!is_set) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "%s: \"%s\" in adapter_config.json: %s; merge the adapter into the model with "
                     "PEFT's merge_and_unload()",
                     f->path, key, what);
}

/* Whether the value of a key is there and is not false, "none", {} or []. */
static bool is_asked(const cJSON *json, const char *key)
{
    const cJSON *value = json_get(json, key);
    if (!value || cJSON_IsFalse(value)) return false;
    if (cJSON_IsString(value)) return strcmp(value->valuestring, "none") != 0;
    return (!cJSON_IsArray(value) && !cJSON_IsObject(value)) || value->child;
}

static qp_status check_config(const adapter_file *f, qp_error *error)
{
    static const struct {
        const char *key, *what;
    } refused[] = {
        {"use_dora", "DoRA scales whole weights, which quipu does not"},
        {"bias", "the adapter has biases of the model, which quipu does not change"},
        {"lora_bias", "quipu adds no biases of adapters"},
        {"fan_in_fan_out", "its matrices are transposed, which no model that quipu reads is"},
        {"modules_to_save", "whole modules take the place of the model's, which quipu does not do"},
        {"alora_invocation_tokens",
         "it begins at a text, and quipu applies adapters to all tokens"},
        {"trainable_token_indices", "it changes embeddings, which quipu does not"},
        {"layer_replication", "it repeats layers, which quipu does not"},
    };
    const char *type = "";
    TRY(json_get_string(f->json, "peft_type", f->path, &type, error));
    if (strcmp(type, "LORA") != 0)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: \"peft_type\" in adapter_config.json must be \"LORA\", found \"%s\"",
                         f->path, type);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        TRY(refuse_key(f, refused[i].key, is_asked(f->json, refused[i].key), refused[i].what,
                       error));
    return QP_OK;
}

static qp_status check_alpha(const adapter_file *f, const char *key, double alpha, qp_error *error)
{
    if (isfinite(alpha) && alpha != 0) return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%s: %s must be a finite number other than 0, since it scales what the "
                     "adapter adds, found %g",
                     f->path, key, alpha);
}

static qp_status read_config(adapter_file *f, qp_error *error)
{
    char path[4096], *text;
    size_t length;
    TRY(files_join(f->path, "adapter_config.json", path, sizeof path, error));
    if (!file_exists(path))
        return error_set(error, QP_IO,
                         "%s: a folder without adapter_config.json is no adapter; name a .gguf "
                         "file, or a folder as PEFT has it",
                         f->path);
    TRY(file_read_text(path, CONFIG_LIMIT, &text, &length, error));
    qp_status status = json_parse(text, length, path, &f->json, error);
    free(text);
    TRY(status);
    TRY(check_config(f, error));
    f->alpha = 8; /* PEFT's defaults */
    f->rank = 8;
    TRY(json_get_double(f->json, "lora_alpha", path, &f->alpha, error));
    TRY(json_get_i64(f->json, "r", path, &f->rank, error));
    TRY(json_get_bool(f->json, "use_rslora", path, &f->by_square, error));
    return check_alpha(f, "\"lora_alpha\" in adapter_config.json", f->alpha, error);
}

static qp_status open_directory(adapter_file *f, qp_error *error)
{
    char path[4096];
    TRY(read_config(f, error));
    TRY(files_join(f->path, "adapter_model.safetensors", path, sizeof path, error));
    if (!file_exists(path))
        return error_set(error, QP_IO,
                         "%s: adapter_model.safetensors is missing; save the adapter with "
                         "safe_serialization=True if it is in adapter_model.bin",
                         f->path);
    f->halves = !f->config->family->pairs;
    return safetensors_open(path, &f->source.safetensors, error);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static qp_status check_text(const adapter_file *f, const char *key, const char *expected,
                            const char *what, qp_error *error)
{
    text_slice found = {0};
    char name[96];
    TRY(gguf_get_string(f->source.gguf, key, &found, error));
    if (slice_is(found, expected)) return QP_OK;
    return error_set(error, QP_UNSUPPORTED, "%s: %s must be \"%s\", %s, found %s", f->path, key,
                     expected, what, found.data ? slice_quote(found, name) : "none");
}

static qp_status open_gguf(adapter_file *f, qp_error *error)
{
    TRY(gguf_open(f->path, &f->source.gguf, error));
    TRY(check_text(f, "general.type", "adapter", "since it is given as one", error));
    TRY(check_text(f, "adapter.type", "lora", "the only kind that quipu applies", error));
    TRY(check_text(f, "general.architecture", f->config->family->gguf, "as the model's", error));
    f->halves = !f->config->family->gguf_pairs;
    if (!gguf_find(f->source.gguf, "adapter.lora.alpha")) return QP_OK;
    TRY(gguf_get_double(f->source.gguf, "adapter.lora.alpha", &f->alpha, error));
    return check_alpha(f, "adapter.lora.alpha", f->alpha, error);
}

qp_status adapter_file_open(const char *path, const model_config *config, arena *memory,
                            adapter_file *out, qp_error *error)
{
    *out = (adapter_file){.path = path, .config = config};
    out->source = (weight_source){.path = path, .config = config, .arena = memory};
    if (file_is_directory(path)) return open_directory(out, error);
    if (name_ends_with(path, ".safetensors") || name_ends_with(path, ".json"))
        return error_set(error, QP_INVALID,
                         "%s: pass the directory of the adapter: adapter_config.json and "
                         "adapter_model.safetensors belong together",
                         path);
    return open_gguf(out, error);
}

void adapter_file_close(adapter_file *f)
{
    source_close(&f->source);
    cJSON_Delete(f->json);
    *f = (adapter_file){0};
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

/* The name of a slot's module: PEFT's without the prefix. */
static void module_name(const adapter_file *f, weight_slot slot, int64_t layer, char name[NAME])
{
    source_name(&f->source, slot, layer, false, name, NAME);
    if (f->json) name[strlen(name) - strlen(".weight")] = 0;
}

static void half_name(const adapter_file *f, const char *module, char half, char name[NAME + 64])
{
    if (f->json)
        snprintf(name, NAME + 64, PEFT_PREFIX "%s.lora_%c.weight", module, half);
    else
        snprintf(name, NAME + 64, "%s.lora_%c", module, half - 'A' + 'a');
}

static qp_status get_half(adapter_file *f, const char *module, char half, tensor *out,
                          qp_error *error)
{
    char name[NAME + 64];
    half_name(f, module, half, name);
    if (f->source.gguf) return gguf_get_tensor(f->source.gguf, name, out, error);
    return safetensors_get_tensor(f->source.safetensors, name, out, error);
}

/* What a pattern of the config gives for a module, by the end of its name; else *value stays. */
static qp_status read_pattern(const adapter_file *f, const char *key, const char *module,
                              double *value, qp_error *error)
{
    const size_t length = strlen(module);
    for (const cJSON *item = json_get(f->json, key) ? json_get(f->json, key)->child : NULL; item;
         item = item->next) {
        const size_t tail = strlen(item->string);
        if (strpbrk(item->string, "^$*+?()[]{}|\\") || !cJSON_IsNumber(item))
            return error_set(error, QP_UNSUPPORTED,
                             "%s: \"%s\" in adapter_config.json has \"%s\"; quipu reads numbers by "
                             "names of modules there, not by expressions",
                             f->path, key, item->string);
        if (tail > length || strcmp(module + length - tail, item->string) != 0) continue;
        if (tail < length && module[length - tail - 1] != '.') continue;
        *value = item->valuedouble;
        return QP_OK;
    }
    return QP_OK;
}

/* alpha / rank, or what the config says of this module. */
static qp_status find_scaling(const adapter_file *f, const char *module, int64_t rank,
                              adapter_pair *out, qp_error *error)
{
    double alpha = f->alpha, expected = (double)f->rank;
    out->scaling = 1;
    if (!f->json && alpha == 0) return QP_OK; /* as llama.cpp does without the key */
    if (f->json) {
        TRY(read_pattern(f, "rank_pattern", module, &expected, error));
        TRY(read_pattern(f, "alpha_pattern", module, &alpha, error));
        TRY(check_alpha(f, "\"alpha_pattern\" in adapter_config.json", alpha, error));
        if ((double)rank != expected)
            return error_set(error, QP_FORMAT,
                             "%s: the matrices of \"%s\" must have rank %g by "
                             "adapter_config.json, found %lld",
                             f->path, module, expected, (long long)rank);
    }
    out->scaling = alpha / (f->by_square ? sqrt((double)rank) : (double)rank);
    return QP_OK;
}

static qp_status check_pair(const adapter_file *f, const char *module, weight_slot slot,
                            const adapter_pair *p, qp_error *error)
{
    int64_t rows, columns;
    char a[128], b[128];
    weight_shape(f->config, slot, &rows, &columns);
    if (p->shared) rows = source_fused_rows(f->config, slot);
    tensor_describe(&p->a, a, sizeof a);
    tensor_describe(&p->b, b, sizeof b);
    if (p->a.rank != 2 || p->b.rank != 2 || p->a.shape[0] != p->b.shape[1] || p->a.shape[0] < 1)
        return error_set(error, QP_FORMAT,
                         "%s: A and B of \"%s\" must be [rank, %lld] and [%lld, rank] with one "
                         "rank, found %s and %s",
                         f->path, module, (long long)columns, (long long)rows, a, b);
    if (p->a.shape[1] != columns || p->b.shape[0] != rows)
        return error_set(error, QP_FORMAT,
                         "%s: A and B of \"%s\" must be [rank, %lld] and [%lld, rank] by the "
                         "model's sizes, found %s and %s: the adapter is of another model",
                         f->path, module, (long long)columns, (long long)rows, a, b);
    if (p->a.shape[0] <= ADAPTER_MAX_RANK) return QP_OK;
    return error_set(error, QP_UNSUPPORTED, "%s: the rank of \"%s\" must be 1 to %d, found %lld",
                     f->path, module, ADAPTER_MAX_RANK, (long long)p->a.shape[0]);
}

qp_status adapter_file_get(adapter_file *f, weight_slot slot, int64_t layer, adapter_pair *out,
                           qp_error *error)
{
    char module[NAME];
    const rope_config *rope = &f->config->rope;
    *out = (adapter_pair){.shared = source_is_fused(&f->source, slot)};
    module_name(f, slot, layer, module);
    TRY(get_half(f, module, 'A', &out->a, error));
    TRY(get_half(f, module, 'B', &out->b, error));
    if (out->a.rank == 0 && out->b.rank == 0) return QP_OK;
    if (out->a.rank == 0 || out->b.rank == 0) {
        char has[NAME + 64], lacks[NAME + 64];
        half_name(f, module, out->a.rank ? 'A' : 'B', has);
        half_name(f, module, out->a.rank ? 'B' : 'A', lacks);
        return error_set(error, QP_FORMAT, "%s: tensor \"%s\" is missing beside \"%s\"", f->path,
                         lacks, has);
    }
    TRY(check_pair(f, module, slot, out, error));
    TRY(find_scaling(f, module, out->a.shape[0], out, error));
    if ((slot == WEIGHT_ATTN_Q || slot == WEIGHT_ATTN_K) && rope->interleaved == f->halves) {
        out->turned = rope->dim;
        out->head = f->config->head_dim;
    }
    if (!out->shared || source_fused_row(f->config, slot, 0) == 0) f->n_read += 2;
    return QP_OK;
}

int64_t adapter_file_row(const adapter_file *f, weight_slot slot, const adapter_pair *pair,
                         int64_t row)
{
    if (pair->turned) {
        const int64_t within = row % pair->head, half = pair->turned / 2;
        int64_t from = within;
        if (within < pair->turned && f->halves)
            from = within % 2 * half + within / 2; /* pair (2i, 2i + 1) is (i, i + half) */
        else if (within < pair->turned)
            from = within < half ? 2 * within : 2 * (within - half) + 1;
        row += from - within;
    }
    return pair->shared ? source_fused_row(f->config, slot, row) : row;
}

/* ---- The rest -------------------------------------------------------------------------------- */

static size_t tensor_count(const adapter_file *f)
{
    return f->source.gguf ? gguf_tensor_count(f->source.gguf)
                          : safetensors_tensor_count(f->source.safetensors);
}

static bool is_half_of(const adapter_file *f, text_slice name, weight_slot slot, int64_t layer)
{
    char module[NAME], half[NAME + 64];
    module_name(f, slot, layer, module);
    for (char c = 'A'; c <= 'B'; c++) {
        half_name(f, module, c, half);
        if (slice_is(name, half)) return true;
    }
    return false;
}

static bool is_known(const adapter_file *f, text_slice name, uint32_t slots)
{
    for (int slot = 0; slot < WEIGHT_COUNT; slot++)
        for (int64_t layer = 0; slots >> slot & 1 && layer < f->config->n_layers; layer++)
            if (is_half_of(f, name, (weight_slot)slot, layer)) return true;
    return false;
}

qp_status adapter_file_check_unread(const adapter_file *f, uint32_t slots, qp_error *error)
{
    if (f->n_read == 0 && tensor_count(f) == 0)
        return error_set(error, QP_FORMAT, "%s: the adapter has no tensors", f->path);
    for (size_t i = 0; (size_t)f->n_read != tensor_count(f) && i < tensor_count(f); i++) {
        const stored_tensor *stored = f->source.gguf
                                          ? gguf_tensor_at(f->source.gguf, i)
                                          : safetensors_tensor_at(f->source.safetensors, i);
        char name[128];
        if (is_known(f, stored->name, slots)) continue;
        return error_set(error, QP_UNSUPPORTED,
                         "%s: tensor %s is none of A and B of a product in the model's %lld layers "
                         "of attention and feed-forward network, which are what quipu adapts: the "
                         "adapter is of another model, or must be merged into it",
                         f->path, slice_quote(stored->name, name), (long long)f->config->n_layers);
    }
    return QP_OK;
}
