/* The endpoint of llama.cpp's server that makes text. */
#ifndef QUIPU_SERVER_API_LLAMA_CPP_H
#define QUIPU_SERVER_API_LLAMA_CPP_H

#include "server/call.h"

extern const dialect llama_cpp_infill;
extern const dialect llama_cpp_completion;

/* The answer as that endpoint has it: whole, or with `last` as the last event of its stream, which
 * has no text. */
void put_llama_cpp_result(const call *c, answer *a, bool last, strbuf *out);

#endif
