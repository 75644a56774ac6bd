# Writes texts into a C file: cmake -DROOT=DIR -DOUT=FILE.c -DFILES=PATH,PATH... -P embed.cmake
#
# PATHs are relative to ROOT and are the texts' names in `embedded_texts` (base/embedded.h).
cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" FILES "${FILES}")
set(arrays "")
set(rows "")
set(index 0)
foreach(path ${FILES})
  file(READ ${ROOT}/${path} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  # Eight bytes a line.
  string(REGEX REPLACE "((.....)(.....)(.....)(.....)(.....)(.....)(.....)(.....))" "\\1\n" bytes
         "${bytes}")
  string(APPEND arrays "static const unsigned char text_${index}[] = {\n${bytes}0};\n")
  string(APPEND rows "    {\"${path}\", (const char *)text_${index}, sizeof text_${index} - 1},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT
"/* Made by scripts/embed.cmake. */
#include \"base/embedded.h\"

@arrays@
const embedded_text embedded_texts[] = {
@rows@    {0}};
")
