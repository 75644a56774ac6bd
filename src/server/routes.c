/* The table of routes: see routes.h. */
#include "server/routes.h"

#include "server/endpoints.h"
#include "server/lora.h"
#include "server/server_state.h"

#include <string.h>

const route routes[] = {
    {"GET", "/health", "503 while the model is loaded", .open = true, .reply = reply_health},
    {"GET", "/v1/health", "the same", .open = true, .reply = reply_health},
    {"GET", "/ping", "the same (SageMaker)", .open = true, .reply = reply_health},
    {"GET", "/ready", "503 while the model is loaded, and as soon as the server is to end",
     .open = true, .reply = reply_ready},
    {"GET", "/version", "the version (vLLM)", .open = true, .reply = reply_ollama_version},
    {"GET", "/load", "how many answers are under way (vLLM)", .answer = answer_load},
    {"GET", "/v1/models", "the model", .open = true, .reply = reply_models},
    {"GET", "/models", "the model", .open = true, .reply = reply_models},
    {"GET", "/v1/models/*", "the model by its name", .reply = reply_model},
    {"GET", "/model_info", "the model's path and sizes (SGLang)", .reply = reply_model_info},
    {"GET", "/get_model_info", "the same", .reply = reply_model_info},
    {"GET", "/server_info", "the server's settings (SGLang, vLLM)", .reply = reply_server_info},
    {"GET", "/get_server_info", "the same", .reply = reply_server_info},
    {"GET", "/props", "settings, chat template and sizes", .reply = reply_props},
    {"GET", "/tokenizer_info", "control tokens and the chat template (vLLM)",
     .reply = reply_tokenizer_info},
    {"GET", "/lora-adapters", "adapters, and their scales where requests ask for none (llama.cpp)",
     .answer = answer_adapters},
    {"POST", "/lora-adapters",
     "sets those scales: [{\"id\", \"scale\"}]; others become 0 (llama.cpp)",
     .answer = answer_set_adapters},
    {"GET", "/engine", "sequences, pages, the prefix tree, the last passes",
     .answer = answer_engine},
    {"GET", "/slots", "what each slot does", .answer = answer_slots},
    {"GET", "/timeline", "what each worker did in the next pass, as a picture",
     .type = "image/svg+xml", .answer = answer_timeline},
    {"GET", "/timeline.html", "the same as a page, with every instruction", .type = "text/html",
     .answer = answer_timeline_page},
    {"GET", "/metrics", "counters and histograms for Prometheus",
     .type = "text/plain; version=0.0.4", .answer = answer_metrics},
    {"GET", "/", "the page", .open = true, .type = "text/html", .reply = reply_page},
    {"GET", "/index.html", "the page", .open = true, .type = "text/html", .reply = reply_page},
    {"GET", "/page/*", "its files", .open = true, .type = "text/javascript", .reply = reply_page},
    {"GET", "/openapi.json", "this description", .open = true, .reply = reply_openapi},
    {"POST", "/v1/chat/completions", "an answer to a conversation", .dialect = &openai_chat},
    {"POST", "/chat/completions", "the same (llama.cpp)", API_LLAMA_CPP, .dialect = &openai_chat},
    {"POST", "/v1/completions", "text that goes on", .dialect = &openai_completions},
    {"POST", "/completion", "text that goes on (llama.cpp)", API_LLAMA_CPP,
     .dialect = &llama_cpp_completion},
    {"POST", "/completions", "the same", API_LLAMA_CPP, .dialect = &llama_cpp_completion},
    {"POST", "/v1/rerank", "which texts are nearest to a query (Jina, Cohere)", .dialect = &rerank},
    {"POST", "/rerank", "the same", .dialect = &rerank},
    {"POST", "/v2/rerank", "the same", .dialect = &rerank},
    {"POST", "/reranking", "the same (llama.cpp)", API_LLAMA_CPP, .dialect = &rerank},
    {"POST", "/v1/score", "how near pairs of texts are (vLLM)", .dialect = &score},
    {"POST", "/score", "the same", .dialect = &score},
    {"POST", "/infill", "text between two others (llama.cpp)", API_LLAMA_CPP,
     .dialect = &llama_cpp_infill},
    {"POST", "/v1/embeddings", "texts as vectors", .dialect = &openai_embeddings},
    {"POST", "/embeddings", "texts as lists of vectors (llama.cpp)", API_LLAMA_CPP,
     .dialect = &llama_cpp_embeddings},
    {"POST", "/embedding", "the same", API_LLAMA_CPP, .dialect = &llama_cpp_embeddings},
    {"POST", "/v1/responses", "an answer to a conversation", .dialect = &openai_responses},
    {"POST", "/responses", "the same", .dialect = &openai_responses},
    {"POST", "/v1/responses/input_tokens", "how long a conversation is",
     .fields = openai_response_tables, .answer = answer_response_length},
    {"GET", "/v1/responses/*", "a response, or after its id /input_items: what it was made from",
     .answer = answer_response},
    {"DELETE", "/v1/responses/*", "forgets a response", .answer = answer_response_deleted},
    {"POST", "/v1/chat/completions/input_tokens", "how long a conversation is",
     .fields = openai_chat_tables, .answer = answer_chat_length},
    {"POST", "/chat/completions/input_tokens", "the same", .fields = openai_chat_tables,
     .answer = answer_chat_length},
    {"POST", "/v1/messages", "an answer to a conversation (Anthropic)", API_ANTHROPIC,
     .dialect = &anthropic_messages},
    {"POST", "/v1/messages/count_tokens", "how long a conversation is (Anthropic)", API_ANTHROPIC,
     .fields = count_tokens_tables, .answer = answer_count_tokens},
    {"POST", "/api/chat", "an answer to a conversation (Ollama)", API_OLLAMA,
     .dialect = &ollama_chat},
    {"POST", "/api/generate", "an answer to a prompt (Ollama)", API_OLLAMA,
     .dialect = &ollama_generate},
    {"POST", "/api/embed", "texts as vectors (Ollama)", API_OLLAMA, .dialect = &ollama_embed},
    {"POST", "/api/embeddings", "a text as a vector (Ollama)", API_OLLAMA,
     .dialect = &ollama_embeddings},
    {"POST", "/api/show", "what the model is (Ollama)", API_OLLAMA, .fields = ollama_show_tables,
     .answer = answer_ollama_show},
    {"GET", "/api/tags", "the model (Ollama)", API_OLLAMA, .reply = reply_ollama_tags},
    {"GET", "/api/ps", "the loaded model (Ollama)", API_OLLAMA, .reply = reply_ollama_ps},
    {"GET", "/api/version", "the version (Ollama)", API_OLLAMA, .open = true,
     .reply = reply_ollama_version},
    {"POST", "/tokenize", "text to token ids", .fields = tokenize_tables,
     .answer = answer_tokenize},
    {"POST", "/detokenize", "token ids to text", .fields = detokenize_tables,
     .answer = answer_detokenize},
    {"POST", "/apply-template", "a conversation as the model reads it", .fields = template_tables,
     .answer = answer_template},
    {0}};
_Static_assert(sizeof routes / sizeof *routes <= ROUTES_MOST, "counters of replies have no room");

/* A pattern that ends in '*' stands for all paths that begin with the rest. Slashes at the end of a
 * path mean nothing. */
static bool matches(const char *pattern, const char *path)
{
    const size_t length = strlen(pattern);
    size_t own = strlen(path);
    if (length && pattern[length - 1] == '*')
        return strncmp(pattern, path, length - 1) == 0 && path[length - 1];
    while (own > 1 && path[own - 1] == '/')
        own--;
    return own == length && strncmp(pattern, path, own) == 0;
}

const route *route_find(const char *method, const char *path, const char **other)
{
    *other = NULL;
    for (const route *r = routes; r->method; r++) {
        if (!matches(r->path, path)) continue;
        if (strcmp(r->method, method) == 0) return r;
        *other = r->method;
    }
    return NULL;
}

api_style route_style(const char *path)
{
    if (strncmp(path, "/api/", 5) == 0) return API_OLLAMA;
    if (strncmp(path, "/v1/messages", 12) == 0) return API_ANTHROPIC;
    return API_OPENAI;
}
