# The libraries for other programs, and what `cmake --install` and CPack install where.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# libquipu.so: the same objects; only the functions of quipu.h are visible.
# Before 1.0 each second number may change the interface, so it is a part of the library's name.
set(QUIPU_SOVERSION ${PROJECT_VERSION_MAJOR})
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(QUIPU_SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endif()
add_library(quipu_shared SHARED $<TARGET_OBJECTS:quipu_core> ${SIMD_OBJECTS})
target_link_libraries(quipu_shared PRIVATE PkgConfig::PCRE2 PkgConfig::CJSON Threads::Threads m
  ${CMAKE_DL_LIBS})
target_link_options(quipu_shared PRIVATE
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/packaging/libquipu.map -Wl,--no-undefined)
set_target_properties(quipu_shared PROPERTIES OUTPUT_NAME quipu EXPORT_NAME quipu LINKER_LANGUAGE C
  VERSION ${PROJECT_VERSION} SOVERSION ${QUIPU_SOVERSION}
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/packaging/libquipu.map)
target_include_directories(quipu_shared INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
add_library(quipu::quipu ALIAS quipu_shared)

# libquipu_net.so: with the hub and the server, for programs that link with libcurl and libevent. Python opens it when it
# needs it.
add_library(quipu_net_shared SHARED $<TARGET_OBJECTS:quipu_core> ${SIMD_OBJECTS} $<TARGET_OBJECTS:quipu_hub> $<TARGET_OBJECTS:quipu_server>
  $<TARGET_OBJECTS:quipu_net>)
target_link_libraries(quipu_net_shared PRIVATE PkgConfig::PCRE2 PkgConfig::CJSON PkgConfig::CURL PkgConfig::CRYPTO
  PkgConfig::EVENT PkgConfig::TLS Threads::Threads m ${CMAKE_DL_LIBS})
target_link_options(quipu_net_shared PRIVATE
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/packaging/libquipu.map -Wl,--no-undefined)
set_target_properties(quipu_net_shared PROPERTIES OUTPUT_NAME quipu_net LINKER_LANGUAGE C
  VERSION ${PROJECT_VERSION} SOVERSION ${QUIPU_SOVERSION}
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/packaging/libquipu.map)

# libquipu.a: one object whose other names are local, so that they clash with no other library's. Libraries that were
# found as archives are in it.
set(BUNDLED ${PCRE2_LINK_LIBRARIES} ${CJSON_LINK_LIBRARIES})
list(FILTER BUNDLED INCLUDE REGEX "/lib(pcre2-8|cjson)\\.a$")
if(BUNDLED)
  set(LIBS_PRIVATE "-lm -ldl -pthread")
  set(STATIC_INTERFACE "m;${CMAKE_DL_LIBS};Threads::Threads")
else()
  set(LIBS_PRIVATE "-lpcre2-8 -lcjson -lm -ldl -pthread")
  set(STATIC_INTERFACE "pcre2-8;cjson;m;${CMAKE_DL_LIBS};Threads::Threads")
endif()
set(STATIC_LIBRARY ${PROJECT_BINARY_DIR}/libquipu.a)
add_custom_command(OUTPUT ${STATIC_LIBRARY} DEPENDS quipu_core VERBATIM
  COMMAND ${CMAKE_LINKER} -r -o libquipu.o --whole-archive $<TARGET_FILE:quipu_core> --no-whole-archive ${BUNDLED}
  COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbol=qp_* libquipu.o
  COMMAND ${CMAKE_COMMAND} -E rm -f ${STATIC_LIBRARY}
  COMMAND ${CMAKE_AR} qc ${STATIC_LIBRARY} libquipu.o
  COMMAND ${CMAKE_COMMAND} -E rm -f libquipu.o)
add_custom_target(quipu_static DEPENDS ${STATIC_LIBRARY})

# The manual page and completions, as the program prints them; where this machine cannot run it, one of another build.
set(QUIPU_PRINTER "" CACHE FILEPATH "A program `quipu` of these sources that this machine runs, for builds for others")
if(NOT CMAKE_CROSSCOMPILING)
  set(PRINTER $<TARGET_FILE:quipu>)
elseif(QUIPU_PRINTER)
  set(PRINTER ${QUIPU_PRINTER})
else()
  set(PRINTER ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:quipu>)
endif()
set(PRINTED)
foreach(row "man|quipu.1" "completion bash|quipu.bash" "completion zsh|_quipu" "completion fish|quipu.fish")
  string(REPLACE "|" ";" row "${row}")
  list(GET row 0 words)
  list(GET row 1 name)
  separate_arguments(words)
  set(file ${PROJECT_BINARY_DIR}/generated/${name})
  add_custom_command(OUTPUT ${file} DEPENDS quipu COMMAND ${PRINTER} ${words} > ${file})
  list(APPEND PRINTED ${file})
endforeach()
add_custom_target(quipu_printed DEPENDS ${PRINTED})
# In a tree with tests they are built only when a test needs them.
if(BUILD_TESTING)
  add_custom_target(quipu_install_files)
  set_target_properties(quipu_shared quipu_net_shared PROPERTIES EXCLUDE_FROM_ALL ON)
else()
  add_custom_target(quipu_install_files ALL)
endif()
add_dependencies(quipu_install_files quipu quipu_shared quipu_net_shared quipu_static quipu_printed)

# The licences of what the program and the libraries hold: other libraries that were linked in, and those that the
# server's page takes. Each package has them, because each may be installed without the others.
set(QUIPU_NOTICES "" CACHE PATH "Folder with the licences of libraries that are linked in; none by default")
list(REMOVE_DUPLICATES WITH_LIBRARIES)
function(install_licences folder)
  if(QUIPU_NOTICES)
    install(DIRECTORY ${QUIPU_NOTICES}/ DESTINATION ${folder} ${ARGN})
  endif()
  foreach(package ${WITH_LIBRARIES})
    install(FILES /usr/share/doc/${package}/copyright DESTINATION ${folder} RENAME ${package} ${ARGN})
  endforeach()
endfunction()
set(INTERFACE_HEADERS include/quipu.h include/quipu_status.h include/quipu_net.h)
if(SKBUILD) # the Python package: the libraries and their headers, beside the package's own files
  target_link_options(quipu_shared PRIVATE -s)
  target_link_options(quipu_net_shared PRIVATE -s)
  install(FILES $<TARGET_FILE:quipu_shared> DESTINATION quipu RENAME libquipu.so)
  install(FILES $<TARGET_FILE:quipu_net_shared> DESTINATION quipu RENAME libquipu_net.so)
  install(FILES ${INTERFACE_HEADERS} DESTINATION quipu)
  install_licences(quipu/licenses)
  return()
endif()

# Three components, which are Debian packages below: the program, the libraries, what programs are compiled with.
install(TARGETS quipu RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(TARGETS quipu_shared EXPORT quipuTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
  NAMELINK_COMPONENT development)
install(TARGETS quipu_net_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(FILES ${STATIC_LIBRARY} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(FILES ${INTERFACE_HEADERS} include/quipu_kernel.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development)
install(FILES ${PROJECT_BINARY_DIR}/generated/quipu.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
install(FILES ${PROJECT_BINARY_DIR}/generated/quipu.bash RENAME quipu
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
# zsh reads the first folder under /usr/local, and everywhere on most systems; the second under /usr on Debian.
foreach(folder site-functions vendor-completions)
  install(FILES ${PROJECT_BINARY_DIR}/generated/_quipu DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${folder} COMPONENT program)
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/generated/quipu.fish
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT program)
install(FILES README.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(DIRECTORY doc examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install_licences(${CMAKE_INSTALL_DOCDIR}/licenses COMPONENT program)
install_licences(${CMAKE_INSTALL_DATAROOTDIR}/doc/libquipu${QUIPU_SOVERSION}/licenses COMPONENT library)

file(RELATIVE_PATH PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(packaging/quipu.pc.in generated/quipu.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/generated/quipu.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
set(PACKAGE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/quipu)
install(EXPORT quipuTargets NAMESPACE quipu:: DESTINATION ${PACKAGE_FOLDER} COMPONENT development)
configure_package_config_file(packaging/quipuConfig.cmake.in generated/quipuConfig.cmake
  INSTALL_DESTINATION ${PACKAGE_FOLDER} PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(generated/quipuConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/quipuConfig.cmake
  ${PROJECT_BINARY_DIR}/generated/quipuConfigVersion.cmake DESTINATION ${PACKAGE_FOLDER} COMPONENT development)

if(PROJECT_IS_TOP_LEVEL) # a project that embeds this one makes packages of its own
  include(packaging/debian.cmake)
endif()
