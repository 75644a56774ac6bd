/* POST /v1/embeddings (OpenAI), /api/embed and /api/embeddings (Ollama). */
#pragma once

#include "server/call.h"

/* Says that vectors are wanted, and refuses those of a kind that the server does not make. */
qp_status embeddings_check(call *c, api_error *error);

/* How near texts are to each other: api_rerank.c. */
extern const dialect rerank, score;

extern const dialect openai_embeddings, llama_cpp_embeddings, ollama_embed, ollama_embeddings;
