/* What an operating system does in its own way, where POSIX has no call for it: a port is one file
 * beside platform_linux.c. scripts/layers keeps these calls out of all other files, except the
 * confinement of foreign code (src/workbench/sandbox*.c), which refuses by name elsewhere. */
#pragma once

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* --- processors ------------------------------------------------------------------------------ */

enum { PLATFORM_PROCESSORS = 1024 };

/* Numbers of the processors that the calling thread may run on, in ascending order. Returns how
 * many; 0: unknown. */
int platform_processors(int numbers[PLATFORM_PROCESSORS]);

/* From now on the calling thread runs on these processors only. A hint. */
void platform_bind(const int *numbers, int n);

/* Whether the parent process may run on other processors than the calling thread. */
bool platform_bound_by_parent(void);

/* Of ARM's processors: the words of bits AT_HWCAP (16) and AT_HWCAP2 (26), 0 elsewhere. */
unsigned long platform_hardware_bits(unsigned word);

/* Asks for the state of AMX's tiles, which a process has only on request. */
bool platform_permit_amx(void);

/* Of the first processor's data cache of a level, 1 to 3; 0: unknown or absent. */
size_t platform_cache_bytes(int level);

/* --- memory ---------------------------------------------------------------------------------- */

/* Bytes that can be allocated now without swapping, including page cache that can be dropped;
 * UINT64_MAX: unknown. */
uint64_t platform_free_memory(void);

/* Bytes of physical memory that this process has now; 0: unknown. */
uint64_t platform_resident_memory(void);

typedef enum {
    PLATFORM_HUGE_PAGES, /* use them where the system has them */
    PLATFORM_POPULATE,   /* map all pages now, for reading */
    PLATFORM_DROP,       /* give the pages back: zeros, or the file's bytes, when touched again */
    PLATFORM_SPARSE,     /* a few scattered places are read: no reading ahead, no huge pages */
} platform_advice;

/* A hint for the pages of [data, data + bytes), of which `data` is the first byte of one. */
void platform_advise(void *data, size_t bytes, platform_advice advice);

/* A file without a name on any disk, whose size nobody can change. -1: errno says why. */
int platform_memory_file(const char *name, size_t bytes);

/* Opens the file `descriptor` of another process if platform_memory_file() made it by this name.
 * -1: it did not, or the process may not be looked into. */
int platform_memory_file_of(pid_t process, int descriptor, const char *name);

/* Random bytes; false: the system has none yet. */
bool platform_random(void *bytes, size_t count);

/* --- events ---------------------------------------------------------------------------------- */

/* A descriptor that is readable from a signal, of any thread, to the next wait. Without `blocks`
 * a wait without a signal returns at once. -1: none is left. */
int platform_event_open(bool blocks);
void platform_event_signal(int event);
void platform_event_wait(int event);

/* --- processes ------------------------------------------------------------------------------- */

/* pipe(2), whose ends are closed by exec. */
int platform_pipe(int ends[2]);

/* In a child: it ends by SIGKILL when its parent does, or now if `parent` is no longer that. */
void platform_end_with_parent(pid_t parent);

/* The arguments of this process, one after the other, each ended by '\0'. Returns their length, 0:
 * unknown. */
size_t platform_arguments(char *text, size_t size);

/* The file of this program. */
bool platform_program(char *path, size_t size);

/* The folder with one entry for each thread of a process (0: of this one), beside those that begin
 * with '.'. NULL: the system has none. */
DIR *platform_threads(pid_t process);

/* How many descriptors are open; 0: unknown. */
int platform_open_files(void);

/* A number for the code that runs: two builds that compute differently have different ones. From
 * the identifier that the linker puts into the program or the library, which is a hash of its
 * contents; without one, from the contents of the file. */
uint64_t platform_build_id(void);
