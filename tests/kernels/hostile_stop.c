/* Stops itself by a signal: a stopped process neither ends nor answers. */
#include "norm.h"

#include <signal.h>

void rms_norm_kernel(const op_call *call)
{
    (void)call;
    raise(SIGSTOP);
}
