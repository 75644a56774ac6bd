#!/usr/bin/env bash
# What the program launches on a GPU, seen by the fake driver of tests/fake_cuda.
set -euo pipefail
cd "$(dirname "$0")"

program=${QUIPU_BINARY:?}
library=$(dirname "$program")/tests/fake_cuda
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export LD_LIBRARY_PATH=$library

# over LOG ARGUMENT...: the program on the fake GPU.
over() {
    local log=$1
    shift
    QUIPU_FAKE_CUDA_LOG=$folder/$log "$program" "$@" >"$folder/$log.out" 2>"$folder/$log.err"
}
fail() {
    echo "$*" >&2
    exit 1
}

if ! over probe bench -m synthetic:tiny -p 4 -n 0 -r 1 --device cuda; then
    grep -q "built without GPU code" "$folder/probe.err" || fail "$(cat "$folder/probe.err")"
    echo "skipped: the program has no GPU code"
    exit 0
fi

# A run launches the same every time.
for name in one two; do
    fake_cuda/launches.sh "$program" "$folder/$name" smollm2-9 prompt-100 mega-1 answers
done
for log in "$folder"/one/*.log; do
    [ -s "$log" ] || fail "$log is empty"
    cmp "$log" "$folder/two/$(basename "$log")"
done
[ "$(ls "$folder"/one/*.log | wc -l)" = 4 ] || fail "cases are missing"

# Passes that decode are graphs from the second on, and a layer of nine sequences is one kernel.
grep -q "^capture launch run_linear_chain_16 " "$folder/one/smollm2-9.log" || fail "no chain in a graph"
grep -q "^graph [0-9]*: run" "$folder/one/smollm2-9.log" || fail "no graph was run"
grep -q "cooperative" "$folder/one/mega-1.log" || fail "no megakernel"
grep -q "^cublasLt " "$folder/one/prompt-100.log" || fail "no product of cuBLASLt"

# A layer with norms of q and k runs head_norm between its product and RoPE.
over norms bench -m golden/models/qwen3.gguf -p 4 -n 0 -r 1 --device cuda || fail "$(cat "$folder/norms.err")"
grep -q " run_head_norm " "$folder/norms" || fail "no head_norm"
echo "launches are as they should be"
