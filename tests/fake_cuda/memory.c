/* Memory at fixed addresses: one range of the address space for the GPU, one for pinned memory.
 */
#include "fake.h"

#include <stdio.h>
#include <sys/mman.h>

enum { MAX_BLOCKS = 4096, GRAIN = 2 << 20 };

static const uint64_t device_base = 0x300000000000u, host_base = 0x400000000000u;
static const size_t device_bytes = (size_t)140 << 30;

static struct {
    uint64_t address;
    size_t bytes, mapped;
} blocks[MAX_BLOCKS];
static int n_blocks;
static size_t used;
static uint64_t next_of[2];

cuda_address fake_memory_take(size_t bytes, bool of_host)
{
    uint64_t *next = &next_of[of_host];
    size_t mapped =
        (bytes + 2 * GRAIN - 1) / GRAIN * GRAIN; /* at least one byte behind it is not */
    if (n_blocks == MAX_BLOCKS || (!of_host && mapped > device_bytes - used)) return 0;
    if (*next == 0) *next = of_host ? host_base : device_base;
    void *at = mmap((void *)*next, mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == MAP_FAILED) return 0;
    blocks[n_blocks].address = *next;
    blocks[n_blocks].bytes = bytes;
    blocks[n_blocks].mapped = mapped;
    n_blocks++;
    *next += mapped;
    if (!of_host) used += mapped;
    return (uint64_t)at;
}

cuda_result fake_memory_give(cuda_address address)
{
    for (int i = 0; i < n_blocks; i++) {
        if (blocks[i].address != address || !blocks[i].mapped) continue;
        munmap((void *)address, blocks[i].mapped);
        if (address < host_base) used -= blocks[i].mapped;
        blocks[i].mapped = 0;
        return CUDA_SUCCESS;
    }
    return 1; /* CUDA_ERROR_INVALID_VALUE */
}

bool fake_memory_is_host(uint64_t address)
{
    return address >= host_base;
}

size_t fake_memory_free(void)
{
    return device_bytes - used;
}

int fake_memory_find(uint64_t address, uint64_t *offset)
{
    if (address < device_base) return -1;
    for (int i = 0; i < n_blocks; i++) {
        if (address < blocks[i].address || address - blocks[i].address > blocks[i].bytes) continue;
        *offset = address - blocks[i].address;
        return i;
    }
    return -1;
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
