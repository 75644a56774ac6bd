/* The endpoint of llama.cpp's server that makes text. */
#pragma once

#include "server/call.h"

extern const dialect llama_cpp_infill;
extern const dialect llama_cpp_completion;

/* The answer as that endpoint has it: whole, or with `last` as the last event of its stream, which
 * has no text. */
void put_llama_cpp_result(const call *c, answer *a, bool last, strbuf *out);
