/* Files read and written whole: see files.h. */
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *files_last(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

qp_status files_path_too_long(const char *path, qp_error *error)
{
    return error_set(error, QP_INVALID, "%.60s...: the path is too long", path);
}

qp_status files_join(const char *folder, const char *name, char *path, size_t size, qp_error *error)
{
    if (snprintf(path, size, "%s/%s", folder, name) < (int)size) return QP_OK;
    return files_path_too_long(folder, error);
}

qp_status files_make_folders(const char *path, qp_error *error)
{
    char folder[4096];
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
        return files_path_too_long(path, error);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST)
            return error_set(error, QP_IO, "%s cannot be made: %s", folder, strerror(errno));
        *slash = '/';
    }
    return QP_OK;
}

static qp_status write_to(const char *path, const char *mode, const void *bytes, size_t length,
                          qp_error *error)
{
    TRY(files_make_folders(path, error));
    FILE *file = fopen(path, mode);
    bool written = file && (length == 0 || fwrite(bytes, 1, length, file) == length);
    int why = errno;
    if (file && fclose(file) != 0) written = false;
    return written ? QP_OK
                   : error_set(error, QP_IO, "%s cannot be written: %s", path, strerror(why));
}

qp_status files_write(const char *path, const void *bytes, size_t length, qp_error *error)
{
    return write_to(path, "wb", bytes, length, error);
}

qp_status files_append(const char *path, const void *bytes, size_t length, qp_error *error)
{
    return write_to(path, "ab", bytes, length, error);
}

qp_status files_check_writable(const char *path, qp_error *error)
{
    TRY(files_make_folders(path, error));
    bool is_new = access(path, F_OK) != 0;
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (file < 0) return error_set(error, QP_IO, "%s cannot be written: %s", path, strerror(errno));
    close(file);
    if (is_new) unlink(path);
    return QP_OK;
}

qp_status files_read_stream(FILE *file, const char *name, size_t most, strbuf *out, qp_error *error)
{
    char block[65536];
    size_t count = sizeof block, start = out->length;
    /* A short count ends the reading: at a terminal, another read would wait for a second
     * Ctrl-D. */
    while (count == sizeof block) {
        count = fread(block, 1, sizeof block, file);
        if (count > most - (out->length - start))
            return error_set(error, QP_FORMAT, "%s: expected at most %zu bytes, found more", name,
                             most);
        if (!strbuf_append(out, block, count))
            return error_no_memory(error, name, out->length + count);
    }
    if (!ferror(file)) return QP_OK;
    return error_set(error, QP_IO, "%s: cannot be read: %s", name, strerror(errno));
}

qp_status files_read(const char *path, size_t most, strbuf *out, qp_error *error)
{
    FILE *file = fopen(path, "rb");
    if (!file) return error_set(error, QP_IO, "%s: cannot be opened: %s", path, strerror(errno));
    qp_status status = files_read_stream(file, path, most, out, error);
    fclose(file);
    return status;
}
