# Builds for aarch64 and runs what was built under QEMU. Sourced by ./dev after suites.sh.
#
# build-arm-root holds Debian's libraries for arm64 (scripts/sysroot). Suites that are programs run
# as CTest runs them, through QEMU; those that are scripts test the same sources on this machine
# already, and call the program through build-arm/quipu-arm only where that is all they do.

ARM_PACKAGES=(libc6-dev libpcre2-dev libcjson-dev libcurl4-openssl-dev libevent-dev libssl-dev libcmocka-dev)

# Features that hide one variant after another of the operators.
ARM_MASKS=(bf16 i8mm asimddp asimd)

# Processors without dotprod, and without i8mm and BF16, as which QEMU runs the suites of kernels. By default it has all.
ARM_PROCESSORS=(cortex-a72 neoverse-n1)
ARM_SUITES='^test_(codec|linear_.*|op_.*|stories)$'

# configure_arm DIR CMAKE-OPTION...
configure_arm() {
    local dir=$1
    shift
    scripts/sysroot build-arm-root arm64 bookworm "${ARM_PACKAGES[@]}" >build-arm-root.log 2>&1 || {
        cat build-arm-root.log >&2
        return 1
    }
    configure_tree "$dir" --toolchain "$PWD/scripts/sysroot.cmake" "-DCMAKE_SYSROOT=$PWD/build-arm-root" \
        -DQUIPU_WERROR=ON -DQUIPU_GPU=off "-DQUIPU_TEST_DATA=$(find_test_data)" "$@"
}

build_arm() {
    configure_arm build-arm -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON && in_tree build-arm ninja
}

# What the short form runs, in half the time that -O3 takes.
build_arm_briefly() {
    configure_arm build-arm-brief -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O1 &&
        in_tree build-arm-brief ninja quipu quipu_shared
}

run_arm() {
    qemu-aarch64-static -L build-arm-root "$@"
}

# check_arm_ops DIR MASK VARIANT OPERATOR...
check_arm_ops() {
    local dir=$1 mask=$2 variant=$3
    shift 3
    QUIPU_CPU_MASK=$mask run_arm "$dir/quipu" ops check --variant "$variant" --timeout 600 "$@"
}

# ended PID LOG: how a command beside others has ended, and what it printed.
ended() {
    local status=0
    wait "$1" || status=$?
    cat "$2"
    return $status
}

# What the short form checks, all lines beside each other: features that are masked, variant, operators. Each line
# has the kernels that the lines before it do not choose.
ARM_BRIEFLY=(
    "nothing best linear rms_norm rope"
    "nothing neon_bf16_rounded linear"
    "i8mm neon_dotprod linear"
    "asimddp neon_int8 linear"
    "asimd best rms_norm rope"
)

# In two minutes: -Werror, the library linked, a text that a model makes, and the kernels of products with each feature
# masked. The build was begun ahead.
test_arm_briefly() {
    local i what running=()
    check "build for aarch64 with -Werror" build_of_ahead || return 0
    for i in "${!ARM_BRIEFLY[@]}"; do
        read -ra what <<<"${ARM_BRIEFLY[i]}"
        check_arm_ops build-arm-brief "${what[@]/nothing/}" >"build-arm-brief/checks.$i" 2>&1 &
        running[i]=$!
    done
    check "aarch64: a model makes a text" run_arm build-arm-brief/quipu run -m synthetic:tiny -p 1,2,3 -n 8 || true
    for i in "${!ARM_BRIEFLY[@]}"; do
        check "aarch64: masked, variant, operators: ${ARM_BRIEFLY[i]}" ended "${running[i]}" "build-arm-brief/checks.$i" || true
    done
}

test_arm() {
    local mask processor
    begin_tally
    if check "build for aarch64 with -Werror" build_arm; then
        run_suites build-arm
        for processor in "${ARM_PROCESSORS[@]}"; do
            QEMU_CPU=$processor run_suites build-arm -R "$ARM_SUITES"
        done
        for mask in '' "${ARM_MASKS[@]}"; do
            check "aarch64: all kernels with '${mask:-nothing}' masked" check_arm_ops build-arm "$mask" || true
        done
    fi
    end_tally
}
