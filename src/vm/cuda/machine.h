/* The machine `cuda`, as the machine `megakernel` needs it, which runs over its memory. */
#ifndef QUIPU_VM_CUDA_MACHINE_H
#define QUIPU_VM_CUDA_MACHINE_H

#include "vm/cuda/executor.h"
#include "vm/machine.h"

/* The executor of an open machine of that type; its device is the executor's. */
cuda_executor *cuda_machine_executor(const machine *machine);

/* Where the machine reads logits to: float32 [max_outputs][vocab_size] of this computer's memory.
 */
float *cuda_machine_logits(const machine *machine);

#endif
