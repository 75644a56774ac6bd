/* Reading and choosing chat templates: see chat_template.h. */
#include "engine/chat_template.h"

#include "base/files.h"
#include "file/mapping.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE_FILE_LIMIT = 64 << 20 };

#define WITH_TOOLS "tool_use"

static qp_status keep(chat_template *t, const char *text, size_t length, qp_error *error)
{
    t->source = malloc(length + 1);
    if (!t->source) return error_no_memory(error, "the chat template", length + 1);
    memcpy(t->source, text, length);
    t->source[length] = '\0';
    template_compile(t->source, length, &t->compiled, &t->error);
    return QP_OK;
}

/* ---- GGUF ---------------------------------------------------------------------------------- */

static qp_status read_key(const gguf *file, const char *key, chat_template *out, qp_error *error)
{
    text_slice source = {0};
    TRY(gguf_get_string(file, key, &source, error));
    return source.data ? keep(out, source.data, source.length, error) : QP_OK;
}

qp_status chat_templates_read_gguf(const gguf *file, chat_templates *out, qp_error *error)
{
    TRY(read_key(file, "tokenizer.chat_template", &out->plain, error));
    return read_key(file, "tokenizer.chat_template." WITH_TOOLS, &out->with_tools, error);
}

/* ---- Directories --------------------------------------------------------------------------- */

/* Reads DIRECTORY/NAME if it exists; else *text stays NULL. */
static qp_status read_beside(const char *directory, const char *name, char *path, size_t path_size,
                             char **text, size_t *length, qp_error *error)
{
    *text = NULL;
    TRY(files_join(directory, name, path, path_size, error));
    if (!file_exists(path)) return QP_OK;
    return file_read_text(path, SIDE_FILE_LIMIT, text, length, error);
}

static qp_status read_file(const char *directory, const char *name, chat_template *out,
                           qp_error *error)
{
    char path[4096], *text;
    size_t length;
    TRY(read_beside(directory, name, path, sizeof path, &text, &length, error));
    const qp_status status = text ? keep(out, text, length, error) : QP_OK;
    free(text);
    return status;
}

/* "chat_template" is a text, or a list of {name, template}. */
static qp_status read_config(const cJSON *config, chat_templates *out, qp_error *error)
{
    const cJSON *item = json_get(config, "chat_template"), *entry;
    if (cJSON_IsString(item))
        return keep(&out->plain, item->valuestring, strlen(item->valuestring), error);
    cJSON_ArrayForEach(entry, item)
    {
        const char *name = cJSON_GetStringValue(json_get(entry, "name"));
        const char *text = cJSON_GetStringValue(json_get(entry, "template"));
        chat_template *t = !name || !text                  ? NULL
                           : strcmp(name, "default") == 0  ? &out->plain
                           : strcmp(name, WITH_TOOLS) == 0 ? &out->with_tools
                                                           : NULL;
        if (t && !t->source) TRY(keep(t, text, strlen(text), error));
    }
    return QP_OK;
}

qp_status chat_templates_read_directory(const char *directory, chat_templates *out, qp_error *error)
{
    char path[4096], *text;
    size_t length;
    TRY(read_file(directory, "chat_template.jinja", &out->plain, error));
    TRY(read_file(directory, "additional_chat_templates/" WITH_TOOLS ".jinja", &out->with_tools,
                  error));
    if (out->plain.source) return QP_OK;
    TRY(read_beside(directory, "tokenizer_config.json", path, sizeof path, &text, &length, error));
    if (!text) return QP_OK;
    cJSON *json;
    qp_status status = json_parse(text, length, path, &json, error);
    free(text);
    TRY(status);
    status = read_config(json, out, error);
    cJSON_Delete(json);
    return status;
}

/* ---- Both ---------------------------------------------------------------------------------- */

void chat_templates_free(chat_templates *t)
{
    template_free(t->plain.compiled);
    template_free(t->with_tools.compiled);
    free(t->plain.source);
    free(t->with_tools.source);
    *t = (chat_templates){0};
}

qp_status chat_templates_set(chat_templates *t, const char *source, size_t length, qp_error *error)
{
    chat_templates given = {0};
    TRY(keep(&given.plain, source, length, error));
    if (!given.plain.compiled) {
        const qp_error why = given.plain.error;
        chat_templates_free(&given);
        return error_set(error, why.status, "%s", why.message);
    }
    chat_templates_free(t);
    *t = given;
    return QP_OK;
}

const chat_template *chat_templates_choose(const chat_templates *t, const cJSON *variables)
{
    const bool tools = cJSON_GetArraySize(json_get(variables, "tools")) > 0;
    return tools && t->with_tools.source ? &t->with_tools : &t->plain;
}
