/* The process's own use of memory, time and files: see process.h. */
#include "server/process.h"

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static double resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file) return 0;
    const int found = fscanf(file, "%*u %llu", &pages);
    fclose(file);
    return found == 1 ? (double)pages * (double)sysconf(_SC_PAGESIZE) : 0;
}

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

static double count_open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    double count = 0;
    if (!folder) return 0;
    for (const struct dirent *file; (file = readdir(folder));)
        count += file->d_name[0] != '.';
    closedir(folder);
    return count - 1; /* without that of the folder */
}

process_usage process_measure(void)
{
    struct rusage used = {0};
    struct rlimit most = {0};
    getrusage(RUSAGE_SELF, &used);
    getrlimit(RLIMIT_NOFILE, &most);
    return (process_usage){.resident_bytes = resident_bytes(),
                           .heap_bytes = heap_bytes(),
                           .cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime),
                           .open_files = count_open_files(),
                           .open_files_most = (double)most.rlim_cur};
}
