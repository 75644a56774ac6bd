/* NVTX, found at run time: see nvtx.h. */
#include "cuda/nvtx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

static struct {
    pthread_once_t once;
    int (*push)(const char *name);
    int (*pop)(void);
} nvtx = {.once = PTHREAD_ONCE_INIT};

static void find(void)
{
    /* Of CUDA 13, and of CUDA 12 and older. */
    static const char *const names[] = {"libnvtx3interop.so.1", "libnvToolsExt.so.1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        void *push = library ? dlsym(library, "nvtxRangePushA") : NULL;
        void *pop = library ? dlsym(library, "nvtxRangePop") : NULL;
        if (!push || !pop) {
            if (library) dlclose(library);
            continue;
        }
        memcpy(&nvtx.push, &push, sizeof push); /* a cast is not ISO C */
        memcpy(&nvtx.pop, &pop, sizeof pop);
        return;
    }
}

bool nvtx_is_open(void)
{
    pthread_once(&nvtx.once, find);
    return nvtx.push;
}

void nvtx_begin(const char *name)
{
    if (nvtx_is_open()) nvtx.push(name);
}

void nvtx_end(void)
{
    if (nvtx_is_open()) nvtx.pop();
}
