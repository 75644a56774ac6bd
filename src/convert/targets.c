/* The tensors of a converted file, their sources and their types: see job.h.
 *
 * A GGUF file keeps all its tensors, with their names and order. From any other source come the
 * weights that weights.def names, with the rows of queries and keys permuted to the order in which
 * GGUF rotates them (neighbouring pairs), and a tensor of divisors for llama3's RoPE.
 */
#include "convert/job.h"

#include "model/family/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static qp_status add_target(convert_job *job, const char *name, const target *new, qp_error *error)
{
    if (job->n_targets == job->capacity) {
        size_t wanted = job->capacity ? 2 * job->capacity : 256;
        target *grown = realloc(job->targets, wanted * sizeof *grown);
        if (!grown) return error_no_memory(error, "the list of tensors", wanted * sizeof *grown);
        job->targets = grown;
        job->capacity = wanted;
    }
    const char *copy = arena_strdup(&job->arena, name);
    if (!copy) return error_no_memory(error, "a tensor's name", strlen(name));
    job->targets[job->n_targets] = *new;
    job->targets[job->n_targets++].name = slice_of(copy);
    return QP_OK;
}

/* --- From a GGUF file. --- */

/* The slot whose weight has this name; WEIGHT_COUNT for any other tensor. */
static weight_slot find_slot(const model_config *config, text_slice name, int64_t *layer)
{
    char text[160], expected[160];
    if (name.length >= sizeof text) return WEIGHT_COUNT;
    memcpy(text, name.data, name.length);
    text[name.length] = '\0';
    long long n = 0;
    int after = 0;
    bool in_layer = sscanf(text, "blk.%lld.%n", &n, &after) == 1 && after > 0;
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        const weight_info *info = weight_get_info((weight_slot)slot);
        snprintf(expected, sizeof expected, "%s.weight",
                 family_gguf_name(config->family, (weight_slot)slot));
        if (info->per_layer != in_layer || strcmp(text + after, expected) != 0) continue;
        *layer = n;
        return n >= 0 && n < config->n_layers ? (weight_slot)slot : WEIGHT_COUNT;
    }
    return WEIGHT_COUNT;
}

static qp_status add_stored(convert_job *job, const stored_tensor *stored, qp_error *error)
{
    char name[SLICE_QUOTE_SIZE];
    const model_config *config = model_get_config(job->model);
    if (stored->type == DTYPE_COUNT)
        return error_set(
            error, QP_UNSUPPORTED, "%s: tensor \"%s\" is of type %s, which quipu does not read",
            model_path(job->model), slice_quote(stored->name, name), stored->type_name);
    target t = {.data = stored->data,
                .from = stored->type,
                .to = stored->type,
                .rank = stored->rank,
                .rows = 1};
    memcpy(t.shape, stored->shape, sizeof t.shape);
    t.columns = t.shape[t.rank - 1];
    for (int d = 0; d + 1 < t.rank; d++)
        t.rows *= t.shape[d];
    t.slot = find_slot(config, stored->name, &t.layer);
    if (config->adapters.merged && t.slot < WEIGHT_COUNT)
        t.data = model_get_weight(job->model, t.slot, t.layer)->weight.data;
    if (t.rank >= 2 && t.slot < WEIGHT_COUNT && job->mix)
        t.to = mix_choose(job->mix, config, t.slot, t.layer, t.columns, job->options->pure);
    const char *copy = arena_strndup(&job->arena, stored->name.data, stored->name.length);
    if (!copy) return error_no_memory(error, "a tensor's name", stored->name.length);
    return add_target(job, copy, &t, error);
}

/* --- From the model's slots. --- */

/* Where GGUF keeps several slots in one tensor, the first slot stands for all: their rows are
 * counted. False: the slot is in the tensor of another. */
static bool fuse(const model_config *c, target *t, const char **name)
{
    const family_fused *fused = family_fused_of(c->family, t->slot);
    if (!fused || !fused->gguf) return true;
    if (fused->slots & ((1u << t->slot) - 1)) return false;
    *name = fused->gguf;
    t->fused = fused->slots;
    t->rows = 0;
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        int64_t rows, columns;
        weight_shape(c, (weight_slot)slot, &rows, &columns);
        if (t->fused >> slot & 1) t->rows += rows;
    }
    t->shape[0] = t->rows;
    return true;
}

static qp_status add_slot(convert_job *job, weight_slot slot, int64_t layer, bool bias,
                          qp_error *error)
{
    const model_config *c = model_get_config(job->model);
    const model_weight *weight = model_get_weight(job->model, slot, layer);
    const tensor *view = bias ? &weight->bias : &weight->weight;
    if (view->rank == 0) return QP_OK;
    bool matrix = view->rank == 2;
    target t = {.slot = slot,
                .layer = layer,
                .bias = bias,
                .data = view->data,
                .from = view->type,
                .to = DTYPE_F32,
                .rank = view->rank,
                .shape = {view->shape[0], view->shape[1]},
                .rows = matrix || bias ? view->shape[0] : 1,
                .columns = bias ? 1 : view->shape[view->rank - 1]};
    if (matrix)
        t.to = job->mix ? mix_choose(job->mix, c, slot, layer, t.columns, job->options->pure)
                        : view->type;
    if (c->family->gguf_pairs && !c->rope.interleaved &&
        (slot == WEIGHT_ATTN_Q || slot == WEIGHT_ATTN_K)) {
        t.turned = c->rope.dim;
        t.head_dim = c->head_dim;
    }
    char name[160];
    const weight_info *info = weight_get_info(slot);
    if (info->per_expert) {
        const tensor each = tensor_split(*view, 0, c->n_experts);
        t.rank = each.rank;
        memcpy(t.shape, each.shape, sizeof t.shape);
    }
    const char *suffix = bias ? "bias" : "weight", *stem = family_gguf_name(c->family, slot);
    if (!fuse(c, &t, &stem)) return QP_OK;
    if (info->per_layer)
        snprintf(name, sizeof name, "blk.%lld.%s.%s", (long long)layer, stem, suffix);
    else
        snprintf(name, sizeof name, "%s.%s", stem, suffix);
    return add_target(job, name, &t, error);
}

static qp_status add_divisors(convert_job *job, const char *name, const float *divisors,
                              qp_error *error)
{
    const int64_t half = model_get_config(job->model)->rope.dim / 2;
    target t = {.slot = WEIGHT_COUNT,
                .data = divisors,
                .from = DTYPE_F32,
                .to = DTYPE_F32,
                .rank = 1,
                .shape = {half},
                .rows = 1,
                .columns = half};
    return add_target(job, name, &t, error);
}

static qp_status add_rope_divisors(convert_job *job, qp_error *error)
{
    const rope_config *rope = &model_get_config(job->model)->rope;
    if (rope->scaling == ROPE_LONGROPE) {
        TRY(add_divisors(job, "rope_factors_long.weight", rope->long_divisors, error));
        return add_divisors(job, "rope_factors_short.weight", rope->divisors, error);
    }
    if (rope->scaling != ROPE_LLAMA3) return QP_OK;
    size_t half = (size_t)rope->dim / 2;
    float *divisors = arena_alloc(&job->arena, half, sizeof *divisors);
    if (!divisors) return error_no_memory(error, "RoPE's divisors", half);
    for (size_t i = 0; i < half; i++)
        divisors[i] = rope_divisor(rope, (int64_t)i);
    return add_divisors(job, "rope_freqs.weight", divisors, error);
}

static bool has_output(const model_config *config)
{
    return !config->tied || config->family->gguf_needs_output;
}

static qp_status add_slots(convert_job *job, qp_error *error)
{
    const model_config *c = model_get_config(job->model);
    TRY(add_slot(job, WEIGHT_TOKEN_EMBD, 0, false, error));
    TRY(add_rope_divisors(job, error));
    for (int64_t layer = 0; layer < c->n_layers; layer++) {
        for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
            if (!weight_get_info((weight_slot)slot)->per_layer) continue;
            TRY(add_slot(job, (weight_slot)slot, layer, false, error));
            TRY(add_slot(job, (weight_slot)slot, layer, true, error));
        }
    }
    TRY(add_slot(job, WEIGHT_OUTPUT_NORM, 0, false, error));
    if (!has_output(c)) return QP_OK;
    TRY(add_slot(job, WEIGHT_OUTPUT, 0, false, error));
    return add_slot(job, WEIGHT_OUTPUT, 0, true, error);
}

/* --- All. --- */

static void warn_of_second_rounding(convert_job *job)
{
    int twice = 0;
    for (size_t i = 0; i < job->n_targets; i++) {
        const target *t = &job->targets[i];
        twice += dtype_is_quantized(t->from) && dtype_is_quantized(t->to) && t->from != t->to;
    }
    if (twice)
        strbuf_printf(&job->warnings,
                      "%d tensors are quantised already: what the new type loses comes on top of "
                      "what they lost\n",
                      twice);
}

qp_status convert_list_targets(convert_job *job, qp_error *error)
{
    const gguf *file = model_gguf(job->model);
    for (size_t i = 0; file && i < gguf_tensor_count(file); i++)
        TRY(add_stored(job, gguf_tensor_at(file, i), error));
    if (!file) TRY(add_slots(job, error));
    warn_of_second_rounding(job);
    return QP_OK;
}
