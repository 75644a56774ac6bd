#!/usr/bin/env bash
# scripts/layers finds each kind of planted violation, and reports nothing for a tree that keeps the rules.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# plant PATH TEXT EXPECTED: a tree with this one file; EXPECTED is in the output, '' is silence.
plant() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/$(dirname "$1")"
    printf '%s\n' "$2" >"$tree/$1"
    local output status=0
    output=$(scripts/layers "$tree") || status=$?
    if [ -z "$3" ] && [ -z "$output" ] && [ $status = 0 ]; then return; fi
    if [ -n "$3" ] && [[ $output == *"$3"* ]] && [ $status = 1 ]; then return; fi
    echo "planted $1: $2"
    echo "  expected: ${3:-nothing}"
    echo "  found:    ${output:-nothing}, status $status"
    failures=$((failures + 1))
}

# The rules kept.
plant src/vm/a.c '#include "schedule/instruction.h"' ''
plant src/op/rope/rope_simd.c '#include "op/op.h"' ''
plant src/base/option.c 'const char *v = getenv("X");' ''
plant src/cli/main.c 'int main(void) { printf("hello"); exit(0); }' ''
plant src/cli/plan.c '#include "lower/print.h"' ''
plant src/text/a.c '#include <exit.h> // getenv("X") in a comment' ''
plant src/text/b.c '/* exit(1); */ const char *s = "exit(1) /*";' ''
plant src/engine/a.c '#include "text/tokenizer.h"' ''
plant src/load/a.c 'int fd = socket(AF_INET, SOCK_STREAM, 0);' ''
plant src/base/platform_linux.c 'pipe2(ends, 0); fopen("/proc/self/exe", "r");' ''
plant src/cli/a.c 'fopen("/proc/driver/nvidia/version", "r"); const char *s = "/proc is missing; pipe2(";' ''
plant src/plan/a.c 'fprintf(file, "x"); snprintf(a, 1, "x"); run->exit_code = at_exit(3);' ''
plant tests/test_a.c '#include "op/op.h"
int main(void) { exit(0); }' ''

# Each broken.
plant src/base/a.h '#include "tensor/tensor.h"' 'src/base/a.h:1: base may not include tensor'
plant src/op/rope/rope.c '

#  include "model/config.h"' 'src/op/rope/rope.c:3: op may not include model/config.h'
plant src/op/op.h '#include "file/map.h"' 'op may not include file'
plant src/vm/a.c '#include "text/tokenizer.h"' 'vm may not include text'
plant src/vm/a.c '#include "engine/engine.h"' 'vm may not include engine'
plant src/engine/a.c '#include "inspect/trace.h"' 'engine may not include inspect'
plant src/model/a.c '#include "text/tokenizer.h"' 'model may not include text'
plant src/text/a.c '#include "tensor/tensor.h"' 'text may not include tensor'
plant src/cli/run.c '#include "engine/engine.h"' 'cli may not include engine'
plant src/cli/plan.c '#include "plan/plan.h"' 'cli may not include plan/plan.h'
plant src/convert/a.c '#include "cli/cli.h"' 'convert may not include cli'
plant src/file/a.c '#include "gguf.h"' 'file may not include gguf.h'
plant src/extra/a.c '#include "base/status.h"' 'src/extra is not a layer'
plant include/quipu.h '#include "base/status.h"' 'a public header includes quipu.h and quipu_status.h only'
plant src/base/a.h '#include "quipu.h"' 'a header of base takes quipu_status.h'
plant tests/test_a.c '#include "../src/base/arena.c"' 'link with the library instead'
plant src/engine/a.c 'int fd = socket(AF_INET, SOCK_STREAM, 0);' 'the library opens no connection'
plant src/model/a.c 'getenv("HOME");' 'the environment is read by option parsing'
plant src/op/a.c 'if (!p) exit(1);' 'end the process; return a qp_status'
plant src/op/a.c 'abort();' 'end the process; return a qp_status'
plant src/engine/a.c 'fprintf(stderr, "x");' 'libraries do not print'
plant src/vm/a.c 'printf("x");' 'libraries do not print'
plant src/vm/a.c 'madvise(data, bytes, 1);' "is behind base/platform.h"
plant src/server/a.c 'FILE *f = fopen("/proc/self/statm", "r");' 'files of Linux are read behind base/platform.h'
plant src/vm/a.h '#include "vm/a.h"' 'src/vm/a.h:1: headers include each other: vm/a.h -> vm/a.h'

[ $failures = 0 ]
