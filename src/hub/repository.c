/* Reads a hub's description of a repository: see repository.h. The answer is not trusted: names
 * become paths only if they are plain, and hashes only if they are hexadecimal. */
#include "hub/repository.h"

#include "base/json.h"
#include "base/names.h"
#include "hub/transfer.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_FILES = 10000 };

static bool is_hexadecimal(const char *text, size_t length)
{
    return strlen(text) == length && strspn(text, "0123456789abcdef") == length;
}

/* Whether no part of the path is empty, begins with a dot or holds a forbidden character. */
static bool is_safe(const char *name)
{
    for (const char *at = name; *at; at++) {
        bool begins = at == name || at[-1] == '/';
        if (iscntrl((unsigned char)*at) || *at == '\\' || (begins && (*at == '.' || *at == '/')))
            return false;
    }
    return *name && name[strlen(name) - 1] != '/' && strlen(name) < HUB_NAME_SIZE;
}

/* Reads a member of the list; skips it if it cannot be fetched. */
static qp_status read_file(const cJSON *from, const char *where, repository *out, qp_error *error)
{
    const char *name = "", *etag = "";
    repository_file *file = &out->files[out->n_files];
    *file = (repository_file){0};
    int64_t bytes = -1;
    TRY(json_get_string(from, "rfilename", where, &name, error));
    if (!is_safe(name)) return QP_OK;
    const cJSON *lfs = json_get(from, "lfs");
    file->large = cJSON_IsObject(lfs);
    TRY(json_get_string(file->large ? lfs : from, file->large ? "sha256" : "blobId", where, &etag,
                        error));
    TRY(json_get_i64(file->large ? lfs : from, "size", where, &bytes, error));
    if (!is_hexadecimal(etag, file->large ? 64 : 40) || bytes < 0) return QP_OK;
    snprintf(file->name, sizeof file->name, "%s", name);
    snprintf(file->etag, sizeof file->etag, "%s", etag);
    file->bytes = (uint64_t)bytes;
    out->n_files++;
    return QP_OK;
}

static qp_status read_answer(const cJSON *json, const char *where, repository *out, qp_error *error)
{
    const char *commit = "";
    const cJSON *files = json_get(json, "siblings"), *file;
    TRY(json_get_string(json, "sha", where, &commit, error));
    if (!is_hexadecimal(commit, 40) || !cJSON_IsArray(files) ||
        cJSON_GetArraySize(files) > MAX_FILES)
        return error_set(error, QP_FORMAT,
                         "%s: expected a commit (\"sha\") and a list of files (\"siblings\"); is "
                         "this a hub?",
                         where);
    snprintf(out->commit, sizeof out->commit, "%s", commit);
    out->files = calloc((size_t)cJSON_GetArraySize(files) + 1, sizeof *out->files);
    if (!out->files) return error_no_memory(error, "a list of files", 0);
    cJSON_ArrayForEach(file, files) TRY(read_file(file, where, out, error));
    return QP_OK;
}

qp_status repository_parse(const char *text, size_t length, const char *where, repository *out,
                           qp_error *error)
{
    cJSON *json = NULL;
    *out = (repository){0};
    TRY(json_parse(text, length, where, &json, error));
    qp_status status = read_answer(json, where, out, error);
    cJSON_Delete(json);
    return status;
}

qp_status repository_read(const hub *hub, const hub_reference *r, repository *out, qp_error *error)
{
    char url[4 * HUB_NAME_SIZE], name[2 * HUB_NAME_SIZE];
    strbuf answer = {0};
    long code;
    *out = (repository){0};
    snprintf(name, sizeof name, "%s/%s", r->owner, r->name);
    snprintf(url, sizeof url, "%s/api/models/%s/revision/main?blobs=true", hub->endpoint, name);
    qp_status status = transfer_get(hub, url, &answer, &code, error);
    if (status == QP_OK && code != 200) status = transfer_refused(hub, name, code, error);
    if (status == QP_OK)
        status = repository_parse(strbuf_text(&answer), answer.length, url, out, error);
    strbuf_free(&answer);
    return status;
}

void repository_free(repository *r)
{
    free(r->files);
    *r = (repository){0};
}

bool repository_is_of_type(const char *file, const char *type)
{
    size_t n = strlen(type);
    if (!name_ends_with(file, ".gguf")) return false;
    for (const char *at = file; *at; at++) {
        bool begins = at == file || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        bool ends =
            strncasecmp(at, type, n) == 0 && !(isalnum((unsigned char)at[n]) || at[n] == '_');
        if (begins && ends) return true;
    }
    return false;
}

/* Whether a file belongs to a safetensors model: weights, config, tokenizer, chat template. */
static bool belongs_to_directory(const char *file)
{
    static const char *const names[] = {"config.json",        "generation_config.json",
                                        "tokenizer.json",     "tokenizer_config.json",
                                        "tokenizer.model",    "special_tokens_map.json",
                                        "added_tokens.json",  "chat_template.jinja",
                                        "chat_template.json", "vocab.json",
                                        "merges.txt",         "model.safetensors.index.json"};
    if (strcmp(file, "additional_chat_templates/tool_use.jinja") == 0) return true;
    if (strchr(file, '/')) return false;
    if (strncmp(file, "model", 5) == 0 && name_ends_with(file, ".safetensors")) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], file) == 0) return true;
    return false;
}

/* If the name ends like "-00001-of-00003.gguf", the length before that; else 0. */
static size_t split_stem(const char *file)
{
    size_t length = strlen(file);
    const size_t tail = sizeof "-00001-of-00003.gguf" - 1;
    if (length <= tail) return 0;
    const char *at = file + length - tail;
    bool split = at[0] == '-' && strspn(at + 1, "0123456789") == 5 &&
                 strncmp(at + 6, "-of-", 4) == 0 && strspn(at + 10, "0123456789") == 5;
    return split ? length - tail : 0;
}

/* Keeps `chosen`, with its other parts if it is split. */
static void keep_file(repository *r, size_t chosen)
{
    const repository_file first = r->files[chosen];
    size_t stem = split_stem(first.name), kept = 0;
    for (size_t i = 0; i < r->n_files; i++) {
        const char *name = r->files[i].name;
        bool part = stem && split_stem(name) == stem && strncmp(name, first.name, stem) == 0;
        if (i == chosen || part) r->files[kept++] = r->files[i];
    }
    r->n_files = kept;
}

/* The first GGUF file, by name, of a type; n_files where there is none. */
static size_t find_type(const repository *r, const char *type)
{
    size_t best = r->n_files;
    for (size_t i = 0; i < r->n_files; i++) {
        bool fits = repository_is_of_type(r->files[i].name, type);
        if (fits && (best == r->n_files || strcmp(r->files[i].name, r->files[best].name) < 0))
            best = i;
    }
    return best;
}

static qp_status nothing_chosen(const repository *r, const hub_reference *reference,
                                qp_error *error)
{
    strbuf names = {0};
    for (size_t i = 0; i < r->n_files && names.length < 600; i++)
        if (name_ends_with(r->files[i].name, ".gguf") ||
            name_ends_with(r->files[i].name, ".safetensors"))
            strbuf_printf(&names, "%s%s", names.length ? ", " : "", r->files[i].name);
    qp_status status = error_set(
        error, QP_INVALID, "%s/%s has no file or type \"%s\"; it has %s", reference->owner,
        reference->name, *reference->select ? reference->select : "model",
        names.length ? strbuf_text(&names) : "neither GGUF nor safetensors files");
    strbuf_free(&names);
    return status;
}

qp_status repository_choose(repository *r, const hub_reference *reference, qp_error *error)
{
    static const char *const usual[] = {"Q4_K_M", "Q4_0", "Q8_0", "BF16", "F16", NULL};
    const char *select = reference->select;
    size_t chosen = r->n_files, kept = 0;
    for (size_t i = 0; i < r->n_files && *select; i++)
        if (strcmp(r->files[i].name, select) == 0 && name_ends_with(select, ".gguf")) chosen = i;
    if (*select && chosen == r->n_files) chosen = find_type(r, select);
    for (int i = 0; !*select && usual[i] && chosen == r->n_files; i++)
        chosen = find_type(r, usual[i]);
    if (chosen < r->n_files) return keep_file(r, chosen), QP_OK;
    bool weights = false;
    for (size_t i = 0; i < r->n_files; i++)
        weights |= name_ends_with(r->files[i].name, ".safetensors") &&
                   belongs_to_directory(r->files[i].name);
    if (*select || !weights) return nothing_chosen(r, reference, error);
    for (size_t i = 0; i < r->n_files; i++)
        if (belongs_to_directory(r->files[i].name)) r->files[kept++] = r->files[i];
    r->n_files = kept;
    return QP_OK;
}
