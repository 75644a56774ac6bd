/* Embeddings: the mean of the last hidden states of a text, as a vector of length 1. The old
 * endpoint of Ollama, /api/embeddings, gives the mean itself, as Ollama does. */
#include "server/endpoints.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "server/lora.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <math.h>
#include <string.h>

static qp_status read_encoding(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    p->base64 = strcmp(value->valuestring, "base64") == 0;
    if (p->base64 || strcmp(value->valuestring, "float") == 0) return QP_OK;
    return api_refuse(error, 400, name, "\"%s\" must be \"float\" or \"base64\", found \"%.40s\"",
                      name, value->valuestring);
}

static const field common_fields[] = {
    MODEL_FIELD,
    FIELD("dimensions", INTEGER(dimensions), .low = 1, .high = 1 << 30,
          .help = "the first values of a vector, scaled to length 1 again; fewer than the hidden "
                  "size only with --matryoshka"),
    {0}};

static const field openai_fields[] = {
    FIELD("input", TREE(JSON_STRING | JSON_ARRAY | JSON_OBJECT, prompt), .required = true,
          .least_items = 1,
          .help = "a text, an array of token ids and texts, {\"prompt_string\": text}, or an array "
                  "of these"),
    FIELD("encoding_format", READ(JSON_STRING, read_encoding),
          .schema = "{\"enum\": [\"float\", \"base64\", null]}",
          .help = "float, or base64: the bytes of float32 values, lowest first"),
    {0}};

static qp_status read_normalize(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    p->whole_vectors = value->valuedouble == -1;
    if (p->whole_vectors || value->valuedouble == 2) return QP_OK;
    return api_refuse(error, 400, name,
                      "\"%s\" must be 2 (vectors of length 1) or -1 (as they are), found %.17g",
                      name, value->valuedouble);
}

static const field llama_cpp_fields[] = {
    FIELD("content", TREE(JSON_STRING | JSON_ARRAY | JSON_OBJECT, prompt), .least_items = 1,
          .help = "what is embedded, as in input"),
    FIELD("input", TREE(JSON_STRING | JSON_ARRAY | JSON_OBJECT, prompt), .least_items = 1,
          .help = "a text, an array of token ids and texts, {\"prompt_string\": text}, or an array "
                  "of these"),
    FIELD("embd_normalize", READ(JSON_NUMBER, read_normalize),
          .help = "2: vectors of length 1; -1: vectors as they are"),
    {0}};

static const field embed_fields[] = {
    FIELD("input", TREE(JSON_STRING | JSON_ARRAY, prompt), .required = true, .least_items = 1,
          .items = ITEMS_NONEMPTY, .schema = SCHEMA_TEXT, .help = "a text, or an array of texts"),
    {0}};

static const field old_fields[] = {FIELD("prompt", TREE(JSON_STRING, prompt), .required = true,
                                         .schema = SCHEMA_TEXT, .help = "a text"),
                                   {0}};

static const field *const openai_tables[] = {openai_fields, common_fields, NULL};
static const field *const llama_cpp_tables[] = {llama_cpp_fields, common_fields, NULL};
static const field *const embed_tables[] = {embed_fields, common_fields, NULL};
static const field *const old_tables[] = {old_fields, common_fields, NULL};

static int64_t hidden_size(const call *c)
{
    return c->server->engine->program.config.hidden_size;
}

/* How many values of a vector the reply has. */
static int64_t dimensions(const call *c)
{
    return c->p.dimensions ? c->p.dimensions : hidden_size(c);
}

qp_status embeddings_check(call *c, api_error *error)
{
    c->embeds = true;
    if (c->server->pooling != POOLING_FIRST && c->server->pooling != POOLING_RANK) return QP_OK;
    return api_refuse(error, 400, NULL,
                      "the model's file asks for vectors of a kind that this server does not make "
                      "(pooling_type %d); start it with --pooling mean or last for others",
                      (int)c->server->pooling);
}

static qp_status read_embeddings(call *c, const cJSON *body, api_error *error)
{
    const bool cuts = c->server->options->cut_embeddings;
    TRY(embeddings_check(c, error));
    if (c->p.dimensions > hidden_size(c) || (!cuts && dimensions(c) != hidden_size(c)))
        return api_refuse(error, 400, "dimensions",
                          "\"dimensions\" must be %lld, the model's hidden size, found %lld%s",
                          (long long)hidden_size(c), (long long)c->p.dimensions,
                          cuts ? ", or less"
                               : "; if the model was trained for shorter vectors (Matryoshka), "
                                 "start the server with --matryoshka");
    const char *name = c->dialect == &ollama_embeddings ? "prompt"
                       : json_get(body, "content")      ? "content"
                                                        : "input";
    if (!c->p.prompt)
        return api_refuse(error, 400, name, "a request needs \"content\" or \"input\"");
    c->p.mixed = c->dialect == &openai_embeddings || c->dialect == &llama_cpp_embeddings;
    return call_add_prompts(c, name, NULL, error);
}

/* ---- Replies ------------------------------------------------------------------------------- */

/* The factor that makes the vector's length 1. */
static double scale_of(const call *c, const float *v)
{
    double sum = 0;
    for (int64_t i = 0; i < dimensions(c); i++)
        sum += (double)v[i] * (double)v[i];
    const bool whole = c->p.whole_vectors || c->dialect == &ollama_embeddings;
    return whole || sum == 0 ? 1 : 1 / sqrt(sum);
}

static void put_base64(const unsigned char *bytes, size_t n, strbuf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        unsigned value = (unsigned)bytes[i] << 16;
        if (i + 1 < n) value |= (unsigned)bytes[i + 1] << 8;
        if (i + 2 < n) value |= bytes[i + 2];
        const char four[] = {digits[value >> 18], digits[value >> 12 & 63],
                             i + 1 < n ? digits[value >> 6 & 63] : '=',
                             i + 2 < n ? digits[value & 63] : '='};
        strbuf_append(out, four, sizeof four);
    }
}

/* Three values are 12 bytes, and these are 16 digits, so the parts join without padding. */
static void put_encoded(const call *c, const float *v, strbuf *out)
{
    enum { VALUES = 3 };
    const double scale = scale_of(c, v);
    strbuf_putc(out, '"');
    for (int64_t i = 0; i < dimensions(c); i += VALUES) {
        unsigned char bytes[VALUES * 4];
        size_t n = 0;
        for (int64_t k = i; k < i + VALUES && k < dimensions(c); k++) {
            const float value = (float)(v[k] * scale);
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            for (int shift = 0; shift < 32; shift += 8)
                bytes[n++] = (unsigned char)(bits >> shift);
        }
        put_base64(bytes, n, out);
    }
    strbuf_putc(out, '"');
}

static void put_vector(const call *c, size_t prompt, strbuf *out)
{
    const float *v = c->prompts[prompt].request->embedding;
    const double scale = scale_of(c, v);
    if (c->p.base64) {
        put_encoded(c, v, out);
        return;
    }
    for (int64_t i = 0; i < dimensions(c); i++)
        strbuf_printf(out, "%c%.9g", i ? ',' : '[', (double)(float)(v[i] * scale));
    strbuf_putc(out, ']');
}

static void whole_openai(call *c)
{
    const call_usage sum = call_sum_usage(c);
    json_put(&c->out, "{'object':'list','data':[");
    for (size_t i = 0; i < c->n_prompts; i++) {
        json_put(&c->out, "%s{'object':'embedding','index':%z,'embedding':", i ? "," : "", i);
        put_vector(c, i, &c->out);
        strbuf_putc(&c->out, '}');
    }
    json_put(&c->out, "],'model':%q,'usage':{'prompt_tokens':%z,'total_tokens':%z}}", lora_model(c),
             sum.prompt, sum.prompt);
}

/* A list of vectors for each text: llama.cpp has models whose texts have one for each token. */
static void whole_llama_cpp(call *c)
{
    strbuf_putc(&c->out, '[');
    for (size_t i = 0; i < c->n_prompts; i++) {
        json_put(&c->out, "%s{'index':%z,'embedding':[", i ? "," : "", i);
        put_vector(c, i, &c->out);
        strbuf_puts(&c->out, "]}");
    }
    strbuf_putc(&c->out, ']');
}

static void whole_embed(call *c)
{
    const call_usage sum = call_sum_usage(c);
    json_put(&c->out, "{'model':%q,'embeddings':[", lora_model(c));
    for (size_t i = 0; i < c->n_prompts; i++) {
        if (i) strbuf_putc(&c->out, ',');
        put_vector(c, i, &c->out);
    }
    json_put(&c->out, "],'total_duration':%i,'load_duration':0,'prompt_eval_count':%z}",
             (int64_t)(clock_ns() - c->arrived), sum.prompt);
}

static void whole_old(call *c)
{
    json_put(&c->out, "{'embedding':");
    put_vector(c, 0, &c->out);
    strbuf_putc(&c->out, '}');
}

const dialect openai_embeddings = {.fields = openai_tables,
                                   .stream_type = "application/json",
                                   .read = read_embeddings,
                                   .whole = whole_openai};
const dialect llama_cpp_embeddings = {.fields = llama_cpp_tables,
                                      .stream_type = "application/json",
                                      .read = read_embeddings,
                                      .whole = whole_llama_cpp};
const dialect ollama_embed = {.fields = embed_tables,
                              .stream_type = "application/json",
                              .read = read_embeddings,
                              .whole = whole_embed};
const dialect ollama_embeddings = {.fields = old_tables,
                                   .stream_type = "application/json",
                                   .read = read_embeddings,
                                   .whole = whole_old};
