/* Answers bound to forms, without a model: for test_schemas.py.
 *
 *     tool_grammar VOCABULARY < REQUESTS
 *
 * A request is a line of JSON: {"schema": SCHEMA} or {"gbnf": TEXT}, with "accept": [TEXTS] and
 * "make": N, "seed": S. The answer is a line {"accepted": [BOOLS], "made": [TEXTS]}, or {"error":
 * MESSAGE, "status": NUMBER}. Texts are made of random tokens among those that are allowed.
 * "measure": TEXT adds how long the masks along the tokens of a text take, in microseconds.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "engine/vocabulary.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "grammar/stacks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 30, LONGEST = 3000 };

static const token_trie *trie;
static const qp_vocabulary *vocabulary;

static qp_status read_grammar(const cJSON *request, grammar *g, qp_error *error)
{
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(request, "schema");
    const char *gbnf = cJSON_GetStringValue(json_get(request, "gbnf"));
    if (gbnf) return gbnf_read(gbnf, strlen(gbnf), g, error);
    char *text = json_print(schema);
    qp_status status = json_schema_parse(text, strlen(text), g, error);
    free(text);
    return status;
}

/* Whether the text as a whole has the form: byte by byte, without tokens. */
static bool accepts(const cJSON *request, const char *text)
{
    grammar g = {0};
    automaton m = {0};
    stacks s = {0};
    bool ends = false;
    if (read_grammar(request, &g, NULL) == QP_OK && automaton_compile(&g, &m, NULL) == QP_OK &&
        stacks_open(&s, &m, 64, NULL) == QP_OK) {
        uint32_t config = stacks_root(&s);
        for (; *text; text++)
            config = stacks_step(&s, config, (uint8_t)*text);
        ends = s.configs[config].ends;
    }
    stacks_free(&s);
    automaton_free(&m);
    grammar_free(&g);
    return ends;
}

/* A random allowed token; when the text has become long, one that begins with a closing character.
 */
static int32_t choose(const uint32_t *mask, int32_t stop, bool closing, uint64_t random)
{
    int32_t chosen = -1;
    uint64_t n = 0, n_closing = 0;
    if (closing && mask[stop >> 5] >> (stop & 31) & 1) return stop;
    for (int32_t token = 0; token < trie->vocab_size; token++) {
        char bytes[TRIE_MAX_PIECE];
        if (!(mask[token >> 5] >> (token & 31) & 1)) continue;
        const size_t length = token_trie_bytes(trie, token, bytes);
        if (closing && length && strchr("]}\",:", bytes[0])) {
            if (hash_random(random, 1, (uint64_t)token) % ++n_closing == 0) chosen = token;
        } else if (n_closing == 0 && hash_random(random, 0, (uint64_t)token) % ++n == 0) {
            chosen = token;
        }
    }
    return chosen;
}

static qp_status make(form *f, uint64_t seed, cJSON *out, qp_error *error)
{
    matcher *m;
    strbuf text = {0};
    const uint32_t *mask;
    const int32_t stop = qp_special_token(vocabulary, QP_ROLE_EOS);
    qp_status status = matcher_open(f, &stop, 1, (size_t)trie->vocab_size, &m, error);
    for (uint64_t i = 0; status == QP_OK && i < LONGEST; i++) {
        status = matcher_mask(m, &mask, error);
        if (status != QP_OK) break;
        const int32_t token = choose(mask, stop, i > SHORT, hash_random(seed, 2, i));
        if (token == stop) break;
        size_t length;
        const char *piece = qp_token_piece(vocabulary, token, &length);
        strbuf_append(&text, piece, length);
        status = matcher_take(m, token, error);
        if (i + 1 == LONGEST) strbuf_puts(&text, " (cut)");
    }
    cJSON_AddItemToArray(out, cJSON_CreateString(strbuf_text(&text)));
    strbuf_free(&text);
    matcher_close(m);
    return status;
}

/* The times of all masks along a text: their mean and the longest. */
static qp_status time_masks(form *f, const qp_tokens *text, const char *name, cJSON *out,
                            qp_error *error)
{
    matcher *m;
    const uint32_t *mask;
    const int32_t stop = qp_special_token(vocabulary, QP_ROLE_EOS);
    uint64_t sum = 0, longest = 0;
    qp_status status = matcher_open(f, &stop, 1, (size_t)trie->vocab_size, &m, error);
    for (size_t i = 0; i < text->count && status == QP_OK; i++) {
        const uint64_t begin = clock_ns();
        status = matcher_mask(m, &mask, error);
        if (status == QP_OK) status = matcher_take(m, text->data[i], error);
        const uint64_t took = clock_ns() - begin;
        if (took > longest) longest = took;
        sum += took;
    }
    matcher_close(m);
    cJSON *list = cJSON_AddArrayToObject(out, name);
    cJSON_AddItemToArray(list, cJSON_CreateNumber((double)(sum / (text->count + 1)) * 1e-3));
    cJSON_AddItemToArray(list, cJSON_CreateNumber((double)longest * 1e-3));
    return status;
}

static qp_status measure(form *f, const char *text, cJSON *out, qp_error *error)
{
    qp_tokens tokens = {0};
    qp_status status = qp_tokenize(vocabulary, text, strlen(text), QP_BOS_NEVER, &tokens, error);
    cJSON_AddNumberToObject(out, "tokens", (double)tokens.count);
    if (status == QP_OK) status = time_masks(f, &tokens, "first", out, error);
    for (int i = 0; i < 3 && status == QP_OK; i++) {
        cJSON_DeleteItemFromObject(out, "again");
        status = time_masks(f, &tokens, "again", out, error);
    }
    qp_tokens_free(&tokens);
    return status;
}

static qp_status answer(const cJSON *request, cJSON *out, qp_error *error)
{
    grammar g = {0};
    form *f = NULL;
    const uint64_t begin = clock_ns();
    const cJSON *text, *n = json_get(request, "make"), *seed = json_get(request, "seed");
    qp_status status = read_grammar(request, &g, error);
    if (status == QP_OK) status = form_open(&g, trie, &f, error);
    grammar_free(&g);
    if (status != QP_OK) return status;
    if (json_get(request, "measure")) {
        cJSON_AddNumberToObject(out, "open", (double)(clock_ns() - begin) * 1e-3);
        form_warm(f, json_get(request, "cold") ? 0 : 1000000000);
        cJSON_AddNumberToObject(out, "open_warm", (double)(clock_ns() - begin) * 1e-3);
        if (measure(f, json_get(request, "measure")->valuestring, out, error) != QP_OK)
            cJSON_AddStringToObject(out, "unmeasured",
                                    error->message); /* the form has no such text */
    }
    cJSON *accepted = cJSON_AddArrayToObject(out, "accepted");
    cJSON_ArrayForEach(text, json_get(request, "accept"))
        cJSON_AddItemToArray(accepted, cJSON_CreateBool(accepts(request, text->valuestring)));
    cJSON *made = cJSON_AddArrayToObject(out, "made");
    for (int i = 0; n && i < n->valueint && status == QP_OK; i++)
        status = make(f, (uint64_t)(seed ? seed->valueint : 0) + (uint64_t)i, made, error);
    form_release(f);
    return status;
}

int main(int argc, char **argv)
{
    qp_error error;
    qp_vocabulary *v;
    token_trie *built;
    char *line = NULL;
    size_t capacity = 0;
    if (argc != 2) return 2;
    qp_status status = qp_vocabulary_open(argv[1], &v, &error);
    const uint64_t begin = clock_ns();
    if (status == QP_OK) status = token_trie_build(v->tokenizer, &built, &error);
    if (status != QP_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    vocabulary = v;
    trie = built;
    fprintf(stderr, "%d tokens, %u nodes, %zu bytes, the longest %zu, in %.1f ms\n",
            built->vocab_size, built->n_nodes, built->bytes, built->longest,
            (double)(clock_ns() - begin) * 1e-6);
    while (getline(&line, &capacity, stdin) > 0) {
        cJSON *request = cJSON_Parse(line), *out = cJSON_CreateObject();
        error = (qp_error){0};
        status = answer(request, out, &error);
        if (status != QP_OK) {
            cJSON_AddStringToObject(out, "error", error.message);
            cJSON_AddNumberToObject(out, "status", status);
        }
        char *text = cJSON_PrintUnformatted(out);
        puts(text);
        fflush(stdout);
        free(text);
        cJSON_Delete(out);
        cJSON_Delete(request);
    }
    free(line);
    token_trie_free(built);
    qp_vocabulary_close(v);
    return 0;
}
