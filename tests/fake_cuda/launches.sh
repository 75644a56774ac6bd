#!/usr/bin/env bash
# launches.sh PROGRAM FOLDER [CASE...]: runs the program over the fake driver and writes what it
# launched to FOLDER/CASE.log, for every case below or for those named. LIBRARY is the folder with the
# fake driver, where that is not the program's own build. See README.md.
set -euo pipefail

program=$(realpath "$1") folder=$2
shift 2
wanted=" $* "
here=$(cd "$(dirname "$0")" && pwd)
library=${LIBRARY:-$(dirname "$program")/tests/fake_cuda}
golden=$here/../golden/models
failed=0
[ -e "$library/libcuda.so.1" ] || { echo "no fake driver in $library: set LIBRARY" >&2; exit 2; }
mkdir -p "$folder"

# What --exec calls launches one by one, and the kernel of many passes.
operators=cuda mega=megakernel

# run CASE COMMAND ARGUMENT...
run() {
    local name=$1
    shift
    [ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || return 0
    LD_LIBRARY_PATH=$library QUIPU_FAKE_CUDA_LOG=$folder/$name.log timeout 300 \
        "$program" "$@" --device cuda >"$folder/$name.out" 2>"$folder/$name.err" && return
    echo "$name failed: $(tail -1 "$folder/$name.err")" >&2
    failed=1
}

# bench CASE MODEL ARGUMENT...
bench() {
    local name=$1 model=$2
    shift 2
    run "$name" bench -m "$model" -r 1 -o csv "$@"
}

# Prompts, then passes of one token of each sequence.
for n in 1 2 8 9 16 17 33 64 65 128; do
    bench smollm2-$n synthetic:smollm2-135m --exec $operators -p 12 -n 44 --parallel $n
done
for n in 1 9 33; do
    bench 1b-$n synthetic:llama-3.2-1b --exec $operators -p 100 -n 6 --parallel $n
    bench 8b-$n synthetic:llama-3.1-8b --exec $operators -p 40 -n 6 --parallel $n
    bench 3b-bf16-cache-$n synthetic:llama-3.2-3b --exec $operators -p 40 -n 3 --parallel $n \
        --kv-type BF16
    bench deep-$n synthetic:smollm2-135m --exec $operators -p 0 -n 20 -d 2040 -c 3000 --parallel $n
done
for n in 2 8 9 100 130 300 700 2048; do
    bench prompt-$n synthetic:llama-3.2-1b --exec $operators -p $n -n 0
    bench prompt-q8-$n synthetic:smollm2-135m:Q8_0 --exec $operators -p $n -n 0
done
for type in F32 F16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q6_K; do
    for n in 1 9 65; do
        bench tiny-$type-$n synthetic:tiny:$type --exec $operators -p 12 -n 3 --parallel $n
    done
done
for n in 1 9; do
    bench cache-f32-$n synthetic:smollm2-135m --exec $operators -p 12 -n 3 --parallel $n --kv-type F32
    bench page-5-$n synthetic:smollm2-135m --exec $operators -p 12 -n 3 --parallel $n --page-size 5
    bench fuse-$n synthetic:smollm2-135m --exec $operators -p 6 -n 3 --parallel $n --fuse
done
for model in internlm2.gguf internlm2-bias-dynamic llama-attention-bias llama-blocks32.gguf \
    llama-dynamic llama-gqa4-sharded llama-gqa8-f16.gguf llama-head128-00001-of-00002.gguf \
    llama-linear.gguf llama-mlp-bias.gguf llama-tied-gqa3 llama3-parameters mistral; do
    for n in 1 9 64; do
        bench golden-$model-$n "$golden/$model" --exec $operators -p 12 -n 3 --parallel $n
    done
    run golden-$model-logits logits -m "$golden/$model" --exec $operators \
        --ids 1,2,3,4,5,6,7,8,9,10,11,12
done

# Sampled, with penalties and without, and several answers side by side.
text=$golden/llama-text.gguf
run sampled run -m "$text" --raw -p "the cat" --exec $operators --temp 0.8 -n 20 --ignore-eos
run greedy run -m "$text" --raw -p "the cat" --exec $operators -n 20 --ignore-eos
run penalised run -m "$text" --raw -p "the cat" --exec $operators --repetition-penalty 1.2 -n 20 \
    --ignore-eos
run answers run -m "$text" --raw -p "the cat" --exec $operators --answers 12 --temp 0.8 -n 20 \
    --ignore-eos

# The kernel of many passes.
for n in 1 2 8; do
    bench mega-$n synthetic:llama-3.2-1b --exec $mega -p 12 -n 44 --parallel $n
    bench mega-q8-$n synthetic:llama-3.2-1b:Q8_0 --exec $mega -p 12 -n 44 --parallel $n
done
bench mega-q4-k synthetic:llama-3.2-1b:Q4_K --exec $mega -p 12 -n 20
bench mega-f16 synthetic:llama-3.2-1b:F16 --exec $mega -p 12 -n 20
run mega-sampled run -m synthetic:llama-3.2-1b --raw -p "1 2 3" --exec $mega --temp 0.8 -n 20 \
    --ignore-eos
exit $failed
