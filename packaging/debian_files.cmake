# What Debian wants in every package: its copyright and changelog; documents compressed. CPack runs this between
# installing the components' files and packing them.
execute_process(COMMAND git log -1 --format=%cD WORKING_DIRECTORY ${CPACK_QUIPU_SOURCE} OUTPUT_VARIABLE DATE
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT DATE) # a source without its history
  string(TIMESTAMP DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
endif()
foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER ${component} key)
  set(name ${CPACK_DEBIAN_${key}_PACKAGE_NAME})
  set(root ${CPACK_TEMPORARY_DIRECTORY}/${component})
  set(doc ${root}/usr/share/doc/${name})
  configure_file(${CPACK_QUIPU_SOURCE}/packaging/copyright ${doc}/copyright COPYONLY)
  file(WRITE ${doc}/changelog.Debian "${CPACK_DEBIAN_PROGRAM_PACKAGE_NAME} (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}: the project's CHANGELOG.md says what changed.

 -- ${CPACK_PACKAGE_CONTACT}  ${DATE}
")
  file(REMOVE ${doc}/LICENSE) # common-licenses has it
  if(EXISTS ${doc}/CHANGELOG.md)
    file(RENAME ${doc}/CHANGELOG.md ${doc}/changelog)
  endif()
  # libcurl is in what runs on several systems, whose own have different names and need different libraries.
  if(CPACK_QUIPU_BUNDLED AND NOT component STREQUAL "development")
    file(WRITE ${root}/usr/share/lintian/overrides/${name} "${name}: embedded-library curl *\n")
  endif()
  file(GLOB long ${doc}/changelog* ${root}/usr/share/man/*/*)
  execute_process(COMMAND gzip -9 -n ${long} COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB_RECURSE files ${root}/usr/share/*)
  file(CHMOD ${files} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endforeach()
