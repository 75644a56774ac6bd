#!/usr/bin/env bash
# The tools that run kernels for tests find them and launch them. The fake driver of tests/fake_cuda logs
# the launches; it runs no kernel, so all tokens are 0.
set -euo pipefail
cd "$(dirname "$0")"

programs=$(dirname "${QUIPU_BINARY:?}")/tests
log=$(mktemp)
trap 'rm -f "$log" "$log.err"' EXIT

# launches KERNEL TOOL ARGUMENT...: the tool launches the kernel.
launches() {
    local kernel=$1
    shift
    if ! LD_LIBRARY_PATH=$programs/fake_cuda QUIPU_FAKE_CUDA_LOG=$log "$programs/$1" "${@:2}" \
        >/dev/null 2>"$log.err"; then
        if grep -q "built without GPU code" "$log.err"; then
            echo "skipped: the build has no GPU code"
            exit 77
        fi
        cat "$log.err" >&2
        exit 1
    fi
    grep -q "launch $kernel " "$log" || {
        echo "$*: no launch of $kernel" >&2
        exit 1
    }
}

launches mega_64_F16_1_delayed tool_delays synthetic:tiny:BF16 20 200
launches mega_64_F16_1_delayed tool_delays synthetic:tiny:BF16 20 200 drawn
launches mega_64_F16_1_delayed tool_delays synthetic:tiny:BF16 20 200 ranks
launches mega_64_F16_1_delayed tool_delays synthetic:tiny:BF16 20 200 ranks-drawn
launches mega_64_F16_0_delayed tool_delays synthetic:tiny:Q4_K 20 200 likeliest
launches mega_64_F16_0_delayed tool_delays synthetic:tiny:Q4_K 20 200 drawn
launches mega_batch_64_F16_1_delayed tool_delays synthetic:tiny:BF16 16 200 8
launches run_linear_chain_16_delayed tool_delays synthetic:tiny:BF16 32 200 16
launches mega_64_F16_1_no_waits tool_waits synthetic:smollm2-135m:BF16 32 1
