# Checking the GPU side on a machine with one. Sourced by ./dev; uses suites.sh's tally.

# The program just built, or the one that QUIPU_BINARY names, because it may have been built on another
# machine than the one with the GPU.
gpu_quipu() { "${QUIPU_BINARY:-$PWD/build/quipu}" "$@"; }

# same_text MODEL PROMPT N: greedy text of N tokens, compared between the CPU's references and the GPU.
same_text() {
    local words=(run -m "$1" -p "$2" -n "$3" --temp 0 --repetition-penalty 1 --raw) expected found
    expected=$(gpu_quipu "${words[@]}" --device cpu --exec reference 2>/dev/null) || return 1
    found=$(gpu_quipu "${words[@]}" --device cuda 2>/dev/null) || return 1
    [ "$expected" = "$found" ] || {
        say "on the CPU: $expected"
        say "on the GPU: $found"
        return 1
    }
}

# answer_tokens OPTION...: the tokens of a conversation's first answer, with the model's template.
answer_tokens() {
    gpu_quipu run -n 60 --json "$@" 2>/dev/null | sed -n 's/.*"tokens": \(\[[^]]*\]\).*/\1/p'
}

# same_answer OPTION...: compares the CPU's references, the megakernel and the machine cuda.
same_answer() {
    local expected found exec
    expected=$(answer_tokens "$@" --device cpu --exec reference)
    [ -n "$expected" ] || return 1
    for exec in megakernel cuda; do
        found=$(answer_tokens "$@" --device cuda --exec $exec)
        [ "$expected" = "$found" ] || {
            say "on the CPU: $expected"
            say "on the GPU by $exec: $found"
            return 1
        }
    done
}

# Checks every kernel on every case, every tensor of the small models, and texts token by token.
test_cuda() {
    local model type data prompt
    [ -e /dev/nvidiactl ] || die "cuda-test: there is no NVIDIA GPU here"
    begin_tally
    check "kernels of operators" gpu_quipu ops check --device cuda "$@" || true
    for model in tests/golden/models/*/config.json tests/golden/models/*.gguf; do
        model=${model%/config.json}
        case $model in *-00002-of-*) continue ;; esac
        check "tensors of $(basename "$model")" \
            gpu_quipu diff -m "$PWD/$model" --a reference --b cuda || true
    done
    for type in BF16 F16 F32 F8 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q6_K; do
        check "tensors of synthetic:tiny:$type" \
            gpu_quipu diff -m "synthetic:tiny:$type" --a reference --b cuda --tokens 40 || true
    done
    # Prompts whose products have fused epilogues, compared with one operator after the other.
    check "a prompt of 1,000 tokens, heads of 64" gpu_quipu diff -m synthetic:llama-3.2-1b:BF16 \
        --a cuda --b cuda --kv-type BF16 --tokens 1000 || true
    check "a prompt of 760 tokens, heads of 128" gpu_quipu diff -m synthetic:internlm2-1.8b:BF16 \
        --a cuda --b cuda --tokens 760 || true
    check "a prompt of 1,000 tokens in FP8, heads of 64" gpu_quipu diff \
        -m synthetic:llama-3.2-1b:F8 --a cuda --b cuda --kv-type BF16 --tokens 1000 || true
    check "a prompt of 760 tokens in FP8, heads of 128" gpu_quipu diff \
        -m synthetic:internlm2-1.8b:F8 --a cuda --b cuda --tokens 760 || true
    data=$(find_test_data)
    for model in "$data"/stories260K/*.gguf; do
        [ -f "$model" ] || continue
        check "text of $(basename "$model")" same_text "$model" "Once upon a time" 200 || true
    done
    model=$(scripts/fetch-model --path)
    if [ -f "$model" ]; then
        check "the default model's text" same_text "$model" "The capital of France is" 60 || true
        for prompt in "What is a quipu?" "Name three rivers of Africa." "Write a haiku about snow."; do
            check "the default model's answer: $prompt" \
                same_answer -m "$model" -p "$prompt" --temp 0 --repetition-penalty 1 || true
            check "one drawn: $prompt" \
                same_answer -m "$model" -p "$prompt" --temp 0.8 --seed 7 || true
            check "one drawn of few: $prompt" same_answer -m "$model" -p "$prompt" \
                --temp 1 --top-p 0.9 --top-k 40 --seed 11 || true
        done
    fi
    # Candidates in CUDA, where they can be compiled.
    if command -v nvcc >/dev/null; then
        check "a candidate's verdict" gpu_quipu ops check rms_norm \
            --kernel "$PWD/examples/rms_norm.cu" || true
        check "a candidate's times" gpu_quipu ops bench rms_norm \
            --kernel "$PWD/examples/rms_norm.cu" -r 3 || true
    fi
    end_tally
}
