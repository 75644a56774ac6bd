/* A driver that hangs: QUIPU_FAKE_CUDA_HANGS=NAME, or NAME:N, is a function whose first (Nth) call
 * does not return. The compiler puts a call of the hook below into every function of driver.c. */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Hidden, or the C library's own, which do nothing, would be taken. */
#define HOOK __attribute__((no_instrument_function, visibility("hidden")))
void __cyg_profile_func_enter(void *function, void *from);
void __cyg_profile_func_exit(void *function, void *from);

static char name[64];
static atomic_long left;

__attribute__((constructor, no_instrument_function)) static void choose(void)
{
    const char *text = getenv("QUIPU_FAKE_CUDA_HANGS");
    if (!text) return;
    const size_t length = strcspn(text, ":");
    if (length >= sizeof name) return;
    atomic_store(&left, text[length] ? atol(text + length + 1) : 1);
    memcpy(name, text, length);
}

HOOK void __cyg_profile_func_enter(void *function, void *from)
{
    static const char said[] = " hangs\n";
    Dl_info about;
    (void)from;
    if (!*name || !dladdr(function, &about) || !about.dli_sname ||
        strcmp(about.dli_sname, name) != 0 || atomic_fetch_sub(&left, 1) != 1)
        return;
    ssize_t ignored = write(STDERR_FILENO, name, strlen(name));
    ignored = write(STDERR_FILENO, said, sizeof said - 1);
    (void)ignored;
    for (;;)
        pause();
}

HOOK void __cyg_profile_func_exit(void *function, void *from)
{
    (void)function, (void)from;
}
