/* Valid and invalid tokenizer files: options of tokenizer.json, directories, GGUF keys, every kind
 * of damage with the message that it gives. */
#include "file/gguf_write.h"
#include "file/mapping.h"
#include "folder_test.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

#include <time.h>

#include <sys/stat.h>
#include <unistd.h>

static qp_error error;

/* --- Helpers. --- */

static tokenizer *parse_json(const char *text)
{
    tokenizer *tokenizer = NULL;
    assert_ok(tokenizer_parse_json(text, strlen(text), "t.json", &tokenizer, &error));
    return tokenizer;
}

static void assert_ids(const tokenizer *tokenizer, const char *text, unsigned flags, size_t count,
                       const int32_t *expected)
{
    token_ids ids = {0};
    assert_ok(tokenizer_encode(tokenizer, text, strlen(text), flags, &ids, &error));
    char found[256] = "";
    for (size_t i = 0; i < ids.count && i < 20; i++)
        sprintf(found + strlen(found), "%d ", ids.data[i]);
    bool same = ids.count == count &&
                (count == 0 || memcmp(ids.data, expected, count * sizeof *expected) == 0);
    token_ids_free(&ids);
    if (!same) fail_msg("\"%s\" became %s", text, found);
}
#define ASSERT_IDS(tokenizer, text, flags, ...)                                                    \
    assert_ids(tokenizer, text, flags, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t),         \
               (int32_t[]){__VA_ARGS__})

static void assert_decodes(const tokenizer *tokenizer, const int32_t *ids, size_t count,
                           const char *expected)
{
    strbuf text = {0};
    assert_ok(tokenizer_decode(tokenizer, ids, count, 0, &text, &error));
    assert_string_equal(strbuf_text(&text), expected);
    strbuf_free(&text);
}

static char *read_golden(const char *name, size_t *length)
{
    char path[256], *text;
    snprintf(path, sizeof path, "golden/tokenizer/%s", name);
    assert_ok(file_read_text(path, 1 << 20, &text, length, &error));
    return text;
}

/* --- tokenizer.json: what its parts do. The ids are those of Hugging Face's tokenizers. --- */

#define BYTES_MODEL                                                                                \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\u0120\":3,\"\u0120a\":4,"  \
    "\"1\":5,\"11\":6,\"-\":7,\"a-\":8,\"-b\":9,\"--\":10,\"ba\":11},\"merges\":[\"a b\","         \
    "[\"\u0120\",\"a\"],\"1 1\",\"a -\",\"- b\",\"- -\",\"b a\"]}"
#define BYTE_LEVEL(PREFIX, REGEX)                                                                  \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":" PREFIX ",\"use_regex\":" REGEX "}"
#define SPLIT(PATTERN, BEHAVIOR, INVERT)                                                           \
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","            \
    "\"pattern\":" PATTERN ",\"behavior\":\"" BEHAVIOR "\",\"invert\":" INVERT                     \
    "}," BYTE_LEVEL("false", "false") "]}," BYTES_MODEL "}"

static void test_split_behaviors(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int32_t count, ids[8];
    } cases[] = {
        /* "a--ba-b": merges a-=8 before -b=9 before --=10 */
        {SPLIT("{\"String\":\"-\"}", "Isolated", "false"), 6, {0, 7, 7, 11, 7, 1}},
        {SPLIT("{\"String\":\"-\"}", "Removed", "false"), 3, {0, 11, 1}},
        {SPLIT("{\"String\":\"-\"}", "MergedWithPrevious", "false"), 5, {8, 7, 1, 8, 1}},
        {SPLIT("{\"String\":\"-\"}", "MergedWithNext", "false"), 5, {0, 7, 9, 0, 9}},
        {SPLIT("{\"Regex\":\"-\"}", "Contiguous", "false"), 5, {0, 10, 11, 7, 1}},
        {SPLIT("{\"Regex\":\"[ab]\"}", "Isolated", "false"), 6, {0, 10, 1, 0, 7, 1}},
        {SPLIT("{\"Regex\":\"[ab]+\"}", "Removed", "true"), 3, {0, 11, 1}},
        {SPLIT("{\"Regex\":\"\"}", "Isolated", "false"), 7, {0, 7, 7, 1, 0, 7, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tokenizer *tokenizer = parse_json(cases[i].json);
        assert_ids(tokenizer, "a--ba-b", 0, (size_t)cases[i].count, cases[i].ids);
        tokenizer_free(tokenizer);
    }
}

static void test_byte_level_options(void **state)
{
    (void)state;
    tokenizer *tokenizer =
        parse_json("{\"pre_tokenizer\":" BYTE_LEVEL("true", "true") "," BYTES_MODEL "}");
    ASSERT_IDS(tokenizer, "ab", 0, 3, 2); /* a and b merge first */
    ASSERT_IDS(tokenizer, " ab", 0, 3, 2);
    ASSERT_IDS(tokenizer, "11", 0, 3, 6);
    tokenizer_free(tokenizer);
    tokenizer = parse_json("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                           "\"Digits\",\"individual_digits\":true}," BYTE_LEVEL(
                               "false", "true") "]}," BYTES_MODEL "}");
    ASSERT_IDS(tokenizer, "ab11", 0, 2, 5, 5);
    ASSERT_IDS(tokenizer, " ab", 0, 3, 2);
    /* A byte that the vocabulary lacks is left out, as in the file's own engine. */
    ASSERT_IDS(tokenizer, "azb", 0, 2);
    tokenizer_free(tokenizer);
}

static void test_added_tokens(void **state)
{
    (void)state;
    tokenizer *tokenizer = parse_json(
        "{\"added_tokens\":["
        "{\"id\":12,\"content\":\"<s>\",\"special\":true,\"lstrip\":true,\"rstrip\":true},"
        "{\"id\":13,\"content\":\"qu\",\"special\":false,\"single_word\":true,\"normalized\":false}"
        ","
        "{\"id\":14,\"content\":\"<s>a\",\"special\":false,\"normalized\":false},"
        "{\"id\":15,\"content\":\"zz\",\"special\":false}],"
        "\"pre_tokenizer\":" BYTE_LEVEL("false", "true") "," BYTES_MODEL "}");
    ASSERT_IDS(tokenizer, "a  <s>  b", TOKENIZER_SPECIAL, 0, 12, 1);
    ASSERT_IDS(tokenizer, "b<s>a", TOKENIZER_SPECIAL, 1, 14); /* the longest */
    ASSERT_IDS(tokenizer, "b<s>a", 0, 1, 14);                 /* not special */
    ASSERT_IDS(tokenizer, "b<s>", 0, 1);                      /* < s > have no tokens here */
    ASSERT_IDS(tokenizer, "qu", 0, 13);
    ASSERT_IDS(tokenizer, "qu-qu", 0, 13, 7, 13);
    ASSERT_IDS(tokenizer, "aqub", 0, 2); /* inside a word, where q and u have no tokens */
    ASSERT_IDS(tokenizer, "qu1", 0, 5);
    ASSERT_IDS(tokenizer, "azzb", 0, 0, 15, 1);
    assert_int_equal(tokenizer_find(tokenizer, "<s>", 3), 12);
    assert_int_equal(tokenizer_vocab_size(tokenizer), 16);
    tokenizer_free(tokenizer);
}

/* Added tokens that are found after normalization are normalized themselves. */
static void test_normalized_tokens(void **state)
{
    (void)state;
    tokenizer *tokenizer = parse_json(
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
        "\"\u2581\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
        "\"},\"content\":\"\u2581\"}]},"
        "\"added_tokens\":[{\"id\":4,\"content\":\"b a\",\"special\":false,\"normalized\":true},"
        "{\"id\":5,\"content\":\"<x>\",\"special\":false,\"normalized\":true,\"rstrip\":true},"
        "{\"id\":6,\"content\":\"<y>\",\"special\":false,\"normalized\":false,\"rstrip\":true}],"
        "\"model\":{\"vocab\":{\"\u2581\":0,\"a\":1,\"b\":2,\"\u2581a\":3},\"merges\":"
        "[\"\u2581 a\"]}}");
    ASSERT_IDS(tokenizer, "b a", 0, 4);
    ASSERT_IDS(tokenizer, "ab a", 0, 3, 2, 3); /* no space before it */
    ASSERT_IDS(tokenizer, "<x> a", 0, 5, 3);   /* what was a space is a mark, and stays */
    ASSERT_IDS(tokenizer, "<y> a", 0, 6, 3);   /* taken, and a new one put in front */
    ASSERT_IDS(tokenizer, "<y>  b", 0, 6, 0, 2);
    tokenizer_free(tokenizer);
}

static void test_metaspace(void **state)
{
    (void)state;
    const char format[] =
        "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":"
        "\"%s\",\"split\":%s},\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\","
        "\"prepend_scheme\":\"%s\"},\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":"
        "true}],\"model\":{\"type\":\"BPE\",\"unk_token\":\"<u>\",\"vocab\":{\"<s>\":0,\"<u>\":1,"
        "\"\u2581\":2,\"a\":3,\"\u2581a\":4,\"a\u2581\":5},\"merges\":[\"a \u2581\",\"\u2581 "
        "a\"]}}";
    char text[1024];
    snprintf(text, sizeof text, format, "first", "true", "first");
    tokenizer *tokenizer = parse_json(text);
    ASSERT_IDS(tokenizer, "a a<s>a", TOKENIZER_SPECIAL, 4, 4, 0, 3);
    ASSERT_IDS(tokenizer, " a", 0, 4);
    ASSERT_IDS(tokenizer, "axya", 0, 4, 1, 1, 3); /* unknown, not fused */
    assert_decodes(tokenizer, (int32_t[]){4, 4}, 2, "a a");
    tokenizer_free(tokenizer);
    snprintf(text, sizeof text, format, "always", "false", "always");
    tokenizer = parse_json(text);
    ASSERT_IDS(tokenizer, "a a<s>a", TOKENIZER_SPECIAL, 2, 5, 3, 0, 4);
    tokenizer_free(tokenizer);
    snprintf(text, sizeof text, format, "never", "true", "never");
    tokenizer = parse_json(text);
    ASSERT_IDS(tokenizer, "a a", 0, 3, 4);
    assert_decodes(tokenizer, (int32_t[]){4, 4}, 2, " a a");
    tokenizer_free(tokenizer);
}

/* \s is Unicode's White_Space: not U+180E, which PCRE2's own \s takes for one. */
static void test_white_space(void **state)
{
    (void)state;
    tokenizer *tokenizer =
        parse_json(SPLIT("{\"Regex\":\"a\\\\s|[\\\\s-]b|\\\\Sa|[^\\\\S]1\"}", "Removed", "false"));
    ASSERT_IDS(tokenizer, "a\u180Eb", 0, 2); /* no match; it has no tokens */
    ASSERT_IDS(tokenizer, "a\u00A0b", 0, 1);
    assert_ids(tokenizer, "\u3000b-b", 0, 0, NULL);
    ASSERT_IDS(tokenizer,
               "\u180Ea\xC2\x85"
               "a1\u20281",
               0, 0, 5);
    tokenizer_free(tokenizer);
}

/* --- tokenizer.json: what is refused, and how. --- */

static void test_refused_json(void **state)
{
    (void)state;
    static const struct {
        qp_status status;
        const char *message, *json;
    } cases[] = {
        {QP_FORMAT, "JSON", ""},
        {QP_FORMAT, "JSON", "{\"model\""},
        {QP_FORMAT, "\"model\" must be an object", "[]"},
        {QP_FORMAT, "\"model\" must be an object", "{\"model\":3}"},
        {QP_FORMAT, "\"vocab\" must be an object", "{\"model\":{\"merges\":[]}}"},
        {QP_FORMAT, "\"merges\" must be an array", "{\"model\":{\"vocab\":{\"a\":0}}}"},
        {QP_FORMAT, "empty", "{\"model\":{\"vocab\":{},\"merges\":[]}}"},
        {QP_FORMAT, "whole number", "{\"model\":{\"vocab\":{\"a\":\"0\"},\"merges\":[]}}"},
        {QP_FORMAT, "whole number", "{\"model\":{\"vocab\":{\"a\":0.5},\"merges\":[]}}"},
        {QP_FORMAT, "whole number", "{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}"},
        {QP_FORMAT, "not in 0", "{\"model\":{\"vocab\":{\"a\":900000},\"merges\":[]}}"},
        {QP_FORMAT, "twice", "{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}"},
        {QP_FORMAT, "not in the vocabulary",
         "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}"},
        {QP_FORMAT, "no token", "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}"},
        {QP_FORMAT, "two pieces", "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}"},
        {QP_FORMAT, "two strings", "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}"},
        {QP_FORMAT, "two strings",
         "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]}}"},
        {QP_FORMAT, "two strings", "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[7]}}"},
        {QP_UNSUPPORTED, "Unigram", "{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}"},
        {QP_UNSUPPORTED, "dropout",
         "{\"model\":{\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}}"},
        {QP_UNSUPPORTED, "end_of_word_suffix",
         "{\"model\":{\"end_of_word_suffix\":\"</w>\",\"vocab\":{},\"merges\":[]}}"},
        {QP_UNSUPPORTED, "\"NFC\"", "{\"normalizer\":{\"type\":\"NFC\"}," BYTES_MODEL "}"},
        {QP_UNSUPPORTED, "\"Whitespace\"",
         "{\"pre_tokenizer\":{\"type\":\"Whitespace\"}," BYTES_MODEL "}"},
        {QP_UNSUPPORTED, "\"BertProcessing\"",
         "{\"post_processor\":{\"type\":\"BertProcessing\"}," BYTES_MODEL "}"},
        {QP_UNSUPPORTED, "\"WordPiece\"", "{\"decoder\":{\"type\":\"WordPiece\"}," BYTES_MODEL "}"},
        {QP_FORMAT, "no \"content\"", "{\"added_tokens\":[{\"id\":0}]," BYTES_MODEL "}"},
        {QP_FORMAT, "id -5",
         "{\"added_tokens\":[{\"id\":-5,\"content\":\"added\"}]," BYTES_MODEL "}"},
        {QP_FORMAT, "true or false",
         "{\"added_tokens\":[{\"id\":0,\"content\":\"x\",\"special\":1}]," BYTES_MODEL "}"},
        {QP_FORMAT, "not valid", SPLIT("{\"Regex\":\"(a\"}", "Isolated", "false")},
        {QP_FORMAT, "pattern", SPLIT("{}", "Isolated", "false")},
        {QP_UNSUPPORTED, "Split", SPLIT("{\"Regex\":\"a\"}", "Shuffled", "false")},
        {QP_UNSUPPORTED, "sign at byte 1", SPLIT("{\"Regex\":\"a\\\\h\"}", "Isolated", "false")},
        {QP_UNSUPPORTED, "sign at byte 0", SPLIT("{\"Regex\":\"(*UTF)a\"}", "Isolated", "false")},
        {QP_UNSUPPORTED, "sign at byte 0", SPLIT("{\"Regex\":\"(?x) a\"}", "Isolated", "false")},
        {QP_UNSUPPORTED, "sign at byte 5", SPLIT("{\"Regex\":\"a{1,3}+\"}", "Isolated", "false")},
        {QP_UNSUPPORTED, "sign at byte 2", SPLIT("{\"Regex\":\"[a[bc]]\"}", "Isolated", "false")},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tokenizer *tokenizer = NULL;
        qp_status status = tokenizer_parse_json(cases[i].json, strlen(cases[i].json), "t.json",
                                                &tokenizer, &error);
        if (status != cases[i].status || !strstr(error.message, cases[i].message))
            fail_msg("%s\ngave %d: %s", cases[i].json, status, status ? error.message : "success");
        assert_null(tokenizer);
        if (strncmp(error.message, "t.json", 6) != 0) fail_msg("no name: %s", error.message);
    }
}

/* An expression that would take for ever is stopped, and says so. */
static void test_expression_limit(void **state)
{
    (void)state;
    tokenizer *tokenizer =
        parse_json(SPLIT("{\"Regex\":\"(a+)+(a+)+(a+)+[^a]\"}", "Isolated", "false"));
    char text[4000];
    memset(text, 'a', sizeof text);
    token_ids ids = {0};
    assert_int_equal(tokenizer_encode(tokenizer, text, sizeof text, 0, &ids, &error),
                     QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "limit"));
    token_ids_free(&ids);
    tokenizer_free(tokenizer);
}

/* --- tokenizer.model. --- */

static void test_damaged_model(void **state)
{
    (void)state;
    size_t length;
    char *model = read_golden("pieces.model", &length);
    tokenizer *tokenizer = NULL;
    int refused = 0;
    for (size_t cut = 0; cut < length; cut += cut < 400 || cut + 400 > length ? 1 : 37) {
        if (tokenizer_parse_sentencepiece(model, cut, "t.model", &tokenizer, &error) != QP_OK) {
            refused++;
            assert_null(tokenizer);
            assert_memory_equal(error.message, "t.model: ", 9);
        }
        tokenizer_free(tokenizer);
        tokenizer = NULL;
    }
    assert_true(refused > 500);
    uint32_t random = 7;
    for (int i = 0; i < 2000; i++) {
        random = random * 1664525 + 1013904223;
        size_t at = (random >> 8) % length;
        char kept = model[at];
        model[at] ^= (char)(1 << (random >> 5) % 8);
        if (tokenizer_parse_sentencepiece(model, length, "t.model", &tokenizer, &error) == QP_OK) {
            token_ids ids = {0};
            assert_ok(tokenizer_encode(tokenizer, model, 300, 0, &ids, &error));
            token_ids_free(&ids);
        }
        tokenizer_free(tokenizer);
        tokenizer = NULL;
        model[at] = kept;
    }
    free(model);
    static const struct {
        qp_status status;
        const char *message, *data;
        size_t size;
    } cases[] = {
        {QP_FORMAT, "not a sentencepiece model", "", 0},
        {QP_FORMAT, "not a sentencepiece model", "<html>", 6},
        {QP_UNSUPPORTED, "tiktoken", "IQ== 0\nIg== 1\n", 14},
        {QP_UNSUPPORTED, "unigram",
         "\x0A\x03\x0A\x01"
         "a",
         5},
        {QP_UNSUPPORTED, "character map",
         "\x0A\x03\x0A\x01"
         "a\x12\x02\x18\x02\x1A\x03\x12\x01x",
         14},
        {QP_FORMAT, "type 9",
         "\x0A\x05\x0A\x01"
         "a\x18\x09\x12\x02\x18\x02",
         11},
        {QP_FORMAT, "<0x00>",
         "\x0A\x05\x0A\x01"
         "a\x18\x06\x12\x02\x18\x02",
         11},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qp_status status = tokenizer_parse_sentencepiece(cases[i].data, cases[i].size, "t.model",
                                                         &tokenizer, &error);
        if (status != cases[i].status || !strstr(error.message, cases[i].message))
            fail_msg("case %zu gave %d: %s", i, status, status ? error.message : "success");
    }
}

/* A model of hand-made pieces: {text, score, type}. */
typedef struct made_piece {
    const char *text;
    float score;
    int type;
} made_piece;

static tokenizer *make_model(const made_piece *pieces, size_t count, bool prefix, bool extra)
{
    char data[2048];
    size_t size = 0;
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(pieces[i].text);
        data[size++] = 0x0A;
        data[size++] = (char)(length + 9);
        data[size++] = 0x0A;
        data[size++] = (char)length;
        memcpy(data + size, pieces[i].text, length);
        size += length;
        data[size++] = 0x15;
        memcpy(data + size, &pieces[i].score, 4);
        size += 4;
        data[size++] = 0x18;
        data[size++] = (char)pieces[i].type;
    }
    const char settings[] = {0x12, 2, 0x18, 2, 0x1A, 4, 0x18, prefix, 0x20, extra};
    memcpy(data + size, settings, sizeof settings);
    size += sizeof settings;
    tokenizer *tokenizer = NULL;
    assert_ok(tokenizer_parse_sentencepiece(data, size, "made", &tokenizer, &error));
    return tokenizer;
}

/* The ids are sentencepiece's for the same model. */
static void test_piece_types(void **state)
{
    (void)state;
    static const made_piece pieces[] = {
        {"<unk>", 0, 2},         {"<s>", 0, 3},    {"</s>", 0, 3},
        {"\u2581", -1, 1},       {"a", -2, 1},     {"b", -3, 1},
        {"\u2581a", -4, 1},      {"ab", -5, 5},    {"abb", -5.5f, 1},
        {"bb", -9, 1},           {"\u4E16", 0, 4}, {"a\u4E16", -1, 1},
        {"\u2581\u2581", -6, 1},
    };
    tokenizer *tokenizer = make_model(pieces, 13, true, false);
    ASSERT_IDS(tokenizer, "a", 0, 6);
    ASSERT_IDS(tokenizer, "bab", 0, 3, 5, 4, 5);       /* ab is unused: taken apart again */
    ASSERT_IDS(tokenizer, "babb", 0, 3, 5, 8);         /* but leads to abb */
    ASSERT_IDS(tokenizer, "ba\u4E16", 0, 3, 5, 4, 10); /* user-defined: no merge crosses it */
    ASSERT_IDS(tokenizer, "bxyzb", 0, 3, 5, 0, 5);     /* unknown, once for neighbours */
    ASSERT_IDS(tokenizer, "  b", 0, 12, 3, 5);         /* leftmost of equals */
    ASSERT_IDS(tokenizer, "b</s>b", TOKENIZER_SPECIAL, 3, 5, 2, 3, 5);
    ASSERT_IDS(tokenizer, "b", TOKENIZER_BOS | TOKENIZER_EOS, 1, 3, 5, 2);
    assert_int_equal(tokenizer_default_flags(tokenizer), TOKENIZER_BOS);
    assert_decodes(tokenizer, (int32_t[]){1, 6, 0, 6, 2}, 5, "a \u2047  a");
    tokenizer_free(tokenizer);
    tokenizer = make_model(pieces, 13, true, true);
    ASSERT_IDS(tokenizer, "  b  b  ", 0, 3, 5, 3, 5);
    assert_ids(tokenizer, "   ", 0, 0, NULL);
    assert_decodes(tokenizer, (int32_t[]){3, 3, 6}, 3, "a");
    tokenizer_free(tokenizer);
    tokenizer = make_model(pieces, 13, false, false);
    ASSERT_IDS(tokenizer, "b a", 0, 5, 6);
    assert_decodes(tokenizer, (int32_t[]){6, 5}, 2, " ab");
    tokenizer_free(tokenizer);
}

/* --- Directories. --- */

static void test_directory(void **state)
{
    (void)state;
    tokenizer *tokenizer = NULL;
    assert_int_equal(tokenizer_open_directory(folder, &tokenizer, &error), QP_IO);
    assert_non_null(strstr(error.message, "no tokenizer there"));

    write_text("vocab.json", "{\"a\":0,\"b\":1,\"ab\":2,\"<|endoftext|>\":3}");
    write_text("merges.txt", "#version: 0.2\r\na b\r\n");
    assert_ok(tokenizer_open_directory(folder, &tokenizer, &error));
    ASSERT_IDS(tokenizer, "ab<|endoftext|>b", TOKENIZER_SPECIAL, 2, 3, 1);
    assert_int_equal(tokenizer_special_ids(tokenizer).eos, 3);
    assert_int_equal(tokenizer_default_flags(tokenizer), 0);
    tokenizer_free(tokenizer);

    size_t length;
    char *text = read_golden("pieces.model", &length);
    write_file("tokenizer.model", text, length);
    free(text);
    write_text(
        "tokenizer_config.json",
        "{\"legacy\":false,\"add_bos_token\":true,\"add_eos_token\":true,"
        "\"eos_token\":{\"content\":\"<|turn|>\"},\"pad_token\":null,\"added_tokens_decoder\":"
        "{\"799\":{\"content\":\"<|turn|>\",\"special\":true},"
        "\"800\":{\"content\":\"<|im_start|>\",\"special\":true}}}");
    assert_ok(tokenizer_open_directory(folder, &tokenizer, &error));
    assert_int_equal(tokenizer_vocab_size(tokenizer), 801);
    assert_int_equal(tokenizer_special_ids(tokenizer).bos, 1);
    assert_int_equal(tokenizer_special_ids(tokenizer).eos, 799);
    assert_int_equal(tokenizer_default_flags(tokenizer), TOKENIZER_BOS | TOKENIZER_EOS);
    token_ids ids = {0};
    assert_ok(tokenizer_encode(tokenizer, "<|im_start|>the", 15, TOKENIZER_SPECIAL, &ids, &error));
    assert_int_equal(ids.data[0], 800);
    size_t piece_length;
    assert_int_equal(*tokenizer_piece(tokenizer, ids.data[1], &piece_length), 't'); /* no space */
    token_ids_free(&ids);
    tokenizer_free(tokenizer);

    text = read_golden("bytes.json", &length);
    write_file("tokenizer.json", text, length);
    free(text);
    write_text("tokenizer_config.json", "{\"add_bos_token\":false}");
    write_text("special_tokens_map.json", "{\"eos_token\":\"<|end_of_text|>\"}");
    write_text("config.json", "{\"bos_token_id\":2,\"eos_token_id\":[2,1]}");
    assert_ok(tokenizer_open_directory(folder, &tokenizer, &error));
    assert_int_equal(tokenizer_special_ids(tokenizer).bos, 0);
    assert_int_equal(tokenizer_special_ids(tokenizer).eos, 1);
    assert_int_equal(tokenizer_default_flags(tokenizer), 0);
    tokenizer_free(tokenizer);

    write_text("special_tokens_map.json", "{");
    tokenizer = NULL;
    assert_int_equal(tokenizer_open_directory(folder, &tokenizer, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "special_tokens_map.json"));
    assert_null(tokenizer);
}

/* --- GGUF. --- */

typedef struct gguf_case {
    const char *model, *pre;
    const char *const *tokens;
    const int32_t *types;
    const char *const *merges;
    size_t n_tokens, n_merges;
    bool with_scores;
} gguf_case;

static qp_status open_gguf(const gguf_case *c, tokenizer **out)
{
    gguf_writer *writer;
    text_slice tokens[32], merges[32];
    float scores[32];
    for (size_t i = 0; i < c->n_tokens; i++) {
        tokens[i] = slice_of(c->tokens[i]);
        scores[i] = -(float)i;
    }
    for (size_t i = 0; i < c->n_merges; i++)
        merges[i] = slice_of(c->merges[i]);
    assert_ok(gguf_writer_create(in_folder("t.gguf"), 0, &writer, &error));
    gguf_put_string(writer, "general.architecture", slice_of("llama"));
    gguf_put_string(writer, "tokenizer.ggml.model", slice_of(c->model));
    if (c->pre) gguf_put_string(writer, "tokenizer.ggml.pre", slice_of(c->pre));
    gguf_put_strings(writer, "tokenizer.ggml.tokens", tokens, c->n_tokens);
    gguf_put_array(writer, "tokenizer.ggml.token_type", GGUF_I32, c->types, c->n_tokens);
    if (c->with_scores)
        gguf_put_array(writer, "tokenizer.ggml.scores", GGUF_F32, scores, c->n_tokens);
    if (c->n_merges) gguf_put_strings(writer, "tokenizer.ggml.merges", merges, c->n_merges);
    gguf_put_u32(writer, "tokenizer.ggml.bos_token_id", 0);
    gguf_put_u32(writer, "tokenizer.ggml.eos_token_id", 1);
    assert_ok(gguf_writer_begin(writer, &error));
    assert_ok(gguf_writer_finish(writer, &error));
    gguf_writer_destroy(writer);
    gguf *file;
    assert_ok(gguf_open(in_folder("t.gguf"), &file, &error));
    *out = NULL;
    qp_status status = tokenizer_open_gguf(file, out, &error);
    gguf_close(file);
    return status;
}

static void test_gguf_bytes(void **state)
{
    (void)state;
    static const char *const tokens[] = {"<|b|>",    "<|eot_id|>", "a",   "b",  "ab", "\u0120",
                                         "\u0120ab", "1",          "111", "11", "xy", "\u00FF"};
    static const int32_t types[] = {3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1};
    static const char *const merges[] = {"a b", "\u0120 ab", "1 1", "11 1"};
    gguf_case c = {.model = "gpt2",
                   .pre = "llama-bpe",
                   .tokens = tokens,
                   .types = types,
                   .merges = merges,
                   .n_tokens = 12,
                   .n_merges = 4};
    tokenizer *tokenizer;
    assert_ok(open_gguf(&c, &tokenizer));
    ASSERT_IDS(tokenizer, "ab ab1111", 0, 4, 6, 8, 7);
    ASSERT_IDS(tokenizer, "axyb\xFF<|eot_id|>", TOKENIZER_SPECIAL, 2, 10, 3, 11, 1);
    assert_int_equal(tokenizer_special_ids(tokenizer).eot, 1);
    assert_int_equal(tokenizer_default_flags(tokenizer), TOKENIZER_BOS);
    assert_string_equal(tokenizer_pre_name(tokenizer), "llama-bpe");
    tokenizer_free(tokenizer);
    c.pre = "smollm";
    assert_ok(open_gguf(&c, &tokenizer));
    ASSERT_IDS(tokenizer, "ab ab1111", 0, 4, 6, 7, 7, 7, 7);
    assert_int_equal(tokenizer_default_flags(tokenizer), 0);
    tokenizer_free(tokenizer);
    c.pre = NULL;
    assert_ok(open_gguf(&c, &tokenizer));
    assert_string_equal(tokenizer_pre_name(tokenizer), "default");
    tokenizer_free(tokenizer);
    c.pre = "bpe";
    assert_int_equal(open_gguf(&c, &tokenizer), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "\"bpe\""));
    c.pre = "gpt-2";
    c.model = "rwkv";
    assert_int_equal(open_gguf(&c, &tokenizer), QP_UNSUPPORTED);
    c.model = "gpt2";
    c.n_tokens = 5;
    assert_int_equal(open_gguf(&c, &tokenizer), QP_FORMAT); /* merges speak of more */
    c.n_tokens = 0;
    c.n_merges = 0;
    assert_int_equal(open_gguf(&c, &tokenizer), QP_FORMAT);
}

static void test_gguf_scores(void **state)
{
    (void)state;
    static const char *const tokens[] = {"<s>",    "</s>", "<unk>",  "<0x62>",
                                         "\u2581", "a",    "\u2581a"};
    static const int32_t types[] = {3, 3, 2, 6, 1, 1, 1};
    gguf_case c = {
        .model = "llama", .tokens = tokens, .types = types, .n_tokens = 7, .with_scores = true};
    tokenizer *tokenizer;
    assert_ok(open_gguf(&c, &tokenizer));
    ASSERT_IDS(tokenizer, "ab a</s>a", TOKENIZER_SPECIAL | TOKENIZER_BOS, 0, 6, 3, 6, 1, 6);
    assert_decodes(tokenizer, (int32_t[]){0, 6, 3, 6}, 4, "ab a");
    assert_int_equal(tokenizer_default_flags(tokenizer), TOKENIZER_BOS);
    tokenizer_free(tokenizer);
    c.with_scores = false;
    assert_int_equal(open_gguf(&c, &tokenizer), QP_FORMAT);
    assert_non_null(strstr(error.message, "scores"));
}

/* --- Hostile files. --- */

/* What a hash without a secret allows: pieces of two words, the second chosen so that the state
 * after it is the same for all. These collide in what the index once used. */
static void pieces_cannot_be_made_to_collide(void **state)
{
    (void)state;
    enum { N = 100000 };
    vocabulary v;
    vocabulary_init(&v, VOCABULARY_SCORES);
    for (int32_t i = 0; i < N; i++) {
        uint64_t words[2] = {(uint64_t)i, 0};
        uint64_t hash = ((0xCBF29CE484222325u ^ 16) ^ words[0]) * 0x9E3779B97F4A7C15u;
        words[1] = hash ^ hash >> 32;
        assert_ok(vocabulary_set(&v, i, N, (const char *)words, sizeof words, PIECE_NORMAL,
                                 PIECE_MODEL, "t", &error));
    }
    clock_t begin = clock();
    assert_ok(vocabulary_index(&v, &error));
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 2);
    vocabulary_free(&v);
}

/* A pipe is no file to read, and no reason to take another file in its place. */
static void a_pipe_is_not_absent(void **state)
{
    (void)state;
    tokenizer *tokenizer;
    assert_int_equal(mkfifo(in_folder("tokenizer.json"), 0600), 0);
    write_text("tokenizer.model", "not read");
    assert_int_equal(tokenizer_open_directory(folder, &tokenizer, &error), QP_IO);
    assert_non_null(strstr(error.message, "tokenizer.json: cannot read: expected a regular file"));
    unlink(in_folder("tokenizer.json"));
    assert_int_equal(symlink("nowhere", in_folder("tokenizer.json")), 0);
    assert_int_equal(tokenizer_open_directory(folder, &tokenizer, &error), QP_IO);
    assert_non_null(strstr(error.message, "tokenizer.json: cannot open"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_behaviors),
        cmocka_unit_test(test_byte_level_options),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_normalized_tokens),
        cmocka_unit_test(test_metaspace),
        cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_refused_json),
        cmocka_unit_test(test_expression_limit),
        cmocka_unit_test(test_damaged_model),
        cmocka_unit_test(test_piece_types),
        cmocka_unit_test(pieces_cannot_be_made_to_collide),
        cmocka_unit_test_setup_teardown(a_pipe_is_not_absent, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_directory, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_gguf_bytes, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_gguf_scores, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
