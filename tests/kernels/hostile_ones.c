/* Writes implausible reports to every descriptor: pointers and counts with all bits set. */
#include "norm.h"

#include <unistd.h>

__attribute__((constructor)) static void forge(void)
{
    char ones[8192];
    memset(ones, 0xff, sizeof ones);
    for (int fd = 3; fd < 64; fd++)
        if (write(fd, ones, sizeof ones) < 0) continue;
    _exit(0);
}

void rms_norm_kernel(const op_call *call)
{
    (void)call;
}
