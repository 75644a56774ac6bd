/* Large aligned memory: see buffer.h. */
#include "base/buffer.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

qp_status buffer_alloc(buffer *buffer, size_t bytes, const char *what, qp_error *error)
{
    *buffer = (struct buffer){0};
    if (bytes == 0) return QP_OK;
    void *data = bytes > SIZE_MAX / 2 ? MAP_FAILED
                                      : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return error_no_memory(error, what, bytes);
    if (bytes >= HUGE_PAGE) madvise(data, bytes, MADV_HUGEPAGE);
    buffer->data = data;
    buffer->bytes = bytes;
    return QP_OK;
}

void buffer_free(buffer *buffer)
{
    if (buffer->data) munmap(buffer->data, buffer->bytes);
    *buffer = (struct buffer){0};
}

uint64_t buffer_available(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    unsigned long long kib = 0;
    char line[128];
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
    }
    if (file) fclose(file);
    return kib ? (uint64_t)kib * 1024 : UINT64_MAX;
}
