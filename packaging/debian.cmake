# The packages quipu, libquipu0.2 and libquipu-dev: `cpack -G DEB` in a folder that was configured with
# -DCMAKE_INSTALL_PREFIX=/usr. They need the libraries that quipu was linked with: this system's, or only the C library
# (`./dev package`).
file(STRINGS packaging/maintainer QUIPU_MAINTAINER REGEX "^[^#]")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT ${QUIPU_MAINTAINER})
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL program library development)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(CMAKE_CROSSCOMPILING) # dpkg-shlibdeps only knows this system's packages: name the dependencies to cpack
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
endif()
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian_files.cmake)
set(CPACK_QUIPU_SOURCE ${PROJECT_SOURCE_DIR})
set(CPACK_QUIPU_BUNDLED ${BUNDLED})

set(WHAT "quipu runs models of the Llama family, from GGUF files and directories of
Hugging Face, on CPUs and on NVIDIA GPUs.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME quipu)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
# Models are downloaded over TLS, which needs the certificates.
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "${WHAT}

This package has the program: text from the command line, a server with the
APIs of OpenAI, Anthropic and Ollama, and commands that print, check and time
every operator, tensor and instruction of a forward pass.")

set(LIBRARY_PACKAGE libquipu${QUIPU_SOVERSION})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${LIBRARY_PACKAGE})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "${WHAT}

This package has the shared libraries: libquipu, and libquipu_net, which also
fetches models and serves them.")
# Programs find the libraries and what to depend on.
file(WRITE ${PROJECT_BINARY_DIR}/generated/triggers "activate-noawait ldconfig\n")
file(WRITE ${PROJECT_BINARY_DIR}/generated/shlibs "libquipu ${QUIPU_SOVERSION} ${LIBRARY_PACKAGE} (>= ${PROJECT_VERSION})
libquipu_net ${QUIPU_SOVERSION} ${LIBRARY_PACKAGE} (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA
  "${PROJECT_BINARY_DIR}/generated/triggers;${PROJECT_BINARY_DIR}/generated/shlibs")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libquipu-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${LIBRARY_PACKAGE} (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
if(NOT BUNDLED) # a program that is linked with libquipu.a needs the other libraries of quipu.pc
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "libpcre2-dev, libcjson-dev")
endif()
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "${WHAT}

This package has the headers, the static library, and the files by which
pkg-config and CMake find them.")
include(CPack)
