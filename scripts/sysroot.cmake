# CMake's toolchain over the libraries of a folder that scripts/sysroot made: this machine's compiler, for aarch64 Debian's
# cross compiler, and QEMU to run what is built.
#
#     cmake --toolchain scripts/sysroot.cmake -DCMAKE_SYSROOT=FOLDER ...
if(EXISTS ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu)
  set(triplet aarch64-linux-gnu)
  set(CMAKE_SYSTEM_NAME Linux)
  set(CMAKE_SYSTEM_PROCESSOR aarch64)
  set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
  set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${CMAKE_SYSROOT})
else()
  set(triplet x86_64-linux-gnu)
  set(CMAKE_C_COMPILER gcc)
endif()
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES CMAKE_SYSROOT)
# Debian's compilers look into this system's folders before the root's.
set(libraries ${CMAKE_SYSROOT}/usr/lib/${triplet})
set(in_root "-B${libraries} -L${libraries} -L${CMAKE_SYSROOT}/lib/${triplet}")
set(CMAKE_EXE_LINKER_FLAGS_INIT "${in_root}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${in_root}")
if(triplet STREQUAL "aarch64-linux-gnu")
  execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=include OUTPUT_VARIABLE own OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(headers ${CMAKE_SYSROOT}/usr/include)
  set(CMAKE_C_FLAGS_INIT "-nostdinc -isystem ${own} -isystem ${headers}/${triplet} -isystem ${headers}")
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR}
  ${CMAKE_SYSROOT}/usr/lib/${triplet}/pkgconfig:${CMAKE_SYSROOT}/usr/lib/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)
