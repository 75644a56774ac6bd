#!/usr/bin/env bash
# The instruction record is one header for the CPU and for devices: if nvcc is installed, it must compile
# as CUDA C, with the same layout in memory as in C.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if ! command -v nvcc > /dev/null; then
    echo "skipped: there is no nvcc"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/record.cu" << 'CUDA'
#include "op/code.h"
#include "schedule/instruction.h"
#include <cstddef>
static_assert(offsetof(instruction, node) == 8 && offsetof(instruction, units) == 16 &&
              offsetof(instruction, waits) == 32 && offsetof(instruction, signal) == 48 &&
              offsetof(instruction, params) == 56 && offsetof(instruction, operands) == 76 &&
              offsetof(instruction, zero) == 124, "as drawn");
__global__ void run(const instruction *in, const uint32_t *counters, int64_t *units)
{
    if (in->opcode == OP_LINEAR && instruction_reached(counters[1], instruction_target(in, 0, 3, 2)))
        instruction_units(in, 64, 2, &units[0], &units[1]);
}
CUDA
nvcc -arch=sm_90a -I "$root/src" -c "$folder/record.cu" -o "$folder/record.o"
sed -e '/__global__/,$d' -e 's/<cstddef>/<stddef.h>/' -e 's/static_assert/_Static_assert/' \
    "$folder/record.cu" > "$folder/record.c"
cc -std=c17 -Wall -Wextra -Wpedantic -Werror -I "$root/src" -fsyntax-only "$folder/record.c"
