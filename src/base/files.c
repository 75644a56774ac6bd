/* Files read and written whole: see files.h. */
#include "base/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static qp_status make_folders(const char *path, qp_error *error)
{
    char folder[4096];
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
        return error_set(error, QP_INVALID, "%.60s...: the path is too long", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST)
            return error_set(error, QP_IO, "%s cannot be made: %s", folder, strerror(errno));
        *slash = '/';
    }
    return QP_OK;
}

qp_status files_write(const char *path, const void *bytes, size_t length, qp_error *error)
{
    TRY(make_folders(path, error));
    FILE *file = fopen(path, "wb");
    bool written = file && fwrite(bytes, 1, length, file) == length;
    int why = errno;
    if (file && fclose(file) != 0) written = false;
    return written ? QP_OK
                   : error_set(error, QP_IO, "%s cannot be written: %s", path, strerror(why));
}

qp_status files_read(const char *path, size_t most, strbuf *out, qp_error *error)
{
    FILE *file = fopen(path, "rb");
    if (!file) return error_set(error, QP_IO, "%s cannot be opened: %s", path, strerror(errno));
    char block[65536];
    size_t count, start = out->length;
    while ((count = fread(block, 1, sizeof block, file)) > 0 && out->length - start <= most)
        strbuf_append(out, block, count);
    bool failed = ferror(file);
    fclose(file);
    if (failed) return error_set(error, QP_IO, "%s cannot be read", path);
    if (out->length - start > most)
        return error_set(error, QP_FORMAT, "%s: larger than %zu bytes", path, most);
    return QP_OK;
}
