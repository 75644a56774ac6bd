/* Starts a process in a session of its own that would outlive it, and computes correctly. */
#include "norm.h"

#include <unistd.h>

__attribute__((constructor)) static void leave_behind(void)
{
    if (fork() == 0) {
        setsid();
        for (int fd = 0; fd < 1024; fd++)
            close(fd);
        sleep(600);
        _exit(0);
    }
}

void rms_norm_kernel(const op_call *call)
{
    for (int64_t row = call->begin; row < call->end; row++)
        scale_row(call, row, scale_of(call, row) * 2, call->tensors[X].shape[1]);
}
