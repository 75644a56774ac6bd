#!/usr/bin/env bash
# What the program launches on a GPU, as logged by the fake driver of tests/fake_cuda.
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
    echo "skipped: the build has no GPU code"
    exit 77
fi

# NVTX ranges: a run has one, and each launch of a traced pass another inside it, named after its steps.
export QUIPU_FAKE_CUDA_RANGES=1
over ranges trace -m synthetic:tiny --ids 1,2,3 -n 2 --exec cuda || fail "$(cat "$folder/ranges.err")"
unset QUIPU_FAKE_CUDA_RANGES
grep -qx "range cuda: 1 pass of 3 rows" "$folder/ranges" || fail "a run has no range: $(grep range "$folder/ranges" | head)"
grep -qx "range lm_head" "$folder/ranges" || fail "a step has no range"
grep -qx "range 0.ffn_up.*" "$folder/ranges" || fail "a step of a layer has no range"
awk '/^range /{n++; if (n > most) most = n} /^end of range/{n--; if (n < 0) exit 1}
     /^launch .*linear/{launched++; if (n != 2) outside++}
     END {exit !(n == 0 && most == 2 && launched > 0 && outside == 0)}' "$folder/ranges" ||
    fail "ranges and launches do not nest: $(head -40 "$folder/ranges")"

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

# An embedding needs no logits: a batch of it ends before their product.
embed() {
    python3 - "$folder/embed.err" <<'END'
import json, re, sys, time, urllib.request
for _ in range(600):
    found = re.search(r"listening at (http://\S+)", open(sys.argv[1]).read())
    if found and "ready" in open(sys.argv[1]).read():
        break
    time.sleep(0.1)
body = json.dumps({"input": list(range(1, 101))}).encode()
print(urllib.request.urlopen(urllib.request.Request(found[1] + "/v1/embeddings", body)).read()[:60])
END
}
QUIPU_FAKE_CUDA_LOG=$folder/embed "$program" serve -m synthetic:smollm2-135m --device cuda --port 0 \
    -c 128 --parallel 1 >"$folder/embed.out" 2>"$folder/embed.err" &
server=$!
embed >"$folder/embedding" || fail "no embedding: $(cat "$folder/embed.err")"
kill $server
wait $server || true
awk '/^launch /{last = $2} /^copy to host /{copies++; other += last !~ /^run_rms_norm/}
     END {exit !copies || other}' "$folder/embed" || fail "an embedding computes logits: $(tail -3 "$folder/embed")"

# Copies of weights in BF16 are said, and left out if that is asked for.
copies() {
    over copies-$1 bench -m synthetic:tiny:Q8_0 -p 0 -n 2 -r 1 --parallel 9 -c 64 --device cuda --bf16-copies "$@"
}
over said run -m synthetic:tiny:Q8_0 -p 1,2 -n 2 --device cuda || fail "$(cat "$folder/said.err")"
grep -q "the GPU also keeps the weights in BF16, " "$folder/said.err" || fail "copies are not said"
copies auto || fail "$(cat "$folder/copies-auto.err")"
copies on || fail "$(cat "$folder/copies-on.err")"
copies off || fail "$(cat "$folder/copies-off.err")"
for how in auto on; do
    grep -q " run_linear_chain_16 " "$folder/copies-$how" || fail "--bf16-copies $how: no product of copies"
done
! grep -q "run_linear_chain" "$folder/copies-off" || fail "--bf16-copies off: products of copies"
# The cache takes 126 of the GPU's 141 GiB.
if copies on -m synthetic:llama-3.1-8b:Q8_0 -c 114688 --page-size 4096; then fail "copies where there is no room"; fi
grep -q "copies of the weights in BF16 take .* use --bf16-copies off" "$folder/copies-on.err" ||
    fail "$(cat "$folder/copies-on.err")"

# What plan prints is what runs: the printed list of a pass is in the log, launch by launch.
# same_as_plan NAME TOKENS SEQUENCES MODEL BENCH...
same_as_plan() {
    local name=$1 tokens=$2 sequences=$3 model=$4
    shift 4
    over plan plan -m "$model" --tokens "$tokens" --sequences "$sequences" -c 512 --device cuda
    over "$name" bench -m "$model" --exec cuda -c 512 -r 1 --device cuda "$@"
    sed -n 's/^    \(run_\|cublasLt \)/\1/p' "$folder/plan.out" | sed 's/ + residual$//' >"$folder/printed"
    grep -v -e "launch read_all " -e "launch synthetic_" "$folder/$name" |
        sed -n -e 's/^launch \([^ ]*\) stream 1: \(.*\), [0-9a-f]*$/\1 \2/p' \
            -e 's/^\(cublasLt n [0-9]* m [0-9]* k [0-9]*\) .*/\1/p' >"$folder/ran"
    [ -s "$folder/printed" ] || fail "$name: plan printed no launches"
    python3 - "$folder/printed" "$folder/ran" <<'END' || fail "$name: plan prints other launches than run"
import sys
printed, ran = (open(path).read().splitlines() for path in sys.argv[1:])
found = any(ran[i:i + len(printed)] == printed for i in range(len(ran)))
if not found:
    at = next((i for i, (a, b) in enumerate(zip(printed, ran)) if a != b), min(len(printed), len(ran)))
    print("printed:", printed[at:at + 3], "ran:", ran[at:at + 3], file=sys.stderr)
sys.exit(not found)
END
}
for model in synthetic:smollm2-135m golden/models/internlm2.gguf; do
    same_as_plan prompt-12 12 1 $model -p 12 -n 0 --chunk 12
    same_as_plan prompt-300 300 1 $model -p 300 -n 0 --chunk 300
    same_as_plan decode-9 9 9 $model -p 0 -n 2 --parallel 9 --chunk 9
    same_as_plan decode-64 64 64 $model -p 0 -n 2 --parallel 64 --chunk 64
done

# A trace is of these launches: chains are there, and as many as plan prints.
over trace trace -m synthetic:smollm2-135m --ids 1,2,3,4,5,6,7,8,9,10,11,12 -n 1 --exec cuda --device cuda \
    --chunk 12 -c 512 --table
over plan plan -m synthetic:smollm2-135m --tokens 12 -c 512 --device cuda
chains=$(grep -c "^[0-9]*  .*: chain, " "$folder/plan.out")
grep -q "^chain  *$chains " "$folder/trace.out" || fail "the trace has not $chains chains: $(cat "$folder/trace.out")"
# Passes that feed their tokens back are traced too, each by itself.
over traced trace -m synthetic:tiny --ids 1,2,3 -n 5 --exec cuda --device cuda -o -
passes=$(grep -o '"name": *"pass [0-9]*: ' "$folder/traced.out" | sort -u | wc -l)
[ "$passes" = 5 ] || fail "the trace has $passes passes of 5"
echo "launches are as they should be"
