/* A disk that hangs, for programs that are started with this library in LD_PRELOAD:
 * QUIPU_HANGS=NAME, or NAME:N, is the function of the C library whose first (Nth) call for a file
 * below QUIPU_HANGS_BELOW does not return. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static atomic_long calls;

static void hang_if_chosen(const char *name, const char *path)
{
    static const char said[] = "the disk hangs\n";
    const char *chosen = getenv("QUIPU_HANGS"), *below = getenv("QUIPU_HANGS_BELOW");
    const size_t length = chosen ? strcspn(chosen, ":") : 0;
    if (!chosen || !below || strlen(name) != length || memcmp(name, chosen, length) != 0 ||
        strncmp(path, below, strlen(below)) != 0)
        return;
    if (atomic_fetch_add(&calls, 1) + 1 != (chosen[length] ? atol(chosen + length + 1) : 1)) return;
    ssize_t ignored = write(STDERR_FILENO, said, sizeof said - 1);
    (void)ignored;
    for (;;)
        pause();
}

static void hang_at_file(const char *name, int fd)
{
    char link[64], path[PATH_MAX] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) path[length] = '\0';
    hang_if_chosen(name, path);
}

/* The C library's function of this name. POSIX allows what ISO C has no cast for. */
#define REAL(name, ...)                                                                            \
    static __typeof__(name) *real;                                                                 \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                          \
    return real(__VA_ARGS__)

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    hang_if_chosen("open", path);
    REAL(open, path, flags, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    hang_if_chosen("fopen", path);
    REAL(fopen, path, mode);
}

size_t fread(void *to, size_t size, size_t count, FILE *file)
{
    hang_at_file("fread", fileno(file));
    REAL(fread, to, size, count, file);
}

size_t fwrite(const void *from, size_t size, size_t count, FILE *file)
{
    hang_at_file("fwrite", fileno(file));
    REAL(fwrite, from, size, count, file);
}

ssize_t read(int fd, void *to, size_t count)
{
    hang_at_file("read", fd);
    REAL(read, fd, to, count);
}

ssize_t pread(int fd, void *to, size_t count, off_t at)
{
    hang_at_file("pread", fd);
    REAL(pread, fd, to, count, at);
}

int fsync(int fd)
{
    hang_at_file("fsync", fd);
    REAL(fsync, fd);
}

int ftruncate(int fd, off_t length)
{
    hang_at_file("ftruncate", fd);
    REAL(ftruncate, fd, length);
}

int rename(const char *from, const char *to)
{
    hang_if_chosen("rename", to);
    REAL(rename, from, to);
}

int unlink(const char *path)
{
    hang_if_chosen("unlink", path);
    REAL(unlink, path);
}
