/* Never returns, and ignores all signals that can be ignored. */
#include "norm.h"

#include <signal.h>

void rms_norm_kernel(const op_call *call)
{
    (void)call;
    for (int number = 1; number < 32; number++)
        signal(number, SIG_IGN);
    for (;;) {
    }
}
