/* A folder of files from one input: see folder.h. */
#define _GNU_SOURCE /* memmem */
#include "folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

static void empty(void)
{
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] != '.') unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir) closedir(dir);
}

static void remove_folder(void)
{
    empty();
    rmdir(folder);
}

static void make(void)
{
    snprintf(folder, sizeof folder, "%s/quipu-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder)) abort();
    atexit(remove_folder);
}

/* A name that stays in the folder: letters, digits, - _ and points but at the beginning. */
static int is_name(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && length < 80 && name[0] != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
               length;
}

static void write_file(const char *name, const uint8_t *data, size_t size)
{
    char path[192];
    if (!is_name(name)) return;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file) return;
    fwrite(data, 1, size, file);
    fclose(file);
}

const char *folder_fill(const uint8_t *data, size_t size)
{
    static const char mark[] = "=== ";
    const uint8_t *end = data + size, *at = data;
    if (!folder[0]) make();
    empty();
    while (at && at < end) {
        at = memmem(at, (size_t)(end - at), mark, 4);
        const uint8_t *line = at ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        if (!line) break;
        char name[96];
        snprintf(name, sizeof name, "%.*s", (int)(line - at - 4 > 90 ? 90 : line - at - 4),
                 (const char *)at + 4);
        const uint8_t *next = memmem(line, (size_t)(end - line), "\n=== ", 5);
        const uint8_t *stop = next ? next : end;
        write_file(name, line + 1, stop > line ? (size_t)(stop - line - 1) : 0);
        at = next;
    }
    return folder;
}
