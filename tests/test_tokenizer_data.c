/* Real tokenizers, compared with published vectors and with the hash of a whole corpus. This data
 * is optional; tests whose data is absent are skipped. */
#include "base/json.h"
#include "base/names.h"
#include "file/mapping.h"
#include "test.h"
#include "text/tokenizer.h"

#include <math.h>

static qp_error error;

/* NULL where the data is absent. "gpt2" is a pair of files. */
static tokenizer *open_data(const char *name)
{
    tokenizer *tokenizer = NULL;
    if (strcmp(name, "gpt2") == 0) {
        char vocab[4096];
        const char *path = test_data("tokenizers/gpt2/gpt2_vocab.json");
        if (!path) return NULL;
        snprintf(vocab, sizeof vocab, "%s", path);
        path = test_data("tokenizers/gpt2/gpt2_merges.txt");
        if (path) assert_ok(tokenizer_open_gpt2(vocab, path, &tokenizer, &error));
        return tokenizer;
    }
    const char *path = test_data(name);
    if (!path) return NULL;
    if (name_ends_with(name, ".gguf")) {
        gguf *file;
        assert_ok(gguf_open(path, &file, &error));
        assert_ok(tokenizer_open_gguf(file, &tokenizer, &error));
        gguf_close(file);
    } else if (name_ends_with(name, ".json")) {
        assert_ok(tokenizer_open_json(path, &tokenizer, &error));
    } else {
        assert_ok(tokenizer_open_sentencepiece(path, &tokenizer, &error));
    }
    return tokenizer;
}

/* --- Vectors: lines of {text, bos, ids}. --- */

static void check_vector(const tokenizer *tokenizer, const char *model, const cJSON *vector)
{
    const char *text = cJSON_GetObjectItem(vector, "text")->valuestring;
    const cJSON *ids = json_get(vector, "ids"), *id;
    unsigned flags = cJSON_IsTrue(json_get(vector, "bos")) ? TOKENIZER_BOS : 0;
    /* Vectors with control tokens in the text have them parsed; the others have none. */
    if (strstr(text, "<s>") || strstr(text, "<|")) flags |= TOKENIZER_SPECIAL;
    token_ids found = {0};
    assert_ok(tokenizer_encode(tokenizer, text, strlen(text), flags, &found, &error));
    size_t i = 0;
    bool same = found.count == (size_t)cJSON_GetArraySize(ids);
    cJSON_ArrayForEach(id, ids) same = same && found.data[i++] == id->valueint;
    if (!same) fail_msg("%s: other ids for \"%s\"", model, text);
    token_ids_free(&found);
}

static void test_vectors(void **state)
{
    (void)state;
    static const struct {
        const char *model, *vectors;
    } cases[] = {
        {"tokenizers/llama3/tokenizer.json", "vectors/llamacpp_llama3.jsonl"},
        {"tokenizers/llama3/tokenizer.json", "vectors/tjs_llama3.jsonl"},
        {"tokenizers/ggml-vocab-llama-bpe.gguf", "vectors/llamacpp_llama3.jsonl"},
        {"tokenizers/ggml-vocab-llama-bpe.gguf", "vectors/tjs_llama3.jsonl"},
        {"tokenizers/llama2/tokenizer.model", "vectors/llamacpp_llama2.jsonl"},
        {"tokenizers/llama2/tokenizer.model", "vectors/tjs_llama2.jsonl"},
        {"tokenizers/ggml-vocab-llama-spm.gguf", "vectors/llamacpp_llama2.jsonl"},
        {"tokenizers/ggml-vocab-llama-spm.gguf", "vectors/tjs_llama2.jsonl"},
        {"tokenizers/smollm2/tokenizer.json", "vectors/smollm2.jsonl"},
        {"tokenizers/vocab-smollm2.gguf", "vectors/smollm2.jsonl"},
        {"tokenizers/internlm2/tokenizer.model", "vectors/spm_internlm2.jsonl"},
        {"stories260K/hf/tokenizer.model", "vectors/spm_stories260K_tok512.jsonl"},
        {"gpt2", "vectors/llamacpp_gpt2.jsonl"},
    };
    require_data(test_data(cases[0].vectors), cases[0].vectors);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tokenizer *tokenizer = open_data(cases[i].model);
        if (!tokenizer) continue;
        char *text;
        size_t length, lines = 0;
        assert_ok(file_read_text(test_data(cases[i].vectors), 1 << 24, &text, &length, &error));
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
            cJSON *vector;
            if (strstr(line, "\\u0000")) continue; /* cJSON's strings end there */
            assert_ok(json_parse(line, strlen(line), cases[i].vectors, &vector, &error));
            check_vector(tokenizer, cases[i].model, vector);
            cJSON_Delete(vector);
        }
        assert_true(lines > 30);
        free(text);
        tokenizer_free(tokenizer);
    }
}

/* --- SHA-256 (FIPS 180-4), for the corpus. --- */

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* The first 32 bits of the fractional part of a prime's root: of degree 2 or 3. */
static uint32_t root_bits(uint32_t prime, int degree)
{
    double root = degree == 2 ? sqrt(prime) : cbrt(prime);
    return (uint32_t)((root - floor(root)) * 0x1p32);
}

static void sha256_block(uint32_t state[8], const uint32_t k[64], const uint8_t *block)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] +
               (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) +
                      ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t t2 = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) +
                      ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

static void sha256_hex(const uint8_t *data, size_t size, char hex[65])
{
    uint32_t state[8], k[64];
    for (uint32_t n = 2, count = 0; count < 64; n++) {
        bool is_prime = true;
        for (uint32_t d = 2; d * d <= n; d++)
            is_prime = is_prime && n % d != 0;
        if (!is_prime) continue;
        if (count < 8) state[count] = root_bits(n, 2);
        k[count++] = root_bits(n, 3);
    }
    uint8_t tail[128] = {0};
    size_t rest = size % 64, tail_size = rest < 56 ? 64 : 128;
    for (size_t i = 0; i + 64 <= size; i += 64)
        sha256_block(state, k, data + i);
    memcpy(tail, data + size - rest, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        tail[tail_size - 1 - (size_t)i] = (uint8_t)((uint64_t)size * 8 >> 8 * i);
    for (size_t i = 0; i < tail_size; i += 64)
        sha256_block(state, k, tail + i);
    for (int i = 0; i < 8; i++)
        snprintf(hex + 8 * i, 9, "%08x", state[i]);
}

static void test_sha256(void **state)
{
    (void)state;
    char hex[65];
    sha256_hex((const uint8_t *)"abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/* --- A whole corpus. --- */

static void check_corpus(const char *model, const cJSON *expected, const char *text, size_t length)
{
    tokenizer *tokenizer = open_data(model);
    if (!tokenizer) return;
    token_ids ids = {0};
    assert_ok(tokenizer_encode(tokenizer, text, length, 0, &ids, &error));
    assert_int_equal(ids.count, cJSON_GetArrayItem(expected, 0)->valueint);
    char hex[65];
    sha256_hex((const uint8_t *)ids.data, ids.count * sizeof *ids.data, hex);
    assert_string_equal(hex, cJSON_GetArrayItem(expected, 1)->valuestring);
    strbuf decoded = {0};
    assert_ok(tokenizer_decode(tokenizer, ids.data, ids.count, 0, &decoded, &error));
    assert_int_equal(decoded.length, length);
    assert_memory_equal(decoded.data, text, length);
    strbuf_free(&decoded);
    token_ids_free(&ids);
    tokenizer_free(tokenizer);
}

static void test_corpus(void **state)
{
    (void)state;
    static const struct {
        const char *key, *model;
    } cases[] = {
        {"llama3", "tokenizers/llama3/tokenizer.json"},
        {"llama3", "tokenizers/ggml-vocab-llama-bpe.gguf"},
        {"llama2", "tokenizers/llama2/tokenizer.model"},
        {"llama2", "tokenizers/ggml-vocab-llama-spm.gguf"},
        {"smollm2", "tokenizers/smollm2/tokenizer.json"},
        {"smollm2", "tokenizers/vocab-smollm2.gguf"},
        {"internlm2", "tokenizers/internlm2/tokenizer.model"},
        {"gpt2", "gpt2"},
    };
    require_data(test_data("vectors/corpus_hashes.json"), "vectors/corpus_hashes.json");
    require_data(test_data("text/wiki.test.raw"), "text/wiki.test.raw");
    char *json, *text;
    size_t json_length, length;
    cJSON *root;
    assert_ok(file_read_text(test_data("vectors/corpus_hashes.json"), 1 << 20, &json, &json_length,
                             &error));
    assert_ok(json_parse(json, json_length, "corpus_hashes.json", &root, &error));
    assert_ok(file_read_text(test_data("text/wiki.test.raw"), 1 << 26, &text, &length, &error));
    const cJSON *hashes = json_get(root, "wiki.test.raw");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_corpus(cases[i].model, json_get(hashes, cases[i].key), text, length);
    cJSON_Delete(root);
    free(json);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_corpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
