# The packages of Debian and Ubuntu that each purpose needs. Sourced by ./dev.
#
# A line is: purpose, package, and a probe that succeeds if the software is present, installed in any
# way. Probes are quick, so they run at every start.

packages_table() {
    cat <<'END'
build   gcc                 command -v gcc
build   libc6-dev           test -e /usr/include/stdio.h
build   cmake               command -v cmake
build   ninja-build         command -v ninja
build   pkg-config          command -v pkg-config
build   libpcre2-dev        pkg-config --exists libpcre2-8
build   libcjson-dev        pkg-config --exists libcjson
build   libcurl4-openssl-dev pkg-config --exists libcurl
build   libevent-dev        pkg-config --exists libevent_core
build   libssl-dev          pkg-config --exists libcrypto
library libjs-marked        test -e /usr/share/javascript/marked/marked.umd.min.js
library node-dompurify      test -e /usr/share/nodejs/dompurify/dist/purify.min.js
library libjs-highlight.js  test -e /usr/share/javascript/highlight.js/highlight.min.js
library libjs-katex         test -e /usr/share/javascript/katex/katex.min.js
library fonts-katex         test -e /usr/share/fonts/truetype/katex/KaTeX_Main-Regular.woff2
test    libzmq5             python3 -c "import ctypes; ctypes.CDLL('libzmq.so.5')"
test    libcmocka-dev       pkg-config --exists cmocka
test    python3-cffi        /usr/bin/python3 -c "import cffi"
test    python3-numpy       /usr/bin/python3 -c "import numpy"
test    python3-pytest      /usr/bin/python3 -c "import pytest"
test    mypy                /usr/bin/python3 -c "import mypy"
test    python3-pydantic    /usr/bin/python3 -c "import pydantic"
test    python3-sphinx      /usr/bin/python3 -c "import sphinx"
test    python3-jsonschema  /usr/bin/python3 -c "import jsonschema"
test    openmpi-bin         command -v mpirun
test    groff               command -v groff
test    strace              command -v strace
test    zsh                 command -v zsh
test    fish                command -v fish
page    chromium            command -v chromium || command -v chromium-browser || command -v google-chrome
test    g++                 command -v g++
test    python3-jinja2      /usr/bin/python3 -c "import jinja2"
test    python3             command -v python3
arm     gcc-aarch64-linux-gnu command -v aarch64-linux-gnu-gcc
arm     qemu-user-static    command -v qemu-aarch64-static
arm     debian-archive-keyring test -f /usr/share/keyrings/debian-archive-keyring.gpg
package dpkg-dev            command -v dpkg-source
package lintian             command -v lintian
package debootstrap         command -v debootstrap
package python3-venv        /usr/bin/python3 -c "import ensurepip"
package xz-utils            command -v xz
format  clang-format-14     command -v clang-format-14
layers  python3             command -v python3
model   python3             command -v python3
model   python3-pip         python3 -m pip --version
fuzz    clang               command -v clang
fuzz    libclang-rt-dev     test -e "$(clang --print-file-name=libclang_rt.fuzzer-x86_64.a)"
END
}

# Of PyPI, for ./dev differential; ./dev test takes the small ones.
DIFFERENTIAL_SMALL='jsonschema jinja2 tokenizers sentencepiece protobuf gguf'
DIFFERENTIAL_LARGE='torch transformers'

# differential_python PACKAGE...: the Python build-differential/bin/python with them.
differential_python() {
    local python=build-differential/bin/python packages=$*
    [ -x $python ] || python3 -m venv build-differential || return 1
    packages=${packages/protobuf/google.protobuf}
    $python -c "$(printf 'import %s\n' $packages)" 2>/dev/null ||
        $python -m pip install --quiet --disable-pip-version-check "$@"
}

# missing_packages PURPOSE...: prints the packages whose probe fails, one a line.
missing_packages() {
    local purpose package probe
    packages_table | while read -r purpose package probe; do
        [[ " $* " == *" $purpose "* ]] || continue
        eval "$probe" </dev/null >/dev/null 2>&1 || echo "$package"
    done | sort -u
}

# offers_packages PURPOSE...: whether this system has the packages, installed or to be installed.
offers_packages() {
    local package
    for package in $(missing_packages "$@"); do
        apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [^(]' || return 1
    done
}

# take_packages PURPOSE...: installs what is missing where that is possible; the build does without.
take_packages() {
    { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; } && offers_packages "$@" || return 0
    require_packages "$@"
}

# require_packages PURPOSE...: installs what is missing, or says what to install and stops.
require_packages() {
    local missing as_root=()
    missing=$(missing_packages "$@" | tr '\n' ' ')
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null ||
        die "missing: ${missing}(Debian's names); install them with this system's package manager"
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null ||
            die "packages are missing, and there is no sudo; as root, run: apt-get install $missing"
        as_root=(sudo)
    fi
    say "installing ${missing}"
    # apt-get ends with 0 after Ctrl-C, and must not read stdin: it may be text for the chat.
    trap 'die "interrupted; what is half installed, the next start completes"' INT
    {
        # 100: a repository failed, perhaps one that these packages do not come from.
        { "${as_root[@]}" apt-get -q update || [ $? = 100 ]; } &&
            "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
                apt-get -q -y install --no-install-recommends $missing
    } </dev/null >&2 || die "packages are missing; as root, run: apt-get update && apt-get install $missing"
    trap - INT
    missing=$(missing_packages "$@" | tr '\n' ' ')
    [ -z "$missing" ] || die "installed, yet still not usable: $missing"
}
