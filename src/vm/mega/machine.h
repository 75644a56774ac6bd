/* What tests of the megakernel's kernels need of the machine `megakernel`. */
#pragma once

#include "vm/machine.h"
#include "vm/mega/megakernel.h"

/* What an open machine of that type runs. */
cuda_mega *mega_machine_of(const machine *machine);
