/* Failed allocations of cJSON: see json_memory.h. */
#include "server/json_memory.h"

#include "base/json.h"

#include <stdlib.h>

static _Thread_local bool failed;

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) failed = true;
    return memory;
}

void json_memory_watch(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = allocate, .free_fn = free});
}

void json_memory_clear(void)
{
    failed = false;
}

bool json_memory_failed(void)
{
    return failed;
}
