/* A folder in /tmp of a suite's own, for cmocka's setups and teardowns. */
#pragma once

#include "test.h"

#include <dirent.h>
#include <unistd.h>

static char folder[64];

static inline int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/quipu-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

/* The path of a file there; valid for the next three calls. */
static inline const char *in_folder(const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline int files_in_folder(void)
{
    int n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    if (dir) closedir(dir);
    return n;
}

static inline int clear_folder(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] != '.') unlink(in_folder(entry->d_name));
    }
    if (dir) closedir(dir);
    return 0;
}

static inline int remove_folder(void **state)
{
    clear_folder(state);
    return rmdir(folder);
}

static inline void write_file(const char *name, const void *data, size_t size)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}
