/* The keys of a converted file: see job.h. From a GGUF file they are copied, except those that the
 * conversion changes. For other sources they are written from the model's sizes, under llama.cpp's
 * names. */
#include "convert/job.h"
#include "file/synthetic.h"
#include "engine/vocabulary.h"
#include "model/config_read.h"
#include "model/family/family.h"
#include "text/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { QUANTIZATION_VERSION = 2 }; /* of ggml's block formats */

/* The file's mix: the one asked for, else the mix of the type that most bytes have. */
static uint32_t file_type_of(const convert_job *job)
{
    uint64_t bytes[DTYPE_COUNT] = {0};
    int most = DTYPE_F32;
    for (size_t i = 0; i < job->n_targets; i++) {
        const target *t = &job->targets[i];
        bytes[t->to] += (uint64_t)t->rows * (uint64_t)t->columns;
    }
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (bytes[type] > bytes[most]) most = type;
    }
    const mix *mix = job->mix ? job->mix : mix_of_type((dtype)most);
    return mix ? mix->file_type : 0;
}

static void put_file_type(convert_job *job)
{
    gguf_put_u32(job->writer, "general.file_type", file_type_of(job));
    gguf_put_u32(job->writer, "general.quantization_version", QUANTIZATION_VERSION);
}

/* --- From a GGUF file. --- */

static bool is_rewritten(text_slice key)
{
    static const char *const names[] = {"general.file_type", "general.quantization_version",
                                        "general.alignment"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (slice_is(key, names[i])) return true;
    }
    static const char split[] = "split.";
    return key.length >= sizeof split - 1 && memcmp(key.data, split, sizeof split - 1) == 0;
}

static void copy_keys(convert_job *job, const gguf *file)
{
    for (size_t i = 0; i < gguf_key_count(file); i++) {
        const gguf_value *value = gguf_key_at(file, i);
        if (!is_rewritten(value->key)) gguf_put_value(job->writer, value);
    }
}

/* --- From sizes. --- */

/* Writes keys named "ARCHITECTURE.name". */
typedef struct key_writer {
    gguf_writer *writer;
    const char *architecture;
    char key[128];
} key_writer;

static const char *full_key(key_writer *w, const char *name)
{
    snprintf(w->key, sizeof w->key, "%s.%s", w->architecture, name);
    return w->key;
}

static void put_size(key_writer *w, const char *name, int64_t value)
{
    gguf_put_u32(w->writer, full_key(w, name), (uint32_t)value);
}

static void put_number(key_writer *w, const char *name, double value)
{
    gguf_put_f32(w->writer, full_key(w, name), (float)value);
}

/* Readers multiply attn_factor by YaRN's own factor. */
static void put_yarn(key_writer *w, const rope_config *rope)
{
    gguf_put_string(w->writer, full_key(w, "rope.scaling.type"), slice_of("yarn"));
    put_number(w, "rope.scaling.factor", rope->factor);
    put_size(w, "rope.scaling.original_context_length", rope->original_context);
    put_number(w, "rope.scaling.yarn_beta_fast", rope->beta_fast);
    put_number(w, "rope.scaling.yarn_beta_slow", rope->beta_slow);
    put_number(w, "rope.scaling.attn_factor",
               rope->attention_factor / rope_yarn_attention(rope->factor));
}

static void put_rope(convert_job *job, key_writer *w, const rope_config *rope)
{
    put_size(w, "rope.dimension_count", rope->dim);
    put_number(w, "rope.freq_base", rope->theta);
    if (rope->scaling == ROPE_LINEAR) {
        gguf_put_string(w->writer, full_key(w, "rope.scaling.type"), slice_of("linear"));
        put_number(w, "rope.scaling.factor", rope->factor);
    }
    if (rope->scaling == ROPE_YARN) put_yarn(w, rope);
    if (rope->scaling == ROPE_LONGROPE) {
        gguf_put_string(w->writer, full_key(w, "rope.scaling.type"), slice_of("longrope"));
        put_size(w, "rope.scaling.original_context_length", rope->original_context);
        put_number(w, "rope.scaling.attn_factor", rope->attention_factor);
    }
    if (rope->scaling == ROPE_DYNAMIC)
        strbuf_printf(
            &job->warnings,
            "GGUF has no dynamic RoPE scaling: the file is for contexts up to %lld, where "
            "there is no difference\n",
            (long long)rope->original_context);
}

/* The window, and a flag for each layer where some layers lack it. */
static void put_window(key_writer *w, const model_config *c)
{
    uint8_t flags[CONFIG_MAX_LAYERS];
    if (!c->window) return;
    put_size(w, "attention.sliding_window", c->window);
    for (int64_t layer = 0; layer < c->n_layers; layer++)
        flags[layer] = layer_set_has(&c->windowed, layer);
    if (layer_set_count(&c->windowed, c->n_layers) < c->n_layers || c->family->window_by_switch)
        gguf_put_array(w->writer, full_key(w, "attention.sliding_window_pattern"), GGUF_BOOL, flags,
                       (size_t)c->n_layers);
}

static void put_scales(key_writer *w, const model_config *c)
{
    scale_key keys[CONFIG_MAX_SCALES];
    const int n = config_scale_keys(c, keys);
    for (int i = 0; i < n; i++)
        put_number(w, keys[i].name, keys[i].value);
}

static void put_experts(key_writer *w, const model_config *c)
{
    if (!c->n_experts) return;
    put_size(w, "expert_count", c->n_experts);
    put_size(w, "expert_used_count", c->n_experts_used);
    put_size(w, "expert_feed_forward_length", c->intermediate_size);
}

/* In GGUF the shares of experts are normalised, or not, by the architecture. */
static qp_status check_experts(const model_config *c, const char *path, qp_error *error)
{
    if (c->experts_normalised == c->family->experts_normalised) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "%s: \"norm_topk_prob\" is %s, but in GGUF files of %s it is %s", path,
                     c->experts_normalised ? "true" : "false", c->family->gguf,
                     c->family->experts_normalised ? "true" : "false");
}

static void put_sizes(convert_job *job, const model_config *c)
{
    key_writer w = {.writer = job->writer, .architecture = c->family->gguf};
    gguf_put_string(job->writer, "general.architecture", slice_of(w.architecture));
    gguf_put_string(job->writer, "general.type", slice_of("model"));
    gguf_put_string(job->writer, "general.name", slice_of(c->name));
    put_size(&w, "block_count", c->n_layers);
    put_size(&w, "context_length", c->context_length);
    put_size(&w, "embedding_length", c->hidden_size);
    put_size(&w, "feed_forward_length", c->intermediate_size);
    put_size(&w, "attention.head_count", c->n_heads);
    put_size(&w, "attention.head_count_kv", c->n_kv_heads);
    put_size(&w, "attention.key_length", c->head_dim);
    put_size(&w, "attention.value_length", c->head_dim);
    put_experts(&w, c);
    put_number(&w, config_gguf_epsilon(c->family), c->rms_norm_eps);
    put_size(&w, "vocab_size", c->vocab_size);
    put_window(&w, c);
    put_rope(job, &w, &c->rope);
    if (c->rope_local.dim) put_number(&w, "rope.freq_base_swa", c->rope_local.theta);
    put_scales(&w, c);
}

/* Which layers do not rotate follows from the architecture in GGUF, which has no key for it. Nor
 * has it one for YaRN's bounds that are not rounded. */
static qp_status check_keys(const model_config *c, const char *path, qp_error *error)
{
    if (c->rope.beta_exact)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: in GGUF the bounds of YaRN are rounded to whole pairs of a head, and "
                         "by this model's \"truncate\" they are not",
                         path);
    model_config read = *c;
    config_imply_scales(&read);
    const double score = c->scales.attention * sqrt((double)c->head_dim);
    const bool same = read.scales.attention != 0
                          ? fabs(read.scales.attention / c->scales.attention - 1) < 1e-6
                          : c->scales.attention == 0 || fabs(score - 1) < 1e-6;
    if (c->family->scales & SCALES_QUERY && !same)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: GGUF has no key for \"query_pre_attn_scalar\": its models of %lld "
                         "layers have another one than %g",
                         path, (long long)c->n_layers, 1 / pow(c->scales.attention, 2));
    const layer_set usual = family_no_rope(c->family, c->n_layers);
    if (memcmp(&usual, &c->no_rope, sizeof usual) == 0) return QP_OK;
    return error_set(
        error, QP_UNSUPPORTED,
        "%s: in GGUF each layer of a multiple of %lld does not rotate q and k, which are "
        "not the layers of this model",
        path, (long long)c->family->no_rope_interval);
}

static void put_templates(convert_job *job, const chat_templates *t)
{
    static const text_slice names[] = {{"tool_use", 8}};
    if (t->plain.source)
        gguf_put_string(job->writer, "tokenizer.chat_template", slice_of(t->plain.source));
    if (!t->with_tools.source) return;
    gguf_put_strings(job->writer, "tokenizer.chat_templates", names, 1);
    gguf_put_string(job->writer, "tokenizer.chat_template.tool_use",
                    slice_of(t->with_tools.source));
}

static qp_status put_vocabulary(convert_job *job, int64_t vocab_size, qp_error *error)
{
    const char *path = model_path(job->model);
    if (synthetic_is_name(path))
        return tokenizer_write_minimal_gguf(vocab_size, job->writer, error);
    qp_vocabulary *vocabulary;
    TRY(vocabulary_open_beside(job->model, &vocabulary, error));
    if (!vocabulary) {
        gguf_put_string(job->writer, "tokenizer.ggml.model", slice_of("no_vocab"));
        strbuf_puts(&job->warnings, "there is no tokenizer beside the weights: the file will take "
                                    "and give token ids only\n");
        return QP_OK;
    }
    qp_status status = tokenizer_write_gguf(vocabulary->tokenizer, vocab_size, path, job->writer,
                                            &job->warnings, error);
    put_templates(job, &vocabulary->templates);
    qp_vocabulary_close(vocabulary);
    return status;
}

qp_status convert_put_keys(convert_job *job, qp_error *error)
{
    const gguf *file = model_gguf(job->model);
    const model_config *config = model_get_config(job->model);
    if (file) {
        copy_keys(job, file);
        put_file_type(job);
        return QP_OK;
    }
    TRY(check_keys(config, model_path(job->model), error));
    TRY(check_experts(config, model_path(job->model), error));
    put_sizes(job, config);
    put_file_type(job);
    return put_vocabulary(job, config->vocab_size, error);
}
