/* Reads sampling settings from a model's files: see generation_config.h. */
#include "engine/generation_config.h"

#include "base/files.h"
#include "base/json.h"
#include "file/mapping.h"
#include "file/synthetic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_LIMIT = 1 << 20 };

/* Negative numbers stand for "none". False when there is no room for one more. */
static bool add_stop_token(generation_config *config, int64_t token)
{
    if (token < 0 || token > INT32_MAX) return true;
    for (size_t i = 0; i < config->n_stop_tokens; i++) {
        if (config->stop_tokens[i] == (int32_t)token) return true;
    }
    if (config->n_stop_tokens == QP_MAX_STOP_TOKENS) return false;
    config->stop_tokens[config->n_stop_tokens++] = (int32_t)token;
    return true;
}

/* "eos_token_id" is a number or a list of numbers. */
static qp_status read_stop_tokens(const cJSON *json, const char *where, generation_config *out,
                                  qp_error *error)
{
    const cJSON *item = json_get(json, "eos_token_id");
    const cJSON *entry = cJSON_IsArray(item) ? item->child : item;
    for (; entry; entry = entry->next) {
        double token = entry->valuedouble;
        bool whole = cJSON_IsNumber(entry) && fabs(token) <= INT32_MAX && token == floor(token);
        if (!whole) {
            char found[64];
            snprintf(found, sizeof found, "%g", token);
            return error_set(error, QP_FORMAT,
                             "%s: \"eos_token_id\" must be a whole number or a list of them, found "
                             "%s",
                             where, cJSON_IsNumber(entry) ? found : json_type_name(entry));
        }
        if (!add_stop_token(out, (int64_t)token))
            return error_set(error, QP_UNSUPPORTED,
                             "%s: \"eos_token_id\" makes more than %d tokens that end an answer",
                             where, QP_MAX_STOP_TOKENS);
        if (entry == item) break; /* other keys of the file */
    }
    return QP_OK;
}

static qp_status read_settings(const cJSON *json, const char *where, generation_config *out,
                               qp_error *error)
{
    static const qp_setting known[] = {QP_TEMPERATURE,        QP_TOP_K,    QP_TOP_P, QP_MIN_P,
                                       QP_REPETITION_PENALTY, QP_TYPICAL_P};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *name = qp_setting_name(known[i]);
        if (!json_get(json, name)) continue;
        TRY(json_get_double(json, name, where, &out->value[known[i]], error));
        qp_sampling probe = {.size = sizeof probe};
        if (qp_sampling_set(&probe, known[i], out->value[known[i]], QP_FROM_MODEL, error) != QP_OK)
            return error_prefix(error, "%s", where);
        out->set[known[i]] = true;
    }
    bool sample = true;
    TRY(json_get_bool(json, "do_sample", where, &sample, error));
    if (!sample) {
        out->value[QP_TEMPERATURE] = 0;
        out->set[QP_TEMPERATURE] = true;
    }
    return QP_OK;
}

typedef qp_status json_reader(const cJSON *json, const char *where, generation_config *out,
                              qp_error *error);

/* Calls `reader` with the file, if it exists. */
static qp_status read_file(const char *path, json_reader *reader, generation_config *out,
                           qp_error *error)
{
    char *text;
    size_t length;
    if (!file_exists(path)) return QP_OK;
    TRY(file_read_text(path, CONFIG_LIMIT, &text, &length, error));
    cJSON *json;
    qp_status status = json_parse(text, length, path, &json, error);
    free(text);
    TRY(status);
    if (!cJSON_IsObject(json))
        status = error_set(error, QP_FORMAT, "%s: must be an object, found %s", path,
                           json_type_name(json));
    else
        status = reader(json, path, out, error);
    cJSON_Delete(json);
    return status;
}

static qp_status read_generation(const cJSON *json, const char *where, generation_config *out,
                                 qp_error *error)
{
    TRY(read_stop_tokens(json, where, out, error));
    return read_settings(json, where, out, error);
}

/* The first `length` bytes of `base`, followed by `name`. */
static qp_status join(const char *base, size_t length, const char *name,
                      char path[GENERATION_CONFIG_PATH], qp_error *error)
{
    if (length + strlen(name) >= GENERATION_CONFIG_PATH) return files_path_too_long(base, error);
    memcpy(path, base, length);
    memcpy(path + length, name, strlen(name) + 1);
    return QP_OK;
}

/* GGUF has no keys for sampling. A folder may hold several models, so the file is named after its
 * model. */
qp_status generation_config_path(const char *model, char path[GENERATION_CONFIG_PATH],
                                 qp_error *error)
{
    static const char suffix[] = ".gguf";
    size_t length = strlen(model), tail = sizeof suffix - 1;
    if (file_is_directory(model))
        return join(model, length, "/generation_config.json", path, error);
    if (length > tail && strcmp(model + length - tail, suffix) == 0) length -= tail;
    return join(model, length, ".generation_config.json", path, error);
}

qp_status generation_config_read(const model *model, const qp_vocabulary *vocabulary,
                                 generation_config *out, qp_error *error)
{
    *out = (generation_config){0};
    if (vocabulary) {
        tokenizer_special special = tokenizer_special_ids(vocabulary->tokenizer);
        add_stop_token(out, special.eos);
        add_stop_token(out, special.eot);
    }
    char path[GENERATION_CONFIG_PATH];
    const char *source = model_path(model);
    if (synthetic_is_name(source)) return QP_OK;
    if (file_is_directory(source)) {
        TRY(join(source, strlen(source), "/config.json", path, error));
        TRY(read_file(path, read_stop_tokens, out, error));
    }
    TRY(generation_config_path(source, path, error));
    return read_file(path, read_generation, out, error);
}
