# Builds and runs the suites, and adds up their results. Sourced by ./dev.
#
# Every check appends lines "passed|failed|skipped COUNT NAME[: REASON]" to $TALLY; the last line of a run is
# their sum. After a failed check the others still run.

TALLY=

jobs() { nproc; }

# The folder with models and vectors for tests: QUIPU_TEST_DATA, or a data folder beside the checkout,
# or none; suites skip tests whose data is absent.
find_test_data() {
    if [ -n "${QUIPU_TEST_DATA-}" ]; then
        echo "$QUIPU_TEST_DATA"
        return
    fi
    local folder
    for folder in ../*/data; do
        if [ -d "$folder/stories260K" ]; then
            (cd "$folder" && pwd)
            return
        fi
    done
}

begin_tally() {
    TALLY=$(mktemp)
    trap 'rm -f "$TALLY"; end_ahead' EXIT
}

# Prints what failed, what was not tested and why, and the sum; fails if any check failed.
end_tally() { scripts/tally --close "$TALLY"; }

# check NAME COMMAND...: one check, counted once.
check() {
    local name=$1
    shift
    say "== $name"
    if "$@" >&2; then
        echo "passed 1 $name" >>"$TALLY"
    else
        echo "failed 1 $name" >>"$TALLY"
        return 1
    fi
}

# ahead LOG COMMAND...: begins a build beside the suites that come first, which leave processors idle while they wait
# and at their end; check NAME build_of_ahead then says how it ended. One at a time.
AHEAD=
ahead() {
    AHEAD_LOG=$1
    shift
    set -m # a group of its own, so that it can be ended with all that it started
    (
        renice -n 10 -p $BASHPID >/dev/null || true
        "$@"
    ) </dev/null >"$AHEAD_LOG" 2>&1 &
    AHEAD=$!
    set +m
}
build_of_ahead() {
    local status=0
    wait "$AHEAD" || status=$?
    AHEAD=
    cat "$AHEAD_LOG"
    return $status
}
end_ahead() { [ -z "$AHEAD" ] || kill -- "-$AHEAD" 2>/dev/null || true; }

# run_suites DIR [CTEST-OPTION...]: every suite of a built tree, counted by test function.
run_suites() {
    local dir=$1 run=()
    shift
    say "== suites in $dir"
    # On some Linux kernels ThreadSanitizer needs address space randomisation turned off.
    if [[ $dir == *tsan* ]] && setarch "$(uname -m)" -R true 2>/dev/null; then
        run=(setarch "$(uname -m)" -R)
    fi
    # One suite more than processors, because some wait for a server or for a retry.
    rm -f "$dir/suites.xml"
    "${run[@]}" ctest --test-dir "$dir" --output-on-failure --no-tests=error -j "$(($(jobs) + 1))" \
        --test-output-size-passed 1000000 --test-output-size-failed 1000000 \
        --output-junit suites.xml "$@" </dev/null >&2 || true
    scripts/tally "$dir" "$dir/suites.xml" >>"$TALLY"
}

# build_tree DIR CMAKE-OPTION...
build_tree() {
    local dir=$1
    configure_tree "$@" -DBUILD_TESTING=ON "-DQUIPU_TEST_DATA=$(find_test_data)" && in_tree "$dir" ninja
}

build_sanitized() {
    local dir=$1 sanitizers=$2
    build_tree "$dir" -DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=Debug \
        -DCMAKE_C_FLAGS_DEBUG="-O1 -g1" -DQUIPU_SANITIZE="$sanitizers"
}

test_sanitized() {
    begin_tally
    if check "build $1" build_sanitized "$@"; then run_suites "$1"; fi
    end_tally
}

# soak_server DIR: the server of a built tree under many clients that behave badly.
soak_server() {
    QUIPU_BINARY=$PWD/$1/quipu \
        QUIPU_SOAK_REQUESTS=${SOAK_REQUESTS:-100000} check "soak of $1" python3 tests/test_soak.py
}

# run_programs DIR RUNTIME: random programs of the Python package over the library of a sanitizer's tree, whose runtime
# Python must load first. Python itself leaks what it keeps to its end.
run_programs() {
    local dir=$PWD/$1 run=()
    in_tree "$1" ninja_quietly quipu_shared
    if [[ $1 == *tsan* ]] && setarch "$(uname -m)" -R true 2>/dev/null; then run=(setarch "$(uname -m)" -R); fi
    check "programs of $1" "${run[@]}" env "LD_PRELOAD=$(gcc -print-file-name="$2")" ASAN_OPTIONS=detect_leaks=0 \
        "TSAN_OPTIONS=die_after_fork=0:halt_on_error=1:suppressions=$PWD/python/tests/programs.tsan" "QUIPU_LIBRARY=$dir/libquipu.so" PYTHONPATH=python \
        PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -X faulthandler python/tests/programs.py "${PROGRAMS:-10000}"
}

list_sources() {
    git ls-files -z --cached --others --exclude-standard -- '*.c' '*.h' '*.cu' '*.cuh'
}

check_format() {
    list_sources | xargs -0 clang-format-14 --dry-run --Werror
}

# test_changed COMMIT: the suites that are near to the files that differ from it.
test_changed() {
    local changed suites
    begin_tally
    changed=$(git diff --name-only "$1" && git ls-files --others --exclude-standard)
    [ -n "$changed" ] || die "test --changed: nothing differs from $1; name a commit to compare with"
    suites=$(scripts/reach.py --within "$((120 * $(jobs)))" build-test $changed | cut -d' ' -f2 | tr '\n' '|')
    if check "build with -Werror" build_tree build-test -DCMAKE_C_COMPILER=gcc \
        -DCMAKE_BUILD_TYPE=Release -DQUIPU_WERROR=ON; then
        [ -z "$suites" ] || run_suites build-test -R "^(${suites%|})\$"
    fi
    check "layers" scripts/layers || true
    check "new refusals have tests" scripts/refusals --since "$1" || true
    end_tally
}

test_everything() {
    begin_tally
    local data
    data=$(find_test_data)
    say "test data: ${data:-none (set QUIPU_TEST_DATA); suites that need it skip}"
    scripts/fetch-model --complete || check "the default model" scripts/fetch-model || true
    check "packages of PyPI for the comparisons" differential_python $DIFFERENTIAL_SMALL || true
    if check "build with -Werror" build_tree build-test -DCMAKE_C_COMPILER=gcc \
        -DCMAKE_BUILD_TYPE=Release -DQUIPU_WERROR=ON; then
        check "every header compiles alone" in_tree build-test ninja_quietly headers || true
        : >build-test/refusals.log
        ahead build-asan.log build_sanitized build-asan address,undefined
        run_suites build-test
        # A report: which sentences are said depends on random cases and on what was skipped.
        say "== sentences of refusal"
        scripts/refusals build-test/refusals.log >&2 || true
    fi
    check "layers" scripts/layers || true
    if command -v clang-format-14 >/dev/null; then
        check "format" check_format || true
    else
        say "== format: not checked, since this system has no clang-format-14"
        echo "skipped 1 format: this system has no clang-format-14" >>"$TALLY"
    fi
    [ -n "$AHEAD" ] || ahead build-asan.log build_sanitized build-asan address,undefined
    if check "build with ASan and UBSan" build_of_ahead; then
        [ -n "$(missing_packages arm)" ] || ahead build-arm.log build_arm_briefly
        run_suites build-asan
    fi
    if [ -z "$(missing_packages arm)" ]; then
        [ -n "$AHEAD" ] || ahead build-arm.log build_arm_briefly
        test_arm_briefly
    else
        say "== aarch64: not tested, since this system has no $(missing_packages arm | tr '\n' ' ')"
        echo "skipped 1 aarch64: this system has no $(missing_packages arm | tr '\n' ' ')" >>"$TALLY"
    fi
    end_tally
}
