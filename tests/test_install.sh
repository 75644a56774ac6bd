#!/usr/bin/env bash
# What `cmake --install` installs: programs in C link with the shared and with the static library, even
# if they define names that the library uses internally; only qp_ names are visible; pkg-config, CMake's
# package, the manual page, the completions and the Python package work from the installed folder.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${QUIPU_BUILD:?the build folder}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
failures=0

check() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$place/log" 2>&1; then return; fi
    echo "failed: $name"
    sed 's/^/  /' "$place/log"
    failures=$((failures + 1))
}

cmake --build "$build" --target quipu_install_files >"$place/log" 2>&1 || {
    cat "$place/log"
    exit 1
}
cmake --install "$build" --prefix "$place/usr" --strip >"$place/log"
lib=$(dirname "$(find "$place/usr" -name libquipu.a)")
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib

cat >"$place/program.c" <<'END'
#include <quipu.h>
#include <stdio.h>
#include <string.h>

/* Names that the library has for itself. */
int json_parse(void) { return 1; }
int error_set(void) { return 2; }
int lower_build(void) { return 3; }

int main(int argc, char **argv)
{
    qp_error error = {0};
    qp_vocabulary *vocabulary;
    qp_tokens tokens = {0};
    char *text;
    if (strcmp(qp_version(), QP_VERSION) != 0 || argc != 2) return 2;
    if (qp_vocabulary_open(argv[1], &vocabulary, &error)) return fputs(error.message, stderr), 1;
    if (qp_tokenize(vocabulary, "the cat", 7, QP_BOS_NEVER, &tokens, &error)) return 3;
    if (qp_detokenize(vocabulary, tokens.data, tokens.count, 0, &text, NULL, &error)) return 4;
    puts(text);
    qp_free(text);
    qp_tokens_free(&tokens);
    qp_vocabulary_close(vocabulary);
    return json_parse() + error_set() + lower_build() - 6;
}
END
model=tests/golden/models/llama-text.gguf
runs() { "$1" "$model" | grep -q "the cat"; }

read -ra shared <<<"$(pkg-config --cflags --libs quipu)"
read -ra static <<<"$(pkg-config --cflags quipu) $lib/libquipu.a $(pkg-config --static --libs quipu | sed 's/-lquipu//')"
# The header and the shared library need no other package's development files.
check "pkg-config alone" env "PKG_CONFIG_LIBDIR=$lib/pkgconfig" pkg-config --cflags --libs quipu
check "link with libquipu.so" gcc -Wall -Werror "$place/program.c" -o "$place/shared" "${shared[@]}"
check "run with libquipu.so" runs "$place/shared"
check "link with libquipu.a" gcc -Wall -Werror "$place/program.c" -o "$place/static" "${static[@]}"
check "run with libquipu.a" runs "$place/static"
check "C++ takes the headers" g++ -x c++ -fsyntax-only -Wall -Werror "-I$place/usr/include" - <<<'#include <quipu_net.h>'

only_qp() { # the visible names of a library, but for the version's own
    local names
    names=$(nm "$@" | awk '$2 ~ /[TDBRVW]/ && $3 !~ /^qp_/ { print $3 }')
    [ -z "$names" ] || { echo "$names"; return 1; }
}
check "only qp_ names in libquipu.so" only_qp -D --defined-only "$lib/libquipu.so"
check "only qp_ names in libquipu_net.so" only_qp -D --defined-only "$lib/libquipu_net.so"
check "only qp_ names in libquipu.a" only_qp -g --defined-only "$lib/libquipu.a"
declared() { # every function that the header declares can be linked with
    comm -23 <(grep -v typedef "$place/usr/include/quipu.h" | grep -oE '\bqp_[a-z_]+\(' | tr -d '(' | sort -u) \
        <(nm -D --defined-only "$lib/libquipu.so" | sed 's/.* //; s/@.*//' | sort -u) >"$place/missing"
    [ ! -s "$place/missing" ] || { cat "$place/missing"; return 1; }
}
check "all of quipu.h is there" declared

mkdir "$place/project"
cat >"$place/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(quipu 0.2 REQUIRED)
add_executable(shared ../program.c)
target_link_libraries(shared PRIVATE quipu::quipu)
add_executable(static ../program.c)
target_link_libraries(static PRIVATE quipu::quipu_static)
END
by_cmake() {
    cmake -G Ninja -S "$place/project" -B "$place/project/build" "-DCMAKE_PREFIX_PATH=$place/usr" &&
        cmake --build "$place/project/build" && runs "$place/project/build/shared" &&
        runs "$place/project/build/static"
}
check "CMake's package" by_cmake
check "the program" grep -q "^quipu $(sed -n 's/.*QP_VERSION *"\(.*\)"/\1/p' include/quipu.h) " <("$place/usr/bin/quipu" version)
check "the manual page" grep -q "^\.TH QUIPU 1" "$place/usr/share/man/man1/quipu.1"
check "the documents" test -f "$place/usr/share/doc/quipu/doc/KERNELS.md" -a -f "$place/usr/share/doc/quipu/examples/rms_norm.c"
check "bash's completions" bash -n "$place/usr/share/bash-completion/completions/quipu"
is_hardened() {
    local headers
    headers=$(readelf -hldW "$1")
    [[ $headers == *DYN* && $headers == *BIND_NOW* && $headers == *GNU_RELRO* ]] &&
        ! grep 'GNU_STACK.*RWE' <<<"$headers" && [[ $(nm -D "$1") == *__stack_chk_fail* ]]
}
check "hardening" is_hardened "$place/usr/bin/quipu"

# Each installed file is in one component, which are the Debian packages.
component() { # NAME: the files that it installs
    cmake --install "$build" --prefix "$place/$1" --component "$1" >/dev/null && (cd "$place/$1" && find . ! -type d | sort)
}
in_components() {
    local all
    all=$(for name in program library development; do component $name; done | sort)
    diff <(cd "$place/usr" && find . ! -type d | sort) <(echo "$all") &&
        test -x "$place/program/bin/quipu" -a -f "$place/development/include/quipu.h" -a ! -e "$place/development/bin" &&
        [ "$(find "$place/library" ! -type d | grep -vcE '/libquipu(_net)?\.so\.|/licenses/')" = 0 ]
}
check "components" in_components
# The libraries hold what the program holds of others, and may be installed without it.
same_licences() {
    diff <(cd "$place/program/share/doc/quipu/licenses" 2>/dev/null && cat ./* || true) \
        <(cd "$place"/library/share/doc/libquipu*/licenses 2>/dev/null && cat ./* || true)
}
check "licences" same_licences

python=/usr/bin/python3
check "the Python package" env "QUIPU_LIBRARY=$lib/libquipu.so" "QUIPU_HEADER=$place/usr/include/quipu.h" \
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=python "$python" -m pytest -q -p no:cacheprovider python/tests
[ $failures = 0 ]
