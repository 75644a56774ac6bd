/* Settings beside a tokenizer: see settings.h. */
#include "text/settings.h"

#include "base/files.h"
#include "file/mapping.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SETTINGS_FILE = 64 << 20 };

/* Parses directory/name; *out stays NULL where there is no such file. */
static qp_status read_tree(const char *directory, const char *name, cJSON **out, qp_error *error)
{
    char path[4096], *text = NULL;
    size_t length = 0;
    TRY(files_join(directory, name, path, sizeof path, error));
    if (!file_exists(path)) return QP_OK;
    TRY(file_read_text(path, MAX_SETTINGS_FILE, &text, &length, error));
    qp_status status = json_parse(text, length, path, out, error);
    free(text);
    return status;
}

qp_status settings_read(const char *directory, tokenizer_settings *settings, qp_error *error)
{
    memset(settings, 0, sizeof *settings);
    snprintf(settings->where, sizeof settings->where, "%.400s/tokenizer_config.json", directory);
    TRY(read_tree(directory, "tokenizer_config.json", &settings->config, error));
    TRY(read_tree(directory, "special_tokens_map.json", &settings->special_map, error));
    return read_tree(directory, "config.json", &settings->model, error);
}

void settings_free(tokenizer_settings *settings)
{
    cJSON_Delete(settings->config);
    cJSON_Delete(settings->special_map);
    cJSON_Delete(settings->model);
    memset(settings, 0, sizeof *settings);
}

qp_status settings_add_tokens(const tokenizer_settings *settings, tokenizer *tokenizer,
                              qp_error *error)
{
    if (!settings) return QP_OK;
    const cJSON *list = json_get(settings->config, "added_tokens_decoder"), *entry;
    int64_t limit =
        tokenizer->vocabulary.count + tokenizer_id_limit((size_t)cJSON_GetArraySize(list));
    cJSON_ArrayForEach(entry, list)
    {
        char *end;
        long long id = strtoll(entry->string, &end, 10);
        if (*end || end == entry->string)
            return error_set(error, QP_FORMAT,
                             "%s: \"added_tokens_decoder\" has \"%.32s\" where an id belongs",
                             settings->where, entry->string);
        TRY(tokenizer_add_token(tokenizer, id, limit, entry, settings->where, error));
    }
    return QP_OK;
}

/* Reads the token of a role: a string, or an object with its "content". An explicit null means that
 * there is none; a name that the vocabulary lacks changes nothing. */
static void apply_role(const tokenizer_settings *settings, const tokenizer *tokenizer,
                       const char *key, int32_t *id)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(settings->config, key);
    if (cJSON_IsNull(item)) *id = -1;
    if (!item || cJSON_IsNull(item)) item = json_get(settings->special_map, key);
    if (cJSON_IsObject(item)) item = json_get(item, "content");
    if (!cJSON_IsString(item)) return;
    int32_t found = tokenizer_find(tokenizer, item->valuestring, strlen(item->valuestring));
    if (found >= 0) *id = found;
}

/* Reads config.json's id, a number or a list whose first element counts, if no other file gave
 * one. */
static void apply_model_id(const tokenizer_settings *settings, const tokenizer *tokenizer,
                           const char *key, int32_t *id)
{
    const cJSON *item = json_get(settings->model, key);
    if (cJSON_IsArray(item)) item = item->child;
    if (*id >= 0 || !cJSON_IsNumber(item)) return;
    double value = item->valuedouble;
    if (value >= 0 && value < tokenizer_vocab_size(tokenizer)) *id = (int32_t)value;
}

/* An explicit key decides; without one, Llama's tokenizer class adds BOS. */
static qp_status apply_flag(const tokenizer_settings *settings, tokenizer *tokenizer,
                            const char *key, unsigned flag, bool has_token, qp_error *error)
{
    const char *tokenizer_class = "";
    TRY(json_get_string(settings->config, "tokenizer_class", settings->where, &tokenizer_class,
                        error));
    bool is_llama = strncmp(tokenizer_class, "LlamaTokenizer", 14) == 0;
    bool wanted = (tokenizer->default_flags & flag) || (flag == TOKENIZER_BOS && is_llama);
    TRY(json_get_bool(settings->config, key, settings->where, &wanted, error));
    tokenizer->default_flags &= ~flag;
    if (wanted && has_token) tokenizer->default_flags |= flag;
    return QP_OK;
}

qp_status settings_apply(const tokenizer_settings *settings, tokenizer *tokenizer, qp_error *error)
{
    tokenizer_special *special = &tokenizer->special;
    apply_role(settings, tokenizer, "bos_token", &special->bos);
    apply_role(settings, tokenizer, "eos_token", &special->eos);
    apply_role(settings, tokenizer, "unk_token", &special->unknown);
    apply_role(settings, tokenizer, "pad_token", &special->padding);
    apply_model_id(settings, tokenizer, "bos_token_id", &special->bos);
    apply_model_id(settings, tokenizer, "eos_token_id", &special->eos);
    TRY(apply_flag(settings, tokenizer, "add_bos_token", TOKENIZER_BOS, special->bos >= 0, error));
    TRY(apply_flag(settings, tokenizer, "add_eos_token", TOKENIZER_EOS, special->eos >= 0, error));
    if (tokenizer->vocabulary.kind != VOCABULARY_SCORES) return QP_OK;
    bool legacy = true, prefix = true;
    TRY(json_get_bool(settings->config, "legacy", settings->where, &legacy, error));
    TRY(json_get_bool(settings->config, "add_prefix_space", settings->where, &prefix, error));
    normalizer *normalizer = &tokenizer->normalizer;
    if (!legacy && normalizer->prefix == SPACE_PREFIX_ALWAYS)
        normalizer->prefix = SPACE_PREFIX_FIRST;
    if (!prefix) normalizer->prefix = SPACE_PREFIX_NEVER;
    return QP_OK;
}
