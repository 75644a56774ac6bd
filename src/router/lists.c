/* Lists of models: see lists.h. */
#include "router/lists.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/names.h"
#include "text/json_string.h"

#include <stdio.h>
#include <string.h>

static const model *state_of(const models *all, const char *name)
{
    for (size_t i = 0; i < all->count; i++)
        if (strcmp(all->items[i]->name, name) == 0) return all->items[i];
    return NULL;
}

static cJSON *entry_of(const models *all, const catalog_entry *e)
{
    const model *m = state_of(all, e->name);
    cJSON *entry = json_make("{'id':%q,'object':'model','created':%i,'owned_by':'quipu','status':"
                             "{'value':%q}}",
                             e->name, (int64_t)e->modified, model_state_name(m));
    cJSON *status = cJSON_GetObjectItemCaseSensitive(entry, "status");
    if (m && m->needs) cJSON_AddNumberToObject(status, "memory", (double)m->needs);
    if (m && *m->why) cJSON_AddStringToObject(status, "failure", m->why);
    return entry;
}

cJSON *list_openai(models *all)
{
    cJSON *tree = json_make("{'object':'list','data':[]}");
    cJSON *data = cJSON_GetObjectItemCaseSensitive(tree, "data");
    for (size_t i = 0; i < all->known.count; i++)
        cJSON_AddItemToArray(data, entry_of(all, all->known.entries + i));
    return tree;
}

cJSON *list_openai_one(models *all, const char *name)
{
    const catalog_entry *e = catalog_find(&all->known, name);
    return e ? entry_of(all, e) : NULL;
}

/* Clients compare digests to tell models apart; reading gigabytes for a hash would take too long,
 * so these are made from catalog_stamp(). */
static void find_digest(const catalog_entry *e, char digits[65])
{
    for (int i = 0; i < 4; i++)
        snprintf(digits + 16 * i, 17, "%016llx",
                 (unsigned long long)hash_random(catalog_stamp(e), 1, (uint64_t)i));
}

static cJSON *ollama_entry(const catalog_entry *e)
{
    char when[CLOCK_UTC_SIZE], digits[65];
    clock_utc(e->modified, when);
    find_digest(e, digits);
    return json_make("{'name':%q,'model':%q,'modified_at':%q,'size':%i,'digest':%q,'details':"
                     "{'format':%q,'family':'','parameter_size':'','quantization_level':'',"
                     "'parent_model':'','families':[]}}",
                     e->name, e->name, when, (int64_t)e->bytes, digits,
                     name_ends_with(e->path, ".gguf") ? "gguf" : "safetensors");
}

cJSON *list_ollama_tags(const models *all)
{
    cJSON *tree = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(tree, "models");
    for (size_t i = 0; i < all->known.count; i++)
        cJSON_AddItemToArray(list, ollama_entry(all->known.entries + i));
    return tree;
}

cJSON *list_ollama_ps(models *all)
{
    cJSON *tree = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(tree, "models");
    const uint64_t now = clock_ns();
    for (size_t i = 0; i < all->count; i++) {
        const model *m = all->items[i];
        const catalog_entry *e = catalog_find(&all->known, m->name);
        if (!e || !m->needs || m->state < MODEL_LOADING) continue;
        cJSON *entry = ollama_entry(e);
        cJSON_ReplaceItemInObject(entry, "size", cJSON_CreateNumber((double)m->needs));
        cJSON_AddNumberToObject(entry, "size_vram", 0);
        const uint64_t since = now - m->used;
        const uint64_t left = m->keep > since ? m->keep - since : 0;
        char until[CLOCK_UTC_SIZE];
        clock_utc(time(NULL) + (time_t)(left / 1000000000), until);
        cJSON_AddStringToObject(entry, "expires_at",
                                m->keep == UINT64_MAX ? "9999-12-31T23:59:59Z" : until);
        cJSON_AddStringToObject(entry, "status", model_state_name(m));
        cJSON_AddItemToArray(list, entry);
    }
    return tree;
}
