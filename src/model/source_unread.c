/* Tensors of a file that are no weight of the model: see source_check_unread() in source.h. */
#include "model/source_part.h"

#include "model/family/family.h"
#include "model/fp8.h"
#include "model/int_weights.h"

#include <stdio.h>
#include <string.h>

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
    if (!cut_prefix(&rest, source->safetensors ? SOURCE_JSON_LAYER : SOURCE_GGUF_LAYER)) return -1;
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
    const char *stem = source_stem(source, slot);
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
    if (source->safetensors && int_is_companion(source->safetensors, c, stored->name.data))
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
