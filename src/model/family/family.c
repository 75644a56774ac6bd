/* Families by their names: see family.h. */
#include "model/family/family.h"

#include <stdio.h>
#include <string.h>

static const model_family *const families[] = {
#define FAMILY(NAME) &family_##NAME,
#include "model/family/families.def"
#undef FAMILY
};
enum { N_FAMILIES = sizeof families / sizeof *families };

const model_family *family_by_json(const char *name)
{
    for (int i = 0; i < N_FAMILIES; i++) {
        for (int k = 0; families[i]->json[k]; k++) {
            if (strcmp(families[i]->json[k], name) == 0) return families[i];
        }
    }
    return NULL;
}

const model_family *family_by_gguf(text_slice architecture, bool experts)
{
    for (int i = 0; i < N_FAMILIES; i++) {
        const model_family *family = families[i];
        if (slice_is(architecture, family->gguf) && family->experts == experts) return family;
    }
    return NULL;
}

const model_family *family_by_name(const char *name)
{
    for (int i = 0; i < N_FAMILIES; i++) {
        if (strcmp(families[i]->name, name) == 0) return families[i];
    }
    return NULL;
}

typedef struct refused_family {
    const char *json, *gguf, *why;
} refused_family;

static const refused_family refused[] = {
#define REFUSED(JSON, GGUF, WHY) {JSON, GGUF, ": " WHY},
#include "model/family/refused.def"
#undef REFUSED
};
enum { N_REFUSED = sizeof refused / sizeof *refused };

const char *family_refusal_json(const char *name)
{
    for (int i = 0; i < N_REFUSED; i++)
        if (strcmp(refused[i].json, name) == 0) return refused[i].why;
    return "";
}

const char *family_refusal_gguf(text_slice architecture)
{
    for (int i = 0; i < N_REFUSED; i++)
        if (refused[i].gguf && slice_is(architecture, refused[i].gguf)) return refused[i].why;
    return "";
}

/* Each name once: families may share one. */
static void append_name(char *text, size_t size, size_t *used, const char *name)
{
    if (strstr(text, name) || *used >= size) return;
    int written = snprintf(text + *used, size - *used, "%s%s", *used ? ", " : "", name);
    if (written > 0) *used += (size_t)written;
}

const char *family_list_gguf(char *text, size_t size)
{
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < N_FAMILIES; i++)
        append_name(text, size, &used, families[i]->gguf);
    return text;
}

const char *family_list_json(char *text, size_t size)
{
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < N_FAMILIES; i++)
        append_name(text, size, &used, families[i]->json[0]);
    return text;
}

const char *family_gguf_name(const model_family *family, weight_slot slot)
{
    if (slot == WEIGHT_FFN_NORM && family->gguf_ffn_norm) return family->gguf_ffn_norm;
    return weight_get_info(slot)->name;
}

bool family_has(const model_family *family, weight_slot slot)
{
    return family->tensors[slot] || family_fused_of(family, slot);
}

const family_fused *family_fused_of(const model_family *family, weight_slot slot)
{
    for (int i = 0; i < FAMILY_MAX_FUSED; i++)
        if (family->fused[i].slots >> slot & 1) return &family->fused[i];
    return NULL;
}

layer_set family_no_rope(const model_family *family, int64_t n_layers)
{
    layer_set layers = {0};
    const int64_t interval = family->no_rope_interval;
    for (int64_t layer = interval - 1; interval > 0 && layer < n_layers; layer += interval)
        layer_set_add(&layers, layer);
    return layers;
}

layer_set family_sliding(int64_t interval, int64_t n_layers)
{
    layer_set layers = {0};
    for (int64_t layer = 0; layer < n_layers; layer++)
        if ((layer + 1) % interval != 0) layer_set_add(&layers, layer);
    return layers;
}

uint32_t family_may_be_biased(const model_family *family)
{
    uint32_t slots = 0;
    for (int i = 0; i < FAMILY_MAX_BIASES; i++)
        slots |= family->biases[i].slots;
    return slots;
}

uint32_t family_always_biased(const model_family *family)
{
    uint32_t slots = 0;
    for (int i = 0; i < FAMILY_MAX_BIASES; i++)
        slots |= family->biases[i].key ? 0 : family->biases[i].slots;
    return slots;
}
