/* POST /v1/embeddings (OpenAI), /api/embed and /api/embeddings (Ollama). */
#ifndef QUIPU_SERVER_API_EMBEDDINGS_H
#define QUIPU_SERVER_API_EMBEDDINGS_H

#include "server/call.h"

extern const dialect openai_embeddings, ollama_embed, ollama_embeddings;

#endif
