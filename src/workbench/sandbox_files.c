/* Landlock: see sandbox_files.h. Its numbers are written out, because headers may be older than the
 * kernel. */
#define _GNU_SOURCE /* O_PATH */
#include "workbench/sandbox_files.h"

#ifdef __linux__
#include "base/names.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446, VERSION = 1, PATH_BENEATH = 1 };

/* Rights to files, in the order of the kernel's bits. */
enum {
    EXECUTE = 1 << 0,
    WRITE = 1 << 1,
    READ = 1 << 2,
    LIST = 1 << 3,
    REMOVE_FILE = 1 << 5,
    MAKE_FILE = 1 << 8,
    TRUNCATE = 1 << 14,
    FILE_RIGHTS = EXECUTE | WRITE | READ | TRUNCATE,
    CHANGE = WRITE | REMOVE_FILE | MAKE_FILE | TRUNCATE,
};

enum { HEADERS_MOST = 256 };

typedef struct ruleset {
    uint64_t files, net, scoped;
} ruleset;

typedef struct __attribute__((packed)) rule {
    uint64_t rights;
    int32_t fd;
} rule;

int sandbox_landlock(void)
{
    const long version = syscall(CREATE_RULESET, NULL, 0, VERSION);
    return version > 0 ? (int)version : 0;
}

/* What each version added: the rights that it knows. */
static ruleset known_rights(int version)
{
    ruleset all = {.files = (1u << 13) - 1};
    if (version >= 2) all.files |= 1u << 13; /* moving between folders */
    if (version >= 3) all.files |= TRUNCATE;
    if (version >= 4) all.net = 3;           /* TCP: bind and connect */
    if (version >= 5) all.files |= 1u << 15; /* ioctl of devices */
    if (version >= 6) all.scoped = 3;        /* abstract sockets and signals of others */
    return all;
}

static size_t ruleset_bytes(int version)
{
    return version < 4 ? 8 : version < 6 ? 16 : 24;
}

typedef struct rules {
    int fd;
    uint64_t known;
} rules;

/* What is not there needs no rule. */
static void allow(const rules *r, const char *path, uint64_t rights, int flags)
{
    struct stat status;
    const int fd = open(path, O_PATH | O_CLOEXEC | flags);
    if (fd < 0) return;
    if (fstat(fd, &status) == 0 && !S_ISLNK(status.st_mode)) {
        if (!S_ISDIR(status.st_mode)) rights &= FILE_RIGHTS;
        const rule one = {rights & r->known, fd};
        syscall(ADD_RULE, r->fd, PATH_BENEATH, &one, 0);
    }
    close(fd);
}

static void allow_all(const rules *r, const char *const *paths, uint64_t rights)
{
    for (; *paths; paths++)
        allow(r, *paths, rights, 0);
}

/* The folders of a list with colons, as in PATH. */
static void allow_list(const rules *r, const char *list, uint64_t rights)
{
    char path[4096];
    while (list && *list) {
        const size_t length = strcspn(list, ":");
        if (length > 1 && length < sizeof path && list[0] == '/') {
            snprintf(path, sizeof path, "%.*s", (int)length, list);
            allow(r, path, rights, 0);
        }
        list += length + (list[length] == ':');
    }
}

/* Headers beside a source; never what a link names. */
static void allow_headers(const rules *r, const char *file)
{
    static const char *const endings[] = {".h", ".hpp", ".inc", ".cuh"};
    const char *slash = strrchr(file, '/');
    char folder[4096], path[4096];
    int n = 0;
    if (slash && (size_t)(slash - file) >= sizeof folder) return;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - file) + 1 : 2,
             slash ? file : "./");
    DIR *all = opendir(folder);
    for (struct dirent *entry; all && n < HEADERS_MOST && (entry = readdir(all));) {
        for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
            if (!name_ends_with(entry->d_name, endings[i])) continue;
            if (snprintf(path, sizeof path, "%s%s", folder, entry->d_name) >= (int)sizeof path)
                continue;
            allow(r, path, READ, O_NOFOLLOW);
            n++;
        }
    }
    if (all) closedir(all);
}

/* Libraries and headers of compilers that are not in /usr: beside the folder of the program. */
static void allow_toolchain(const rules *r, const char *program)
{
    static const char *const beside[] = {"", "/../lib", "/../lib64", "/../libexec", "/../include"};
    const char *path = getenv("PATH");
    char file[4096], real[PATH_MAX];
    while (path && *path) {
        const size_t length = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)length, path, program);
        path += length + (path[length] == ':');
        if (access(file, X_OK) != 0 || !realpath(file, real)) continue;
        allow(r, file, READ | EXECUTE, 0);
        *strrchr(real, '/') = '\0';
        for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
            snprintf(file, sizeof file, "%.4000s%s", real, beside[i]);
            allow(r, file, READ | LIST | EXECUTE, 0);
        }
        return;
    }
}

static const char *const libraries[] = {"/lib",       "/lib64",           "/usr/lib",
                                        "/usr/lib64", "/usr/local/lib",   "/nix/store",
                                        "/gnu/store", "/etc/ld.so.cache", NULL};
static const char *const tools[] = {"/bin", "/usr/bin", "/usr/local/bin", "/usr/libexec", NULL};
static const char *const headers[] = {"/usr/include", "/usr/local/include", NULL};
static const char *const machine_facts[] = {"/sys/devices/system", "/proc/cpuinfo", "/proc/meminfo",
                                            NULL};

static void add_rules(const rules *r, const sandbox *box)
{
    const bool compiler = box->kind == SANDBOX_COMPILER;
    allow_all(r, libraries, READ | LIST | (compiler ? EXECUTE : 0));
    allow_list(r, getenv("LD_LIBRARY_PATH"), READ | LIST);
    if (box->file) allow(r, box->file, READ, 0);
    if (box->folder) allow(r, box->folder, READ | LIST | (compiler ? CHANGE : 0), 0);
    if (compiler) {
        allow_all(r, tools, READ | LIST | EXECUTE);
        allow_all(r, headers, READ | LIST);
        allow(r, "/dev/null", READ | WRITE, 0);
        allow_toolchain(r, "cc");
        if (box->file) allow_headers(r, box->file);
    } else {
        allow_all(r, machine_facts, READ | LIST);
    }
}

bool sandbox_restrict_files(const sandbox *box)
{
    const int version = sandbox_landlock();
    ruleset all = known_rights(version);
    rules r = {.known = all.files};
    r.fd = (int)syscall(CREATE_RULESET, &all, ruleset_bytes(version), 0);
    if (r.fd < 0) return false;
    add_rules(&r, box);
    const bool done = syscall(RESTRICT_SELF, r.fd, 0) == 0;
    close(r.fd);
    return done;
}
#else
int sandbox_landlock(void)
{
    return 0;
}

bool sandbox_restrict_files(const sandbox *box)
{
    (void)box;
    return false;
}
#endif
