/* Files as memory: see mapping.h. */
#include "file/mapping.h"

#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Open mappings, for mapping_at(): a slot is free while its path is NULL, and its path is set last
 * and cleared first. More mappings than slots are not found. */
enum { SLOTS = 1024 };

static struct {
    _Atomic(const char *) path;
    _Atomic(const uint8_t *) data;
    _Atomic size_t size;
} slots[SLOTS];

static const char taken[] = "";

static void remember(const mapping *map)
{
    for (int i = 0; i < SLOTS; i++) {
        const char *none = NULL;
        if (!atomic_compare_exchange_strong(&slots[i].path, &none, taken)) continue;
        atomic_store(&slots[i].data, map->data);
        atomic_store(&slots[i].size, map->size);
        atomic_store(&slots[i].path, map->path);
        return;
    }
}

static void forget(const mapping *map)
{
    for (int i = 0; i < SLOTS; i++)
        if (atomic_load(&slots[i].path) == map->path) {
            atomic_store(&slots[i].size, 0);
            atomic_store(&slots[i].path, NULL);
        }
}

const char *mapping_at(const void *address)
{
    for (int i = 0; i < SLOTS; i++) {
        const char *path = atomic_load(&slots[i].path);
        const uintptr_t data = (uintptr_t)atomic_load(&slots[i].data);
        if (path && path != taken && (uintptr_t)address - data < atomic_load(&slots[i].size))
            return path;
    }
    return NULL;
}

static uint64_t stamp_of(const struct stat *info)
{
    const uint64_t seconds = (uint64_t)info->st_mtim.tv_sec;
    return hash_random((uint64_t)info->st_size, seconds, (uint64_t)info->st_mtim.tv_nsec);
}

/* Opens a regular file for reading. O_NONBLOCK so that opening a named pipe does not wait. `stamp`
 * may be NULL. */
static qp_status open_regular(const char *path, int *fd, size_t *size, uint64_t *stamp,
                              qp_error *error)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return error_set(error, QP_IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat info;
    const char *why = NULL;
    if (fstat(*fd, &info) != 0)
        why = strerror(errno);
    else if (S_ISDIR(info.st_mode))
        why = "expected a file, found a directory";
    else if (!S_ISREG(info.st_mode))
        why = "expected a regular file";
    else if (info.st_size < 0 || (uint64_t)info.st_size > SIZE_MAX / 2)
        why = "the file is too large for this machine";
    if (why) {
        close(*fd);
        return error_set(error, QP_IO, "%s: cannot read: %s", path, why);
    }
    *size = (size_t)info.st_size;
    if (stamp) *stamp = stamp_of(&info);
    return QP_OK;
}

qp_status mapping_open(const char *path, mapping *out, qp_error *error)
{
    int fd;
    mapping map = {0};
    TRY(open_regular(path, &fd, &map.size, &map.stamp, error));
    qp_status status = QP_OK;
    void *data = MAP_FAILED;
    if (map.size == 0) {
        status = error_set(error, QP_FORMAT, "%s: the file is empty", path);
        goto fail;
    }
    data = mmap(NULL, map.size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        status = error_set(error, QP_IO, "%s: cannot map %zu bytes: %s", path, map.size,
                           strerror(errno));
        goto fail;
    }
    map.data = data;
    map.fd = fd;
    map.path = strdup(path);
    if (!map.path) {
        munmap(data, map.size);
        status = error_no_memory(error, "a file's path", strlen(path) + 1);
        goto fail;
    }
    remember(&map);
    *out = map;
    return QP_OK;
fail:
    close(fd);
    return status;
}

bool mapping_read(const mapping *map, const void *at, size_t bytes, void *dst)
{
    const uintptr_t begin = (uintptr_t)map->data, from = (uintptr_t)at;
    if (from < begin || from - begin > map->size || bytes > map->size - (from - begin))
        return false;
    for (size_t done = 0; done < bytes;) {
        const off_t place = (off_t)(from - begin + done);
        const ssize_t n = pread(map->fd, (char *)dst + done, bytes - done, place);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) { /* as any other access to what the file has lost */
            memcpy((char *)dst + done, (const char *)at + done, bytes - done);
            break;
        }
        done += (size_t)n;
    }
    return true;
}

void mapping_close(mapping *map)
{
    if (map->data) {
        forget(map);
        munmap((void *)(uintptr_t)map->data, map->size);
        close(map->fd);
    }
    free(map->path);
    *map = (mapping){0};
}

/* Fills `data` from the file; fewer bytes than expected mean that the file is being changed. */
static qp_status read_all(int fd, const char *path, char *data, size_t size, qp_error *error)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, data + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_set(error, QP_IO, "%s: cannot read: %s", path, strerror(errno));
        if (n == 0)
            return error_set(error, QP_IO,
                             "%s: the file shrank while it was read: expected %zu bytes, found %zu",
                             path, size, done);
        done += (size_t)n;
    }
    return QP_OK;
}

qp_status file_read_text(const char *path, size_t limit, char **text, size_t *length,
                         qp_error *error)
{
    int fd;
    size_t size = 0;
    TRY(open_regular(path, &fd, &size, NULL, error));
    qp_status status;
    char *data = NULL;
    if (size > limit) {
        status = error_set(error, QP_FORMAT, "%s: expected at most %zu bytes, found %zu", path,
                           limit, size);
        goto fail;
    }
    data = malloc(size + 1);
    if (!data) {
        status = error_no_memory(error, path, size + 1);
        goto fail;
    }
    status = read_all(fd, path, data, size, error);
    if (status != QP_OK) goto fail;
    close(fd);
    data[size] = '\0';
    *text = data;
    *length = size;
    return QP_OK;
fail:
    free(data);
    close(fd);
    return status;
}

bool file_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

bool file_is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}
