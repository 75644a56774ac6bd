/* Files that appear whole: see replace_file.h. */
#include "base/replace_file.h"

#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Those that are being written, for file_replacement_drop_all(). */
enum { SLOTS = 8 };
static _Atomic(file_replacement *) written[SLOTS];

static void change_slot(file_replacement *from, file_replacement *to)
{
    for (int i = 0; i < SLOTS; i++) {
        file_replacement *expected = from;
        if (atomic_compare_exchange_strong(&written[i], &expected, to)) return;
    }
}

void file_replacement_drop_all(void)
{
    for (int i = 0; i < SLOTS; i++) {
        const file_replacement *r = atomic_load(&written[i]);
        if (r) unlink(r->name);
    }
}

qp_status file_replacement_failed(const file_replacement *r, qp_error *error)
{
    return error_set(error, QP_IO, "%s cannot be written: %s", r->path, strerror(errno));
}

/* Whether the file is this user's, has no other name, and still has the one that it was opened by.
 */
static bool is_own(int fd, const char *name)
{
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && stat(name, &named) == 0 && S_ISREG(opened.st_mode) &&
           opened.st_uid == geteuid() && opened.st_nlink == 1 && opened.st_ino == named.st_ino &&
           opened.st_dev == named.st_dev;
}

qp_status file_replacement_begin(const char *path, unsigned mode, file_replacement *r,
                                 qp_error *error)
{
    *r = (file_replacement){.path = path};
    if (snprintf(r->name, sizeof r->name, "%s.new", path) >= (int)sizeof r->name)
        return files_path_too_long(path, error);
    const int fd = open(r->name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, (mode_t)mode);
    if (fd < 0) return file_replacement_failed(r, error);
    /* The process that had the lock may have renamed the file since it was opened. */
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || !is_own(fd, r->name)) {
        close(fd);
        return error_set(error, QP_IO, "another process or user writes %s now: %s is theirs", path,
                         r->name);
    }
    r->stream = ftruncate(fd, 0) == 0 ? fdopen(fd, "wb") : NULL;
    if (r->stream) change_slot(NULL, r);
    if (r->stream) return QP_OK;
    const qp_status status = file_replacement_failed(r, error);
    close(fd);
    return status;
}

qp_status file_rename(const char *from, const char *to, qp_error *error)
{
    const int fd = open(from, O_RDONLY | O_CLOEXEC);
    const bool safe = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    if (safe && rename(from, to) == 0) return QP_OK;
    return error_set(error, QP_IO, "%s cannot be written: %s", to, strerror(errno));
}

qp_status file_replacement_end(file_replacement *r, qp_error *error)
{
    if (fflush(r->stream) != 0 || fsync(fileno(r->stream)) != 0 || rename(r->name, r->path) != 0)
        return file_replacement_failed(r, error);
    change_slot(r, NULL);
    fclose(r->stream);
    r->stream = NULL;
    return QP_OK;
}

void file_replacement_remove_left(const char *name)
{
    const int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && is_own(fd, name)) unlink(name);
    close(fd);
}

void file_replacement_drop(file_replacement *r)
{
    if (!r->stream) return;
    change_slot(r, NULL);
    unlink(r->name);
    fclose(r->stream);
    r->stream = NULL;
}
