/* Packed weights in files: see pack_cache.h. */
#define _GNU_SOURCE
#include "vm/pack_cache.h"

#include "base/checked.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/platform.h"
#include "base/replace_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BLOCK = 1 << 20,   /* bytes of a checksum */
    DATA_AT = 2 << 20, /* alignment of the data: that of a huge page */
};

static const char magic[16] = "quipu packed 1";
static const char suffix[] = ".packed";

typedef struct file_header {
    char magic[sizeof magic];
    uint64_t key[2], shape, bytes;
    uint64_t checksum; /* of the members before it and of the table after the header */
} file_header;

_Static_assert(sizeof(file_header) == 56, "no padding between members");

/* A file that is read or written. */
typedef struct packed_file {
    file_header header;
    uint64_t n_blocks, *sums; /* [n_blocks] */
    const char *data;         /* [header.bytes] */
    atomic_bool damaged;
} packed_file;

static size_t data_at(const packed_file *f)
{
    return round_up(sizeof f->header + f->n_blocks * sizeof *f->sums, DATA_AT);
}

static qp_status describe(packed_file *f, pack_cache *cache, uint64_t shape, size_t bytes)
{
    *f = (packed_file){.n_blocks = (bytes + BLOCK - 1) / BLOCK};
    f->header =
        (file_header){.key = {cache->key[0], cache->key[1]}, .shape = shape, .bytes = bytes};
    memcpy(f->header.magic, magic, sizeof magic);
    cache->bytes = bytes;
    snprintf(cache->path, sizeof cache->path, "%s/%016" PRIx64 "%s", cache->folder,
             hash_random(cache->key[0], cache->key[1], shape), suffix);
    f->sums = malloc(f->n_blocks * sizeof *f->sums);
    return f->sums ? QP_OK : error_no_memory(NULL, "checksums", f->n_blocks * sizeof *f->sums);
}

static uint64_t sum_header(const packed_file *f)
{
    const uint64_t sum = checksum(&f->header, offsetof(file_header, checksum), 1);
    return checksum(f->sums, f->n_blocks * sizeof *f->sums, sum);
}

/* Depends on the block's place, so that one cannot stand in another's. */
static uint64_t sum_block(const packed_file *f, uint64_t i)
{
    const size_t left = f->header.bytes - i * BLOCK;
    return checksum(f->data + i * BLOCK, left < BLOCK ? left : BLOCK, i);
}

/* ---- load ---------------------------------------------------------------------------------- */

/* What is wrong with an open file; NULL: nothing. */
static const char *refuse(const packed_file *f, int fd)
{
    struct stat file;
    if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) return "is no regular file";
    if (file.st_uid != geteuid() || file.st_mode & (S_IWGRP | S_IWOTH))
        return "belongs to another user, or others may write it";
    if ((uint64_t)file.st_size != data_at(f) + f->header.bytes) return "is cut off";
    return NULL;
}

static bool read_at(int fd, void *data, size_t bytes, size_t at)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = pread(fd, (char *)data + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static const char *read_header(packed_file *f, int fd)
{
    file_header found;
    if (!read_at(fd, &found, sizeof found, 0) ||
        !read_at(fd, f->sums, f->n_blocks * sizeof *f->sums, sizeof found) ||
        memcmp(&found, &f->header, offsetof(file_header, checksum)) != 0 ||
        found.checksum != sum_header(f))
        return "is damaged: its header is wrong";
    return NULL;
}

/* Brings a share into memory, and verifies it. */
static void verify_share(void *context, int worker, int n_workers)
{
    packed_file *f = context;
    int64_t begin, end;
    thread_share((int64_t)f->n_blocks, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end && !atomic_load_explicit(&f->damaged, memory_order_relaxed);
         i++) {
        const size_t left = f->header.bytes - (size_t)i * BLOCK;
        buffer_populate(f->data + i * BLOCK, left < BLOCK ? left : BLOCK);
        if (sum_block(f, (uint64_t)i) != f->sums[i]) atomic_store(&f->damaged, true);
    }
}

static const char *map_data(packed_file *f, int fd, thread_pool *pool, buffer *out)
{
    void *data = mmap(NULL, f->header.bytes, PROT_READ, MAP_PRIVATE, fd, (off_t)data_at(f));
    if (data == MAP_FAILED) return "cannot be mapped";
    platform_advise(data, f->header.bytes,
                    PLATFORM_HUGE_PAGES); /* some systems have them for files too */
    f->data = data;
    *out = (buffer){.data = data, .bytes = f->header.bytes};
    thread_pool_run(pool, verify_share, f);
    if (!f->damaged) return NULL;
    buffer_free(out);
    return "is damaged: a checksum is wrong";
}

static const char *load(packed_file *f, int fd, thread_pool *pool, buffer *out)
{
    const char *why = refuse(f, fd);
    if (!why) why = read_header(f, fd);
    if (!why) why = map_data(f, fd, pool, out);
    if (!why) futimens(fd, NULL); /* the files used last stay */
    return why;
}

bool pack_cache_load(pack_cache *cache, thread_pool *pool, uint64_t shape, size_t bytes,
                     buffer *out)
{
    packed_file f;
    if (describe(&f, cache, shape, bytes) != QP_OK) return false;
    const int fd = open(cache->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const char *why = fd >= 0 ? load(&f, fd, pool, out) : errno == ENOENT ? "" : "cannot be opened";
    if (fd >= 0) close(fd);
    free(f.sums);
    cache->loaded = !why;
    snprintf(cache->load_problem, sizeof cache->load_problem, "%s", why ? why : "");
    return !why;
}

/* ---- save ---------------------------------------------------------------------------------- */

/* A file of the folder. */
typedef struct kept_file {
    char name[64];
    struct timespec used;
} kept_file;

/* The packed file that has not been used for longest, and the bytes of all; false: there is none.
 */
static bool find_oldest(DIR *folder, kept_file *oldest, uint64_t *total)
{
    bool found = false;
    *total = 0;
    rewinddir(folder);
    for (struct dirent *e; (e = readdir(folder));) {
        struct stat s;
        const size_t length = strlen(e->d_name), end = sizeof suffix - 1;
        if (length != 16 + end || strcmp(e->d_name + length - end, suffix) != 0 ||
            fstatat(dirfd(folder), e->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(s.st_mode))
            continue;
        *total += (uint64_t)s.st_size;
        if (found &&
            (s.st_mtim.tv_sec > oldest->used.tv_sec || (s.st_mtim.tv_sec == oldest->used.tv_sec &&
                                                        s.st_mtim.tv_nsec >= oldest->used.tv_nsec)))
            continue;
        *oldest = (kept_file){.used = s.st_mtim};
        memcpy(oldest->name, e->d_name, length + 1);
        found = true;
    }
    return found;
}

/* Removes old files until `bytes` more are within the limit. */
static void make_room(pack_cache *cache, uint64_t bytes)
{
    kept_file oldest;
    uint64_t total;
    DIR *folder = opendir(cache->folder);
    while (folder && find_oldest(folder, &oldest, &total) && total + bytes > cache->most) {
        if (unlinkat(dirfd(folder), oldest.name, 0) != 0) break;
        cache->removed++;
    }
    if (folder) closedir(folder);
}

static void sum_share(void *context, int worker, int n_workers)
{
    packed_file *f = context;
    int64_t begin, end;
    thread_share((int64_t)f->n_blocks, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        f->sums[i] = sum_block(f, (uint64_t)i);
}

static qp_status write_all(const packed_file *f, file_replacement *to, progress *progress,
                           qp_error *error)
{
    enum { PIECE = 8 * BLOCK };
    if (fwrite(&f->header, sizeof f->header, 1, to->stream) != 1 ||
        fwrite(f->sums, sizeof *f->sums, f->n_blocks, to->stream) != f->n_blocks ||
        fseeko(to->stream, (off_t)data_at(f), SEEK_SET) != 0)
        return file_replacement_failed(to, error);
    for (size_t at = 0; at < f->header.bytes; at += PIECE) {
        const size_t left = f->header.bytes - at, n = left < PIECE ? left : PIECE;
        if (fwrite(f->data + at, n, 1, to->stream) != 1) return file_replacement_failed(to, error);
        progress_advance(progress, n);
    }
    return file_replacement_end(to, error);
}

static qp_status save(pack_cache *cache, packed_file *f, thread_pool *pool, progress *progress,
                      qp_error *error)
{
    file_replacement to = {0};
    const uint64_t bytes = data_at(f) + f->header.bytes;
    if (bytes > cache->most)
        return error_set(error, QP_NO_MEMORY, "it takes %.2f GB of the %.2f GB that are allowed",
                         (double)bytes * 1e-9, (double)cache->most * 1e-9);
    TRY(files_make_folders(cache->path, error));
    make_room(cache, bytes);
    thread_pool_run(pool, sum_share, f);
    f->header.checksum = sum_header(f);
    qp_status status = file_replacement_begin(cache->path, 0600, &to, error);
    if (status == QP_OK) status = write_all(f, &to, progress, error);
    file_replacement_drop(&to);
    return status;
}

void pack_cache_save(pack_cache *cache, thread_pool *pool, uint64_t shape, const buffer *packed,
                     progress *progress)
{
    packed_file f;
    qp_error why = {0};
    qp_status status = describe(&f, cache, shape, packed->bytes);
    f.data = packed->data;
    progress_begin(progress, "saving arranged weights", packed->bytes);
    if (status == QP_OK) status = save(cache, &f, pool, progress, &why);
    progress_end(progress);
    cache->saved = status == QP_OK;
    snprintf(cache->save_problem, sizeof cache->save_problem, "%.500s", why.message);
    free(f.sums);
}
