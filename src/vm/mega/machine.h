/* What tests of the megakernel's kernels need of the machine `megakernel`. */
#ifndef QUIPU_VM_MEGA_MACHINE_H
#define QUIPU_VM_MEGA_MACHINE_H

#include "vm/machine.h"
#include "vm/mega/megakernel.h"

/* What an open machine of that type runs. */
cuda_mega *mega_machine_of(const machine *machine);

#endif
