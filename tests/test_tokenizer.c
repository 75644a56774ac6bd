/* Tokenizers, compared with Hugging Face's and sentencepiece's ids, on the repository's own three
 * and on real ones where they are installed; round trips; long words; threads; special tokens. */
#define _GNU_SOURCE

#include "base/clock.h"
#include "base/json.h"
#include "base/names.h"
#include "base/threads.h"
#include "file/mapping.h"
#include "test.h"
#include "text/tokenizer.h"

#include <unistd.h>

enum { MAX_STRINGS = 4096, BLOCK = 16 };

static qp_error error;
static char *strings_text;
static text_slice strings[MAX_STRINGS];
static size_t n_strings;
static cJSON *hashes;

/* --- Helpers. --- */

static tokenizer *open_model(const char *path)
{
    tokenizer *tokenizer = NULL;
    if (name_ends_with(path, ".gguf")) {
        gguf *file;
        assert_ok(gguf_open(path, &file, &error));
        assert_ok(tokenizer_open_gguf(file, &tokenizer, &error));
        gguf_close(file);
    } else if (name_ends_with(path, ".json")) {
        assert_ok(tokenizer_open_json(path, &tokenizer, &error));
    } else {
        assert_ok(tokenizer_open_sentencepiece(path, &tokenizer, &error));
    }
    return tokenizer;
}

static token_ids encode(const tokenizer *tokenizer, const char *text, size_t length, unsigned flags)
{
    token_ids ids = {0};
    assert_ok(tokenizer_encode(tokenizer, text, length, flags, &ids, &error));
    return ids;
}

static void assert_ids(const tokenizer *tokenizer, const char *text, unsigned flags, size_t count,
                       const int32_t *expected)
{
    token_ids ids = encode(tokenizer, text, strlen(text), flags);
    assert_int_equal(ids.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(ids.data[i], expected[i]);
    token_ids_free(&ids);
}
#define ASSERT_IDS(tokenizer, text, flags, ...)                                                    \
    assert_ids(tokenizer, text, flags, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t),         \
               (int32_t[]){__VA_ARGS__})

static void assert_round_trip(const tokenizer *tokenizer, const char *text, size_t length)
{
    token_ids ids = encode(tokenizer, text, length, 0);
    strbuf decoded = {0};
    assert_ok(tokenizer_decode(tokenizer, ids.data, ids.count, 0, &decoded, &error));
    assert_int_equal(decoded.length, length);
    assert_memory_equal(strbuf_text(&decoded), text, length);
    strbuf_free(&decoded);
    token_ids_free(&ids);
}

/* The framing of strings.bin: length in decimal, newline, bytes. */
static int set_up(void **state)
{
    (void)state;
    size_t length, hashes_length;
    char *text, *end;
    if (file_read_text("golden/tokenizer/strings.bin", 1 << 20, &strings_text, &length, &error))
        return -1;
    for (char *at = strings_text; at < strings_text + length; n_strings++) {
        size_t count = strtoul(at, &end, 10);
        strings[n_strings] = (text_slice){end + 1, count};
        at = end + 1 + count;
    }
    if (file_read_text("golden/tokenizer/hashes.json", 1 << 20, &text, &hashes_length, &error) ||
        json_parse(text, hashes_length, "hashes.json", &hashes, &error))
        return -1;
    free(text);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(strings_text);
    cJSON_Delete(hashes);
    return 0;
}

/* --- Ids of the mixed strings. --- */

static uint64_t hash_id(uint64_t hash, int32_t id)
{
    for (int i = 0; i < 4; i++)
        hash = (hash ^ ((uint32_t)id >> 8 * i & 0xFF)) * 0x100000001B3u;
    return hash;
}

static void check_hashes(const tokenizer *tokenizer, const char *name, unsigned flags)
{
    const cJSON *expected = json_get(hashes, name);
    assert_non_null(expected);
    assert_true(n_strings > 2000);
    size_t block = 0;
    for (size_t start = 0; start < n_strings; start += BLOCK, block++) {
        uint64_t hash = 0xCBF29CE484222325u;
        for (size_t i = start; i < start + BLOCK && i < n_strings; i++) {
            token_ids ids = encode(tokenizer, strings[i].data, strings[i].length, flags);
            for (size_t k = 0; k < ids.count; k++)
                hash = hash_id(hash, ids.data[k]);
            hash = hash_id(hash, -1);
            token_ids_free(&ids);
        }
        char found[17];
        snprintf(found, sizeof found, "%016llx", (unsigned long long)hash);
        const cJSON *item = cJSON_GetArrayItem(expected, (int)block);
        assert_true(cJSON_IsString(item));
        if (strcmp(found, item->valuestring) != 0)
            fail_msg("%s: strings %zu to %zu give other ids (tests/scripts/tokenizer_compare.py "
                     "shows which)",
                     name, start, start + BLOCK - 1);
    }
    assert_int_equal(block, cJSON_GetArraySize(expected));
}

static void check_model(const char *path, const char *name)
{
    tokenizer *tokenizer = open_model(path);
    char special[128];
    snprintf(special, sizeof special, "%s special", name);
    check_hashes(tokenizer, name, 0);
    if (json_get(hashes, special)) check_hashes(tokenizer, special, TOKENIZER_SPECIAL);
    tokenizer_free(tokenizer);
}

static void test_own_tokenizers(void **state)
{
    (void)state;
    check_model("golden/tokenizer/bytes.json", "golden/bytes.json");
    check_model("golden/tokenizer/chars.json", "golden/chars.json");
    check_model("golden/tokenizer/pieces.model", "golden/pieces.model");
}

static void test_real_tokenizers(void **state)
{
    (void)state;
    static const struct {
        const char *path, *name;
    } models[] = {
        {"tokenizers/llama3/tokenizer.json", "llama3/tokenizer.json"},
        {"tokenizers/smollm2/tokenizer.json", "smollm2/tokenizer.json"},
        {"tokenizers/vocab-smollm2.gguf", "smollm2/tokenizer.json"},
        {"tokenizers/llama2/tokenizer.model", "llama2/tokenizer.model"},
        {"tokenizers/internlm2/tokenizer.model", "internlm2/tokenizer.model"},
        {"stories260K/hf/tokenizer.model", "stories260K/tokenizer.model"},
    };
    require_data(test_data(models[0].path), models[0].path);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const char *path = test_data(models[i].path);
        if (path) check_model(path, models[i].name);
    }
}

/* --- Round trips. --- */

static void test_round_trip(void **state)
{
    (void)state;
    tokenizer *bytes = open_model("golden/tokenizer/bytes.json");
    tokenizer *chars = open_model("golden/tokenizer/chars.json");
    tokenizer *pieces = open_model("golden/tokenizer/pieces.model");
    for (size_t i = 0; i < n_strings; i++) {
        assert_round_trip(bytes, strings[i].data, strings[i].length);
        /* The mark of a space is the same as a space. */
        if (memmem(strings[i].data, strings[i].length, "\xE2\x96\x81", 3)) continue;
        assert_round_trip(chars, strings[i].data, strings[i].length);
        assert_round_trip(pieces, strings[i].data, strings[i].length);
    }
    char every[512];
    for (int i = 0; i < 512; i++)
        every[i] = (char)(i < 256 ? i : 511 - i);
    assert_round_trip(bytes, every, sizeof every);
    assert_round_trip(chars, every, sizeof every);
    assert_round_trip(pieces, every, sizeof every);
    tokenizer_free(bytes);
    tokenizer_free(chars);
    tokenizer_free(pieces);
}

/* --- Decoding in steps. --- */

static void test_decoder_holds_back(void **state)
{
    (void)state;
    tokenizer *tokenizer = open_model("golden/tokenizer/pieces.model");
    const char *text = "a\xF0\x9F\xA4\x96";
    token_ids ids = encode(tokenizer, text, strlen(text), 0);
    assert_true(ids.count >= 5); /* four byte tokens at the end */
    tokenizer_decoder decoder;
    strbuf out = {0};
    tokenizer_decoder_init(&decoder, tokenizer, 0);
    for (size_t i = 0; i < ids.count; i++) {
        assert_ok(tokenizer_decoder_push(&decoder, ids.data[i], &out, &error));
        if (i + 4 >= ids.count)
            assert_string_equal(strbuf_text(&out), i + 1 < ids.count ? "a" : text);
    }
    /* Cut off: what is held back comes out with flush, and not twice. */
    strbuf_clear(&out);
    tokenizer_decoder_init(&decoder, tokenizer, 0);
    for (size_t i = 0; i + 1 < ids.count; i++)
        assert_ok(tokenizer_decoder_push(&decoder, ids.data[i], &out, &error));
    assert_string_equal(strbuf_text(&out), "a");
    assert_ok(tokenizer_decoder_flush(&decoder, &out, &error));
    assert_ok(tokenizer_decoder_flush(&decoder, &out, &error));
    assert_string_equal(strbuf_text(&out), "a\xF0\x9F\xA4");
    assert_int_equal(
        tokenizer_decoder_push(&decoder, tokenizer_vocab_size(tokenizer), &out, &error),
        QP_INVALID);
    assert_int_equal(tokenizer_decoder_push(&decoder, -1, &out, &error), QP_INVALID);
    strbuf_free(&out);
    token_ids_free(&ids);
    tokenizer_free(tokenizer);
}

/* Pieces of a text decoded one by one are the text, whatever the cut. */
static void test_decoder_steps(void **state)
{
    (void)state;
    tokenizer *tokenizer = open_model("golden/tokenizer/bytes.json");
    for (size_t i = 0; i < n_strings; i += 7) {
        token_ids ids = encode(tokenizer, strings[i].data, strings[i].length, TOKENIZER_BOS);
        tokenizer_decoder decoder;
        strbuf out = {0};
        tokenizer_decoder_init(&decoder, tokenizer, 0);
        for (size_t k = 0; k < ids.count; k++) {
            assert_ok(tokenizer_decoder_push(&decoder, ids.data[k], &out, &error));
            assert_true(out.length + decoder.held_count <= strings[i].length);
            assert_memory_equal(strbuf_text(&out), strings[i].data, out.length);
        }
        assert_ok(tokenizer_decoder_flush(&decoder, &out, &error));
        assert_int_equal(out.length, strings[i].length);
        strbuf_free(&out);
        token_ids_free(&ids);
    }
    tokenizer_free(tokenizer);
}

static void test_leading_space(void **state)
{
    (void)state;
    tokenizer *tokenizer = open_model("golden/tokenizer/pieces.model");
    token_ids ids = encode(tokenizer, "the knot", 8, TOKENIZER_BOS);
    strbuf out = {0};
    assert_ok(tokenizer_decode(tokenizer, ids.data, ids.count, 0, &out, &error));
    assert_string_equal(strbuf_text(&out), "the knot");
    strbuf_clear(&out);
    assert_ok(
        tokenizer_decode(tokenizer, ids.data, ids.count, TOKENIZER_DECODE_CONTINUE, &out, &error));
    assert_string_equal(strbuf_text(&out), " the knot");
    strbuf_clear(&out);
    assert_ok(
        tokenizer_decode(tokenizer, ids.data, ids.count, TOKENIZER_DECODE_CONTROL, &out, &error));
    assert_string_equal(strbuf_text(&out), "<s> the knot");
    strbuf_free(&out);
    token_ids_free(&ids);
    tokenizer_free(tokenizer);
}

/* --- Special tokens and questions. --- */

static void test_special_tokens(void **state)
{
    (void)state;
    tokenizer *tokenizer = open_model("golden/tokenizer/bytes.json");
    tokenizer_special special = tokenizer_special_ids(tokenizer);
    assert_int_equal(special.bos, 0);
    assert_int_equal(special.eos, -1); /* the file names none */
    assert_int_equal(special.eot, 2);
    assert_int_equal(tokenizer_default_flags(tokenizer), TOKENIZER_BOS);
    assert_true(tokenizer_is_control(tokenizer, 2));
    assert_false(tokenizer_is_control(tokenizer, 50));
    assert_false(tokenizer_is_control(tokenizer, -1));
    ASSERT_IDS(tokenizer, "<|eot_id|>", TOKENIZER_SPECIAL, 2);
    ASSERT_IDS(tokenizer, "<|eot_id|><|begin_of_text|>", TOKENIZER_SPECIAL | TOKENIZER_BOS, 0, 2,
               0);
    ASSERT_IDS(tokenizer, "", TOKENIZER_BOS, 0);
    token_ids ids = encode(tokenizer, "<|eot_id|>", 10, 0);
    assert_true(ids.count > 1);
    /* What fails leaves the list as it was. */
    size_t count = ids.count;
    assert_int_equal(
        tokenizer_encode(tokenizer, "x", 1, TOKENIZER_BOS | TOKENIZER_EOS, &ids, &error),
        QP_INVALID);
    assert_non_null(strstr(error.message, "EOS"));
    assert_int_equal(ids.count, count);
    token_ids_free(&ids);
    size_t length;
    assert_int_equal(tokenizer_find(tokenizer, "<|eot_id|>", 10), 2);
    assert_memory_equal(tokenizer_piece(tokenizer, 2, &length), "<|eot_id|>", 10);
    assert_int_equal(length, 10);
    int32_t space = tokenizer_find(tokenizer, " ", 1);
    assert_true(space >= 0);
    assert_memory_equal(tokenizer_piece(tokenizer, space, &length), " ", 1);
    assert_null(tokenizer_piece(tokenizer, 700, &length));
    assert_int_equal(tokenizer_find(tokenizer, "\xFF", 1) >= 0, 1);
    assert_int_equal(tokenizer_find(tokenizer, "no such piece", 13), -1);
    assert_int_equal(tokenizer_find(tokenizer, "", 0), -1);
    assert_string_equal(tokenizer_model_name(tokenizer), "bpe");
    tokenizer_free(tokenizer);
}

/* --- Long words, in time. --- */

static void encode_in_time(const tokenizer *tokenizer, char *text, size_t length, const char *what)
{
    uint64_t start = clock_ns();
    assert_round_trip(tokenizer, text, length);
    double seconds = (double)(clock_ns() - start) * 1e-9;
    if (seconds > 5) fail_msg("%s: %.1f s", what, seconds);
}

static void long_words(const char *path)
{
    tokenizer *tokenizer = open_model(path);
    size_t length = 200000;
    char *text = malloc(length);
    assert_non_null(text);
    memset(text, ' ', length);
    encode_in_time(tokenizer, text, length, "200,000 spaces");
    text[length - 1] = 'x';
    encode_in_time(tokenizer, text, length, "199,999 spaces and a letter");
    memset(text, 'a', length);
    encode_in_time(tokenizer, text, length, "200,000 times a");
    memset(text, '\n', length);
    encode_in_time(tokenizer, text, length, "200,000 newlines");
    memset(text, 0x80, length);
    encode_in_time(tokenizer, text, length, "200,000 invalid bytes");
    uint32_t random = 1;
    for (size_t i = 0; i < 100000; i++) {
        random = random * 1664525 + 1013904223;
        text[i] = (char)('a' + (random >> 16) % 26);
    }
    encode_in_time(tokenizer, text, 100000, "a word of 100,000 letters");
    for (size_t i = 0; i < length; i++)
        text[i] = " \n\t."[i % 4];
    encode_in_time(tokenizer, text, length, "white space and points");
    free(text);
    tokenizer_free(tokenizer);
}

static void test_long_words(void **state)
{
    (void)state;
    long_words("golden/tokenizer/bytes.json");
    long_words("golden/tokenizer/chars.json");
    long_words("golden/tokenizer/pieces.model");
}

/* --- Threads. --- */

typedef struct shared_encoding {
    const tokenizer *tokenizer;
    int wrong[4];
} shared_encoding;

static void encode_all(void *context, int worker, int n_workers)
{
    (void)n_workers;
    shared_encoding *shared = context;
    for (size_t i = (size_t)worker; i < n_strings; i += 3) {
        token_ids ids = {0};
        strbuf out = {0};
        qp_error mine;
        qp_status status =
            tokenizer_encode(shared->tokenizer, strings[i].data, strings[i].length, 0, &ids, &mine);
        if (status == QP_OK)
            status = tokenizer_decode(shared->tokenizer, ids.data, ids.count, 0, &out, &mine);
        shared->wrong[worker] += status != QP_OK || out.length != strings[i].length;
        token_ids_free(&ids);
        strbuf_free(&out);
    }
}

static void test_threads(void **state)
{
    (void)state;
    tokenizer *tokenizer = open_model("golden/tokenizer/bytes.json");
    shared_encoding shared = {.tokenizer = tokenizer};
    thread_pool *pool;
    assert_ok(thread_pool_create(4, &pool, &error));
    thread_pool_run(pool, encode_all, &shared);
    thread_pool_destroy(pool);
    for (int i = 0; i < 4; i++)
        assert_int_equal(shared.wrong[i], 0);
    tokenizer_free(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_tokenizers), cmocka_unit_test(test_real_tokenizers),
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_decoder_holds_back),
        cmocka_unit_test(test_decoder_steps),  cmocka_unit_test(test_leading_space),
        cmocka_unit_test(test_special_tokens), cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
