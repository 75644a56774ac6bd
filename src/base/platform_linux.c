/* Linux: see platform.h. */
#define _GNU_SOURCE
#include "base/platform.h"

#include "base/checked.h"
#include "base/keyed_hash.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Reads the start of a small file. Returns its length, 0 where there is none. */
static size_t read_text(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    const size_t length = file ? fread(text, 1, size - 1, file) : 0;
    if (file) fclose(file);
    text[length] = '\0';
    return length;
}

/* --- processors ------------------------------------------------------------------------------ */

int platform_processors(int numbers[PLATFORM_PROCESSORS])
{
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && n < PLATFORM_PROCESSORS; cpu++)
        if (CPU_ISSET(cpu, &set)) numbers[n++] = cpu;
    return n;
}

void platform_bind(const int *numbers, int n)
{
    cpu_set_t own;
    CPU_ZERO(&own);
    for (int i = 0; i < n; i++)
        CPU_SET(numbers[i], &own);
    sched_setaffinity(0, sizeof own, &own);
}

bool platform_bound_by_parent(void)
{
    cpu_set_t own, parents;
    return sched_getaffinity(0, sizeof own, &own) == 0 &&
           sched_getaffinity(getppid(), sizeof parents, &parents) == 0 &&
           !CPU_EQUAL(&own, &parents);
}

unsigned long platform_hardware_bits(unsigned word)
{
#if defined(__aarch64__)
    return getauxval(word);
#else
    (void)word;
    return 0;
#endif
}

/* Linux hands the 8 KB of tile registers only to processes that ask (arch_prctl(2)). */
bool platform_permit_amx(void)
{
#if defined(__x86_64__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

/* A word of a file about a cache of the first processor; "" without it. */
static void cache_word(int index, const char *what, char out[16])
{
    char path[80];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, what);
    read_text(path, out, 16);
}

/* The C library knows the caches of x86-64; on ARM the kernel does. */
size_t platform_cache_bytes(int level)
{
    long bytes = 0;
#ifdef _SC_LEVEL1_DCACHE_SIZE /* a GNU extension */
    static const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE,
                                _SC_LEVEL3_CACHE_SIZE};
    bytes = sysconf(names[level - 1]);
#endif
    for (int i = 0; bytes <= 0 && i < 8; i++) {
        char word[16];
        cache_word(i, "level", word);
        if (atoi(word) != level) continue;
        cache_word(i, "type", word);
        if (word[0] == 'I') continue; /* "Instruction" */
        cache_word(i, "size", word);
        bytes = atol(word) * (strchr(word, 'M') ? 1 << 20 : 1 << 10); /* "64K" */
    }
    return bytes > 0 ? (size_t)bytes : 0;
}

/* --- memory ---------------------------------------------------------------------------------- */

uint64_t platform_free_memory(void)
{
    char text[512];
    unsigned long long kib = 0;
    read_text("/proc/meminfo", text, sizeof text);
    const char *line = strstr(text, "MemAvailable:");
    if (line) sscanf(line, "MemAvailable: %llu", &kib);
    return kib ? (uint64_t)kib * 1024 : UINT64_MAX;
}

uint64_t platform_resident_memory(void)
{
    char text[128];
    unsigned long long pages = 0;
    read_text("/proc/self/statm", text, sizeof text);
    const int found = sscanf(text, "%*u %llu", &pages);
    return found == 1 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

void platform_advise(void *data, size_t bytes, platform_advice advice)
{
    enum { POPULATE_READ = 22 }; /* MADV_POPULATE_READ, which older systems refuse */
    static const int calls[] = {[PLATFORM_HUGE_PAGES] = MADV_HUGEPAGE,
                                [PLATFORM_POPULATE] = POPULATE_READ,
                                [PLATFORM_DROP] = MADV_DONTNEED,
                                [PLATFORM_SPARSE] = MADV_RANDOM};
    if (advice == PLATFORM_SPARSE) madvise(data, bytes, MADV_NOHUGEPAGE);
    madvise(data, bytes, calls[advice]);
}

int platform_memory_file(const char *name, size_t bytes)
{
    const int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) return -1;
    /* Another process could cut it, and this one would end by SIGBUS. */
    if (ftruncate(file, (off_t)bytes) == 0 &&
        fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return file;
    const int why = errno;
    close(file);
    errno = why;
    return -1;
}

int platform_memory_file_of(pid_t process, int descriptor, const char *name)
{
    char path[64], expected[128], found[128] = "";
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)process, descriptor);
    const int length = snprintf(expected, sizeof expected, "/memfd:%s", name);
    const bool right = readlink(path, found, sizeof found - 1) >= length &&
                       memcmp(found, expected, (size_t)length) == 0;
    return right ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

bool platform_random(void *bytes, size_t count)
{
    return getrandom(bytes, count, GRND_NONBLOCK) == (ssize_t)count;
}

/* --- events ---------------------------------------------------------------------------------- */

int platform_event_open(bool blocks)
{
    return eventfd(0, EFD_CLOEXEC | (blocks ? 0 : EFD_NONBLOCK));
}

/* The counter cannot overflow: that would take 2^64 signals without a wait. */
void platform_event_signal(int event)
{
    const uint64_t one = 1;
    while (write(event, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

void platform_event_wait(int event)
{
    uint64_t count;
    while (read(event, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

/* --- processes ------------------------------------------------------------------------------- */

int platform_pipe(int ends[2])
{
    return pipe2(ends, O_CLOEXEC);
}

void platform_end_with_parent(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) raise(SIGKILL); /* it died before the line above */
}

size_t platform_arguments(char *text, size_t size)
{
    return read_text("/proc/self/cmdline", text, size);
}

bool platform_program(char *path, size_t size)
{
    const ssize_t length = readlink("/proc/self/exe", path, size - 1);
    path[length > 0 ? length : 0] = '\0';
    return length > 0;
}

DIR *platform_threads(pid_t process)
{
    char path[64] = "/proc/self/task";
    if (process) snprintf(path, sizeof path, "/proc/%ld/task", (long)process);
    return opendir(path);
}

int platform_open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    if (!folder) return 0;
    for (const struct dirent *file; (file = readdir(folder));)
        count += file->d_name[0] != '.';
    closedir(folder);
    return count - 1; /* without that of the folder */
}

/* --- the build ------------------------------------------------------------------------------- */

typedef struct search {
    uintptr_t address; /* of code whose object is looked for */
    bool found;
    uint64_t id;
} search;

static bool holds(const struct dl_phdr_info *object, uintptr_t address)
{
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        const uintptr_t begin = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && address >= begin && address < begin + part->p_memsz)
            return true;
    }
    return false;
}

/* Looks for the note in a segment of notes. */
static void read_notes(const char *at, size_t bytes, search *s)
{
    const char *end = at + bytes;
    while ((size_t)(end - at) >= sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *note = (const void *)at;
        const char *name = at + sizeof *note, *value = name + round_up(note->n_namesz, 4);
        const char *next = value + round_up(note->n_descsz, 4);
        if (next > end) return;
        if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && memcmp(name, "GNU", 4) == 0) {
            s->id = keyed_hash((hash_key){{1, 2}}, value, note->n_descsz);
            s->found = true;
        }
        at = next;
    }
}

static int visit(struct dl_phdr_info *object, size_t size, void *context)
{
    search *s = context;
    (void)size;
    if (!holds(object, s->address)) return 0;
    for (int i = 0; i < object->dlpi_phnum && !s->found; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_NOTE)
            read_notes((const char *)(object->dlpi_addr + part->p_vaddr), part->p_memsz, s);
    }
    return 1;
}

static uint64_t hash_program(void)
{
    char buffer[1 << 16];
    uint64_t sum = 0;
    FILE *self = fopen("/proc/self/exe", "rbe");
    for (size_t n; self && (n = fread(buffer, 1, sizeof buffer, self)) > 0;)
        sum = keyed_hash((hash_key){{sum, n}}, buffer, n);
    if (self) fclose(self);
    return sum;
}

uint64_t platform_build_id(void)
{
    search s = {.address = (uintptr_t)platform_build_id};
    dl_iterate_phdr(visit, &s);
    return s.found ? s.id : hash_program();
}
