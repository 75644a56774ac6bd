/* What the machine `megakernel`, which runs over the memory of the machine `cuda`, needs of it. */
#pragma once

#include "vm/cuda/executor.h"
#include "vm/machine.h"

/* The executor of an open machine of that type; its device is the executor's. */
cuda_executor *cuda_machine_executor(const machine *machine);

/* Where the machine reads logits to: float32 [max_outputs][vocab_size] in host memory. */
float *cuda_machine_logits(const machine *machine);

/* Puts the program's steps that choose the batch's tokens into the stream, after a pass over it. */
qp_status cuda_machine_choose(cuda_executor *executor, const batch *batch, qp_error *error);
