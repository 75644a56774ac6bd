/* Memory at fixed addresses: a range of the address space for each GPU, and one for pinned memory.
 */
#include "fake.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

enum { MAX_BLOCKS = 4096, GRAIN = 2 << 20, OWNER_SHIFT = 44 };

static const uint64_t first_base = 0x300000000000u; /* of the first GPU */
static const uint64_t host_base = 0x300000000000u + ((uint64_t)FAKE_HOST << OWNER_SHIFT);
static const size_t device_bytes = (size_t)140 << 30;

static struct {
    uint64_t address;
    size_t bytes, mapped;
    int owner;
} blocks[MAX_BLOCKS];
static int n_blocks;
static size_t used[FAKE_DEVICES + 1];
static uint64_t next_of[FAKE_DEVICES + 1];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static cuda_address take(size_t bytes, int owner)
{
    uint64_t *next = &next_of[owner];
    size_t mapped = (bytes + 2 * GRAIN - 1) / GRAIN * GRAIN; /* at least one byte after it is not */
    if (n_blocks == MAX_BLOCKS || (owner != FAKE_HOST && mapped > device_bytes - used[owner]))
        return 0;
    if (*next == 0) *next = first_base + ((uint64_t)owner << OWNER_SHIFT);
    void *at = mmap((void *)*next, mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == MAP_FAILED) return 0;
    blocks[n_blocks].address = *next;
    blocks[n_blocks].bytes = bytes;
    blocks[n_blocks].mapped = mapped;
    blocks[n_blocks].owner = owner;
    n_blocks++;
    *next += mapped;
    used[owner] += mapped;
    return (uint64_t)at;
}

cuda_address fake_memory_take(size_t bytes, int owner)
{
    pthread_mutex_lock(&mutex);
    const cuda_address address = take(bytes, owner);
    pthread_mutex_unlock(&mutex);
    return address;
}

static cuda_result give(cuda_address address)
{
    for (int i = 0; i < n_blocks; i++) {
        if (blocks[i].address != address || !blocks[i].mapped) continue;
        munmap((void *)address, blocks[i].mapped);
        used[blocks[i].owner] -= blocks[i].mapped;
        blocks[i].mapped = 0;
        return CUDA_SUCCESS;
    }
    return 1; /* CUDA_ERROR_INVALID_VALUE */
}

cuda_result fake_memory_give(cuda_address address)
{
    pthread_mutex_lock(&mutex);
    const cuda_result result = give(address);
    pthread_mutex_unlock(&mutex);
    return result;
}

size_t fake_memory_free(int device)
{
    pthread_mutex_lock(&mutex);
    const size_t bytes = device_bytes - used[device];
    pthread_mutex_unlock(&mutex);
    return bytes;
}

static int find(uint64_t address, uint64_t *offset)
{
    for (int i = 0; i < n_blocks; i++) {
        if (address < blocks[i].address || address - blocks[i].address > blocks[i].bytes) continue;
        *offset = address - blocks[i].address;
        return i;
    }
    return -1;
}

int fake_memory_find(uint64_t address, uint64_t *offset)
{
    if (address < first_base) return -1;
    pthread_mutex_lock(&mutex);
    const int block = find(address, offset);
    pthread_mutex_unlock(&mutex);
    return block;
}

bool fake_memory_is_host(uint64_t address)
{
    return address >= host_base;
}

const char *fake_memory_name(uint64_t address, char text[48])
{
    uint64_t offset = 0;
    int block = fake_memory_find(address, &offset);
    if (block < 0)
        snprintf(text, 48, "%#llx", (unsigned long long)address);
    else
        snprintf(text, 48, "%d+%llu", block, (unsigned long long)offset);
    return text;
}
