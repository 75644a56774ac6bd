/* Dereferences an invalid pointer. */
#include "norm.h"

void rms_norm_kernel(const op_call *call)
{
    volatile float *nowhere = (volatile float *)(uintptr_t)call->begin;
    *nowhere = 1;
}
