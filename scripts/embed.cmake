# Writes a C file that holds other files: cmake -DROOT=DIR -DOUT=FILE.c -DFILES=[NAME=]PATH,... -P embed.cmake
#
# PATHs are absolute or relative to ROOT. NAMEs, or else PATHs, are the texts' names in `embedded_texts`
# (base/embedded.h). A NAME without a PATH has an empty text.
cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" FILES "${FILES}")
set(texts "")
set(rows "")
set(index 0)
foreach(entry ${FILES})
  string(REGEX REPLACE "=.*" "" name "${entry}")
  string(REGEX REPLACE ".*=" "" path "${entry}")
  set(bytes "")
  set(size 0)
  if(path)
    get_filename_component(path "${path}" ABSOLUTE BASE_DIR ${ROOT})
    file(SIZE "${path}" size)
    set(bytes ".incbin \\\"${path}\\\"\\n")
  endif()
  string(APPEND texts "extern const char embedded_${index}[];\n"
    "__asm__(\".section .rodata\\nembedded_${index}:\\n${bytes}.byte 0\\n.previous\");\n")
  string(APPEND rows "    {\"${name}\", embedded_${index}, ${size}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUT}
"/* Made by scripts/embed.cmake. */
#include \"base/embedded.h\"

${texts}
const embedded_text embedded_texts[] = {
${rows}    {0}};
")
