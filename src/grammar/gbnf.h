/* llama.cpp's notation of grammars, GBNF:
 *
 *     root  ::= "yes" | "no" | list       # a comment
 *     list  ::= "[" item ("," item)* "]"
 *     item  ::= [a-z0-9]{1,8}
 *
 * Texts and classes have the escapes \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH; "." is any
 * character. A rule ends at the end of a line, except in brackets and before or after "|".
 */
#pragma once

#include "grammar/grammar.h"

enum { GBNF_MAX_NESTING = 100 };

/* Adds the rules of the text; "root" is the first. QP_FORMAT with the line of an error. */
qp_status gbnf_read(const char *text, size_t length, grammar *out, qp_error *error);
