/* The endpoint of llama.cpp's server that makes text. */
#ifndef QUIPU_SERVER_API_LLAMA_CPP_H
#define QUIPU_SERVER_API_LLAMA_CPP_H

#include "server/call.h"

extern const dialect llama_cpp_completion;

#endif
