# The proof of the kernels that decode, on a machine with a GPU. Sourced by ./dev; uses
# cuda_suites.sh and suites.sh's tally.
#
# PROOF_MODELS are the models whose tokens are compared with the references. PROOF_TOKENS (1000000) is
# the number of tokens that all kinds of kernels together make while their warps sleep at random.
# PROOF_RANK_TOKENS (100000) is that of each kind of the part "ranks", which needs two GPUs and runs only
# when it is named.
# QUIPU_TESTS is the folder with the built tests and tools.

PROOF_TYPES="BF16 Q8_0 Q4_0 Q4_1 Q4_K Q6_K" # that kernels whose warps sleep read
# Kinds of kernels whose warps sleep: share of each 40 tokens : type of weights : mode : tokens before
# (21 without a number).
PROOF_DELAYS="7:BF16:likeliest 2:BF16:likeliest:1000 4:BF16:drawn 1:BF16:drawn:1000
    2:Q8_0:likeliest 2:Q4_0:likeliest 1:Q4_1:likeliest 2:Q4_K:likeliest 1:Q6_K:likeliest 1:F8:likeliest
    1:Q8_0:drawn 1:Q4_0:drawn 1:Q4_K:drawn 1:Q6_K:drawn
    2:BF16:2 1:BF16:3 1:BF16:5 4:BF16:8 1:BF16:8:1000 1:BF16:16 1:BF16:33 2:BF16:64"

proof_tool() {
    local name=$1
    shift
    "${QUIPU_TESTS:-$PWD/build-test/tests}/$name" "$@"
}

# A thousand of the likeliest tokens, compared with the references position by position.
thousand_tokens() {
    local file found=0
    local proof=(tests/scripts/greedy_proof.py --quipu "${QUIPU_BINARY:-$PWD/build/quipu}")
    file=$(mktemp)
    "${proof[@]}" make "$file" "$1" && "${proof[@]}" hold "$file" || found=$?
    rm -f "$file"
    return $found
}

prove_tokens() {
    local model
    # shellcheck disable=SC2086
    for model in ${PROOF_MODELS:-$(printf 'synthetic:tiny:%s ' $PROOF_TYPES F16)}; do
        check "a thousand tokens of $model" thousand_tokens "$model" || true
    done
}

# Suites: repeated runs, other sequences in the batch, orders, strategies, damage, the watchdog, costs, traces.
prove_suites() {
    local suite
    for suite in test_mega test_mega_several test_mega_cache_f8 test_mega_f8 test_mega_sampling test_cuda \
        test_cuda_attention test_cuda_batch test_cuda_contexts test_cuda_decode test_cuda_prompts test_cuda_ranks test_mega_ranks \
        test_mega_ranks_one_gpu test_cuda_sampled_batch test_cuda_wide test_measure test_trace_cuda; do
        check "$suite" proof_tool $suite || true
    done
}

prove_delays() {
    local kind share type how context
    for kind in $PROOF_DELAYS; do
        IFS=: read -r share type how context <<<"$kind"
        check "tokens by warps that sleep: $type, $how, after ${context:=21} tokens" proof_tool \
            tool_delays "synthetic:tiny:$type" $((${PROOF_TOKENS:-1000000} * share / 40)) 2000 \
            "$how" "$context" || true
    done
}

# Ranks on two GPUs, and on four where they are there, whose warps sleep. tiny has two KV heads, and a
# rank of the megakernel has one or more.
prove_ranks() {
    local how n model
    for n in 2 4; do
        [ "$n" -le "$(nvidia-smi -L | wc -l)" ] || continue
        [ "$n" = 2 ] && model=synthetic:tiny:BF16 || model=synthetic:llama-3.2-1b:BF16
        for how in ranks ranks:400 ranks-drawn ranks-8 ranks-64:400; do
            check "tokens of $n GPUs by warps that sleep: $how" proof_tool tool_delays "$model" \
                "${PROOF_RANK_TOKENS:-100000}" 2000 "$n-${how%%:*}" \
                "$([[ $how == *:* ]] && echo "${how##*:}" || echo 21)" || true
        done
    done
}

# sanitized TOOL COMMAND...: prints nothing if the sanitizer finds nothing, else its report.
sanitized() {
    local tool=$1 said found=0
    shift
    said=$(compute-sanitizer --tool "$tool" --error-exitcode 9 "$@" 2>&1) || found=$?
    [ $found = 0 ] && grep -q 'SUMMARY: 0 ' <<<"$said" && return
    grep '^=========' <<<"$said" | head -40
    echo "status $found; $(tail -1 <<<"$said")"
    return 1
}

# check_bench TOOL NAME OPTION...: the same for quipu bench, with CSV because that does not measure the
# GPU's read bandwidth.
check_bench() {
    local tool=$1 name=$2
    shift 2
    check "$tool: $name" sanitized "$tool" "${QUIPU_BINARY:-$PWD/build/quipu}" bench --device cuda \
        -o csv -r 1 "$@" || true
}

# Contexts of both kinds: where each block has its own attention, and where it has parts.
sanitize_mega() {
    local tool=$1 type depth rows
    for type in $PROOF_TYPES F16; do
        for depth in 40 400; do
            check_bench "$tool" "$type after $depth tokens" --exec megakernel -m "synthetic:tiny:$type" \
                -p 0 -n 4 -d $depth
        done
        check "$tool: $type, drawn" sanitized "$tool" "${QUIPU_BINARY:-$PWD/build/quipu}" run \
            --device cuda --exec megakernel -m "synthetic:tiny:$type" -p 1,2,3 -n 6 --temp 0.8 --top-k 40 \
            --seed 7 --ignore-eos --raw --json || true
    done
    for rows in 2 8; do
        check_bench "$tool" "$rows sequences" --exec megakernel -m synthetic:tiny:BF16 -p 0 -n 4 -d 400 \
            --parallel $rows
    done
}

# Prompts, and sequences side by side with the machine cuda.
sanitize_operators() {
    local tool=$1 rows
    for rows in 1 16 64; do
        check_bench "$tool" "operators, $rows sequences" --exec cuda -m synthetic:tiny:BF16 -p 70 \
            -n 3 --parallel $rows
    done
    check_bench "$tool" "operators, Q4_K" --exec cuda -m synthetic:tiny:Q4_K -p 70 -n 3
}

# racecheck runs only with the kernels for tests, in which every lane signals that it has read a stage of
# the ring (see src/vm/mega/kernels.cu). The other kernels are checked below.
racecheck_mega() {
    local kind type how context tokens
    # shellcheck disable=SC2086
    for kind in ${PROOF_KINDS:-$(printf '%s:likeliest ' $PROOF_TYPES) BF16:drawn Q4_K:drawn \
        Q6_K:drawn BF16:2 BF16:8}; do
        IFS=: read -r type how <<<"$kind"
        case $how in
        [0-9]*) tokens=$((2 * how)) ;;
        *) tokens=2 ;;
        esac
        for context in 21 400; do
            check "racecheck: $type, $how, after $context tokens" sanitized racecheck \
                --kernel-name kernel_substring=delayed \
                "${QUIPU_TESTS:-$PWD/build-test/tests}/tool_delays" "synthetic:tiny:$type" \
                $tokens 200 "$how" $context alone || true
        done
    done
}

# A short prompt and a token with all kernels; only the attention of a longer one; products of few rows,
# and of many rows fused with the operators after them. Not the kernel of 9 to 64 sequences, which racecheck
# cannot run as a part of a whole model.
racecheck_operators() {
    local type
    check_bench racecheck operators --exec cuda -m synthetic:tiny:BF16 -p 17 -n 1
    check "racecheck: a prompt's attention" sanitized racecheck \
        --kernel-name kernel_substring=paged_prefill "${QUIPU_BINARY:-$PWD/build/quipu}" bench \
        --device cuda -o csv -r 1 --exec cuda -m synthetic:tiny:Q4_1 -p 60 -n 0 || true
    for type in $PROOF_TYPES F16; do
        check "racecheck: products of five rows, $type" sanitized racecheck \
            --kernel-name kernel_substring=linear_eight "${QUIPU_BINARY:-$PWD/build/quipu}" logits \
            --device cuda --exec cuda -m "synthetic:tiny:$type" --ids 1,2,3,4,5 --json || true
    done
    check "racecheck: products of prompts" sanitized racecheck \
        --kernel-name kernel_substring=linear_wide \
        "${QUIPU_TESTS:-$PWD/build-test/tests}/test_cuda_prompts" || true
}

prove_sanitizers() {
    local tool
    for tool in memcheck synccheck; do
        sanitize_mega $tool
        sanitize_operators $tool
    done
    racecheck_mega
    racecheck_operators
}

# prove_cuda PART...: tokens, suites, delays, sanitizers, ranks; without arguments all but the last.
prove_cuda() {
    local part
    [ -e /dev/nvidiactl ] || die "cuda-proof: there is no NVIDIA GPU here"
    begin_tally
    [ $# -gt 0 ] || set -- tokens suites delays sanitizers
    for part; do
        declare -F "prove_$part" >/dev/null || die "cuda-proof: no part '$part'"
        "prove_$part"
    done
    end_tally
}
