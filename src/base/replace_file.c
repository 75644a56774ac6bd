/* Files that appear whole: see replace_file.h. */
#include "base/replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

qp_status file_replacement_failed(const file_replacement *r, qp_error *error)
{
    return error_set(error, QP_IO, "%s cannot be written: %s", r->path, strerror(errno));
}

qp_status file_replacement_begin(const char *path, file_replacement *r, qp_error *error)
{
    struct stat opened, named;
    *r = (file_replacement){.path = path};
    if (snprintf(r->name, sizeof r->name, "%s.new", path) >= (int)sizeof r->name)
        return error_set(error, QP_INVALID, "%s: the path is too long", path);
    const int fd = open(r->name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return file_replacement_failed(r, error);
    const bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    /* The process that had the lock may have renamed the file since it was opened. */
    if (!locked || fstat(fd, &opened) != 0 || stat(r->name, &named) != 0 ||
        opened.st_ino != named.st_ino || opened.st_dev != named.st_dev) {
        close(fd);
        return error_set(error, QP_IO, "another process writes %s now", path);
    }
    r->stream = ftruncate(fd, 0) == 0 ? fdopen(fd, "wb") : NULL;
    if (r->stream) return QP_OK;
    const qp_status status = file_replacement_failed(r, error);
    close(fd);
    return status;
}

qp_status file_replacement_end(file_replacement *r, qp_error *error)
{
    if (fflush(r->stream) != 0 || fsync(fileno(r->stream)) != 0 || rename(r->name, r->path) != 0)
        return file_replacement_failed(r, error);
    fclose(r->stream);
    r->stream = NULL;
    return QP_OK;
}

void file_replacement_drop(file_replacement *r)
{
    if (!r->stream) return;
    unlink(r->name);
    fclose(r->stream);
    r->stream = NULL;
}
