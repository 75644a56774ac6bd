/* The process's own use of memory, time and files: see process.h. */
#include "server/process.h"

#include "base/platform.h"

#include <malloc.h>
#include <sys/resource.h>

static double heap_bytes(void)
{
#if defined __GLIBC__ && __GLIBC_PREREQ(2, 33)
    const struct mallinfo2 heap = mallinfo2();
    return (double)heap.uordblks + (double)heap.hblkhd;
#else
    return 0;
#endif
}

static double seconds(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

process_usage process_measure(void)
{
    struct rusage used = {0};
    struct rlimit most = {0};
    getrusage(RUSAGE_SELF, &used);
    getrlimit(RLIMIT_NOFILE, &most);
    return (process_usage){.resident_bytes = (double)platform_resident_memory(),
                           .heap_bytes = heap_bytes(),
                           .cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime),
                           .open_files = (double)platform_open_files(),
                           .open_files_most = (double)most.rlim_cur};
}
