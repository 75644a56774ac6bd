/* Opens tokenizers by path: the kind of file determines its reader. */
#include "base/files.h"
#include "file/mapping.h"
#include "text/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT_FILE = 256 << 20 };

typedef qp_status mapped_reader(const mapping *map, const tokenizer_settings *settings,
                                tokenizer **out, qp_error *error);

static qp_status read_json(const mapping *map, const tokenizer_settings *settings, tokenizer **out,
                           qp_error *error)
{
    return tokenizer_build_json((const char *)map->data, map->size, map->path, settings, out,
                                error);
}

static qp_status read_sentencepiece(const mapping *map, const tokenizer_settings *settings,
                                    tokenizer **out, qp_error *error)
{
    return tokenizer_build_sentencepiece(map->data, map->size, map->path, settings, out, error);
}

static qp_status open_mapped(const char *path, mapped_reader *read,
                             const tokenizer_settings *settings, tokenizer **out, qp_error *error)
{
    *out = NULL;
    mapping map = {0};
    TRY(mapping_open(path, &map, error));
    qp_status status = read(&map, settings, out, error);
    mapping_close(&map);
    return status;
}

static qp_status open_gpt2(const char *vocab_path, const char *merges_path,
                           const tokenizer_settings *settings, tokenizer **out, qp_error *error)
{
    *out = NULL;
    char *merges = NULL;
    size_t length;
    cJSON *vocab = NULL;
    mapping map = {0};
    qp_status status = mapping_open(vocab_path, &map, error);
    if (status == QP_OK)
        status = json_parse((const char *)map.data, map.size, vocab_path, &vocab, error);
    if (status == QP_OK)
        status = file_read_text(merges_path, MAX_TEXT_FILE, &merges, &length, error);
    if (status == QP_OK)
        status = tokenizer_build_gpt2(vocab, merges, length, vocab_path, settings, out, error);
    free(merges);
    cJSON_Delete(vocab);
    mapping_close(&map);
    return status;
}

/* --- One kind of file. --- */

qp_status tokenizer_parse_json(const char *text, size_t length, const char *name, tokenizer **out,
                               qp_error *error)
{
    return tokenizer_build_json(text, length, name, NULL, out, error);
}

qp_status tokenizer_open_json(const char *path, tokenizer **out, qp_error *error)
{
    return open_mapped(path, read_json, NULL, out, error);
}

qp_status tokenizer_parse_sentencepiece(const void *data, size_t size, const char *name,
                                        tokenizer **out, qp_error *error)
{
    return tokenizer_build_sentencepiece(data, size, name, NULL, out, error);
}

qp_status tokenizer_open_sentencepiece(const char *path, tokenizer **out, qp_error *error)
{
    return open_mapped(path, read_sentencepiece, NULL, out, error);
}

qp_status tokenizer_open_gpt2(const char *vocab_path, const char *merges_path, tokenizer **out,
                              qp_error *error)
{
    return open_gpt2(vocab_path, merges_path, NULL, out, error);
}

/* --- A directory. --- */

static qp_status open_found(const char *directory, const tokenizer_settings *settings,
                            tokenizer **out, qp_error *error)
{
    char path[4096], second[4096];
    TRY(files_join(directory, "tokenizer.json", path, 4096, error));
    if (file_exists(path)) return open_mapped(path, read_json, settings, out, error);
    TRY(files_join(directory, "tokenizer.model", path, 4096, error));
    if (file_exists(path)) return open_mapped(path, read_sentencepiece, settings, out, error);
    TRY(files_join(directory, "vocab.json", path, 4096, error));
    TRY(files_join(directory, "merges.txt", second, 4096, error));
    if (file_exists(path) && file_exists(second))
        return open_gpt2(path, second, settings, out, error);
    return error_set(error, QP_IO,
                     "%s: no tokenizer there: expected tokenizer.json, tokenizer.model, or "
                     "vocab.json and merges.txt",
                     directory);
}

qp_status tokenizer_open_directory(const char *directory, tokenizer **out, qp_error *error)
{
    *out = NULL;
    tokenizer *tokenizer = NULL;
    tokenizer_settings settings;
    qp_status status = settings_read(directory, &settings, error);
    if (status == QP_OK) status = open_found(directory, &settings, &tokenizer, error);
    if (status == QP_OK) status = settings_apply(&settings, tokenizer, error);
    settings_free(&settings);
    if (status != QP_OK) {
        tokenizer_free(tokenizer);
        return status;
    }
    *out = tokenizer;
    return QP_OK;
}
