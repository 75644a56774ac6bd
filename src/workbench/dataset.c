/* Reads the files of a data set: see dataset.h. */
#define _GNU_SOURCE /* scandir */
#include "workbench/dataset.h"

#include "base/files.h"
#include "base/json.h"
#include "base/names.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_DEPTH = 8, FILE_MAX_BYTES = 256 << 20 };

qp_status dataset_add(dataset_list *list, cJSON *tree, const char *where, qp_error *error)
{
    char *copy = strdup(where);
    dataset_item *items = copy && (list->n & (list->n - 1)) == 0 /* a power of two: grow */
                              ? realloc(list->items, (list->n ? 2 * list->n : 1) * sizeof *items)
                              : list->items;
    if (!copy || !items) {
        free(copy);
        cJSON_Delete(tree);
        return error_no_memory(error, where, sizeof *items);
    }
    list->items = items;
    items[list->n++] = (dataset_item){tree, copy};
    return QP_OK;
}

static qp_status read_object(dataset_list *list, const char *text, size_t length, const char *where,
                             qp_error *error)
{
    cJSON *tree;
    TRY(json_parse(text, length, where, &tree, error));
    if (cJSON_IsObject(tree)) return dataset_add(list, tree, where, error);
    cJSON_Delete(tree);
    return error_set(error, QP_FORMAT, "%s: expected a JSON object", where);
}

static qp_status read_lines(dataset_list *list, const char *text, const char *path, qp_error *error)
{
    char where[4200];
    for (int line = 1; *text; line++) {
        size_t length = strcspn(text, "\n");
        snprintf(where, sizeof where, "%s:%d", path, line);
        if (strspn(text, " \t\r") < length) TRY(read_object(list, text, length, where, error));
        text += length + (text[length] == '\n');
    }
    return QP_OK;
}

static qp_status read_one(dataset_list *list, const char *path, qp_error *error)
{
    strbuf text = {0};
    qp_status status = files_read(path, FILE_MAX_BYTES, &text, error);
    if (status == QP_OK && strlen(strbuf_text(&text)) != text.length)
        status = error_set(error, QP_FORMAT, "%s: it holds a byte of 0", path);
    if (status == QP_OK)
        status = name_ends_with(path, ".jsonl")
                     ? read_lines(list, strbuf_text(&text), path, error)
                     : read_object(list, strbuf_text(&text), text.length, path, error);
    strbuf_free(&text);
    return status;
}

static int is_wanted(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static qp_status read_path(dataset_list *list, const char *path, int depth, qp_error *error);

static qp_status read_folder(dataset_list *list, const char *path, int depth, qp_error *error)
{
    struct dirent **entries;
    qp_status status = QP_OK;
    if (depth == MAX_DEPTH)
        return error_set(error, QP_FORMAT, "%s: folders are nested more than %d deep", path,
                         MAX_DEPTH);
    int n = scandir(path, &entries, is_wanted, alphasort);
    if (n < 0) return error_set(error, QP_IO, "%s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char inner[4096];
        int length = snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
        if (status == QP_OK && length < (int)sizeof inner)
            status = read_path(list, inner, depth + 1, error);
        free(entries[i]);
    }
    free(entries);
    return status;
}

static qp_status read_path(dataset_list *list, const char *path, int depth, qp_error *error)
{
    struct stat about;
    if (stat(path, &about) != 0) return QP_OK;
    if (S_ISDIR(about.st_mode)) return read_folder(list, path, depth, error);
    if (!name_ends_with(path, ".json") && !name_ends_with(path, ".jsonl")) return QP_OK;
    return read_one(list, path, error);
}

qp_status dataset_read(const char *path, dataset_list *out, qp_error *error)
{
    return read_path(out, path, 0, error);
}

qp_status dataset_read_part(const char *folder, const char *part, dataset_list *out,
                            qp_error *error)
{
    char path[4096];
    TRY(files_join(folder, part, path, sizeof path, error));
    return dataset_read(path, out, error);
}

void dataset_free(dataset_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        cJSON_Delete(list->items[i].tree);
        free(list->items[i].where);
    }
    free(list->items);
    *list = (dataset_list){0};
}

const dataset_item *dataset_find(const dataset_list *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++) {
        const char *found = cJSON_GetStringValue(json_get(list->items[i].tree, "name"));
        if (found && strcmp(found, name) == 0) return &list->items[i];
    }
    return NULL;
}
