/* Large aligned memory: see buffer.h. */
#include "base/buffer.h"

#include "base/checked.h"
#include "base/platform.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

/* Maps `bytes`, aligned to the size of a huge page when the area is large enough to use them. */
static void *map_aligned(size_t bytes)
{
    size_t slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    char *data = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED || slack == 0) return data;
    size_t head = round_up((uintptr_t)data, HUGE_PAGE) - (uintptr_t)data;
    size_t end = round_up(head + bytes, (size_t)sysconf(_SC_PAGESIZE));
    if (head) munmap(data, head);
    if (end < bytes + slack) munmap(data + end, bytes + slack - end);
    platform_advise(data + head, bytes, PLATFORM_HUGE_PAGES);
    return data + head;
}

qp_status buffer_alloc(buffer *buffer, size_t bytes, const char *what, qp_error *error)
{
    *buffer = (struct buffer){0};
    if (bytes == 0) return QP_OK;
    void *data = bytes > SIZE_MAX / 2 ? MAP_FAILED : map_aligned(bytes);
    if (data == MAP_FAILED) return error_no_memory(error, what, bytes);
    buffer->data = data;
    buffer->bytes = bytes;
    return QP_OK;
}

void buffer_free(buffer *buffer)
{
    if (buffer->data) munmap(buffer->data, buffer->bytes);
    *buffer = (struct buffer){0};
}

void buffer_discard(const buffer *buffer)
{
    if (!buffer->data) return;
    platform_advise(buffer->data, buffer->bytes, PLATFORM_DROP);
    mprotect(buffer->data, buffer->bytes, PROT_NONE);
}

/* For the whole pages inside the range. */
static void advise(const void *data, size_t bytes, platform_advice advice)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = round_up((uintptr_t)data, page),
              end = ((uintptr_t)data + bytes) & ~(page - 1);
    if (begin < end) platform_advise((void *)begin, end - begin, advice);
}

void buffer_populate(const void *data, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)data & ~(page - 1);
    platform_advise((void *)begin, (uintptr_t)data + bytes - begin, PLATFORM_POPULATE);
}

void buffer_release_pages(const void *data, size_t bytes)
{
    advise(data, bytes, PLATFORM_DROP);
}

/* Without PLATFORM_SPARSE 2 MB are mapped for a row. */
void buffer_read_sparsely(const void *data, size_t bytes)
{
    advise(data, bytes, PLATFORM_SPARSE);
}
