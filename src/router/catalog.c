/* The models of a folder or a file: see catalog.h. */
#include "router/catalog.h"

#include "base/hash.h"
#include "base/names.h"
#include "base/strbuf.h"
#include "hub/hub.h"
#include "text/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LINE_SIZE = 8192, WORDS_MOST = 256 };

static void free_entry(catalog_entry *e)
{
    for (size_t i = 0; i < e->n_options; i++)
        free(e->options[i]);
    free(e->options);
    free(e->name);
    free(e->path);
}

void catalog_free(catalog *c)
{
    for (size_t i = 0; i < c->count; i++)
        free_entry(c->entries + i);
    free(c->entries);
    *c = (catalog){0};
}

/* Adds a model, or returns NULL: no memory. */
static catalog_entry *add(catalog *c, const char *name, const char *path)
{
    catalog_entry *grown = realloc(c->entries, (c->count + 1) * sizeof *grown);
    if (!grown) return NULL;
    c->entries = grown;
    catalog_entry *e = grown + c->count;
    *e = (catalog_entry){.name = strdup(name), .path = strdup(path)};
    if (!e->name || !e->path) return free_entry(e), NULL;
    c->count++;
    struct stat file;
    if (stat(path, &file) == 0) {
        e->bytes = S_ISREG(file.st_mode) ? (uint64_t)file.st_size : 0;
        e->modified = file.st_mtime;
        e->file = hash_random(file.st_ino, (uint64_t)file.st_size,
                              (uint64_t)file.st_mtim.tv_sec * 1000000000 +
                                  (uint64_t)file.st_mtim.tv_nsec);
    }
    return e;
}

bool catalog_is_folder(const char *where)
{
    struct stat file;
    return stat(where, &file) == 0 && S_ISDIR(file.st_mode);
}

/* ---- A folder -------------------------------------------------------------------------------- */

/* A later part of a split model: NAME-00002-of-00003.gguf. */
static bool is_later_part(const char *name, size_t length)
{
    int part, parts, end = 0;
    if (length < 20) return false;
    return sscanf(name + length - 20, "-%5d-of-%5d.gguf%n", &part, &parts, &end) == 2 &&
           end == 20 && part > 1;
}

/* Names stand in JSON and in logs. */
static bool is_name(const char *file, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)file[i] < ' ' || file[i] == 127) return false;
    return *file != '.' && utf8_valid_run(file, length) == length;
}

static qp_status add_file(catalog *out, const char *folder, const char *file, qp_error *error)
{
    char path[HUB_PATH_SIZE], name[HUB_NAME_SIZE], beside[HUB_PATH_SIZE + 16];
    struct stat found;
    const size_t length = strlen(file);
    if (!is_name(file, length) || length >= sizeof name || is_later_part(file, length))
        return QP_OK;
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return QP_OK;
    if (stat(path, &found) != 0) return QP_OK;
    const bool gguf = name_ends_with(file, ".gguf") && S_ISREG(found.st_mode);
    snprintf(beside, sizeof beside, "%s/config.json", path);
    if (!gguf && stat(beside, &found) != 0) return QP_OK;
    snprintf(beside, sizeof beside, "%s.gguf", path);
    if (!gguf && stat(beside, &found) == 0) return QP_OK; /* which has the name */
    snprintf(name, sizeof name, "%.*s", (int)(gguf ? length - 5 : length), file);
    return add(out, name, path) ? QP_OK : error_no_memory(error, "the list of models", 0);
}

static qp_status add_pulled(void *context, const hub_entry *entry, qp_error *error)
{
    catalog_entry *e = add(context, entry->reference, entry->path);
    if (!e) return error_no_memory(error, "the list of models", 0);
    e->pulled = true;
    e->bytes = entry->bytes;
    return QP_OK;
}

static qp_status read_folder(const char *where, catalog *out, qp_error *error)
{
    const hub here = {.cache = where, .endpoint = "", .offline = true};
    DIR *folder = opendir(where);
    qp_status status = QP_OK;
    if (!folder)
        return error_set(error, QP_IO, "--models %s cannot be read: %s", where, strerror(errno));
    for (const struct dirent *d; status == QP_OK && (d = readdir(folder));)
        status = add_file(out, where, d->d_name, error);
    closedir(folder);
    return status == QP_OK ? hub_list(&here, add_pulled, out, error) : status;
}

/* ---- A file ---------------------------------------------------------------------------------- */

static qp_status add_line(catalog *out, const char *where, int number, char *line, qp_error *error)
{
    char *words[WORDS_MOST], *state;
    size_t n = 0;
    for (char *w = strtok_r(line, " \t\r\n", &state); w && *w != '#' && n < WORDS_MOST;
         w = strtok_r(NULL, " \t\r\n", &state))
        words[n++] = w;
    if (n == 0) return QP_OK;
    if (n == 1)
        return error_set(error, QP_FORMAT,
                         "%s:%d: expected a name, a model and options, found only '%.100s'", where,
                         number, words[0]);
    if (catalog_find(out, words[0]))
        return error_set(error, QP_FORMAT, "%s:%d: the name %.100s is there twice", where, number,
                         words[0]);
    catalog_entry *e = add(out, words[0], words[1]);
    if (e) e->options = calloc(n, sizeof *e->options);
    if (!e || !e->options) return error_no_memory(error, "the list of models", 0);
    for (size_t i = 2; i < n; i++) {
        e->options[e->n_options] = strdup(words[i]);
        if (!e->options[e->n_options++]) return error_no_memory(error, "the list of models", 0);
    }
    return QP_OK;
}

static qp_status read_list(const char *where, catalog *out, qp_error *error)
{
    char line[LINE_SIZE];
    FILE *file = fopen(where, "re");
    qp_status status = QP_OK;
    if (!file)
        return error_set(error, QP_IO, "--models %s cannot be read: %s", where, strerror(errno));
    for (int number = 1; status == QP_OK && fgets(line, sizeof line, file); number++)
        status = add_line(out, where, number, line, error);
    fclose(file);
    return status;
}

/* ---------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const catalog_entry *)a)->name, ((const catalog_entry *)b)->name);
}

qp_status catalog_read(const char *where, catalog *out, qp_error *error)
{
    catalog read = {0};
    qp_status status = catalog_is_folder(where) ? read_folder(where, &read, error)
                                                : read_list(where, &read, error);
    if (status != QP_OK) return catalog_free(&read), status;
    if (read.count) qsort(read.entries, read.count, sizeof *read.entries, by_name);
    catalog_free(out);
    *out = read;
    return QP_OK;
}

static uint64_t add_text(uint64_t word, const char *text)
{
    for (const char *c = text; *c; c++)
        word = hash_random(word, 0, (unsigned char)*c);
    return hash_mix(word);
}

uint64_t catalog_stamp(const catalog_entry *e)
{
    uint64_t word = add_text(e->file, e->path);
    for (size_t i = 0; i < e->n_options; i++)
        word = add_text(word, e->options[i]);
    return word;
}

const catalog_entry *catalog_find(const catalog *c, const char *name)
{
    static const char latest[] = ":latest";
    size_t length = strlen(name);
    for (int tries = 0; tries < 2; tries++) {
        for (size_t i = 0; i < c->count; i++) {
            const char *own = c->entries[i].name;
            if (strlen(own) == length && strncmp(own, name, length) == 0) return c->entries + i;
        }
        if (length < sizeof latest || strcmp(name + length - sizeof latest + 1, latest) != 0) break;
        length -= sizeof latest - 1;
    }
    return NULL;
}
