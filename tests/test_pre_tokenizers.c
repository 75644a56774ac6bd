/* The pre-tokenizers of the families: how a text is normalized and cut into words, compared with
 * Hugging Face's tokenizers (tests/scripts/tokenizer_compare.py), by GGUF's names and by
 * tokenizer.json. */
#define _GNU_SOURCE

#include "base/json.h"
#include "file/gguf_write.h"
#include "file/mapping.h"
#include "test.h"
#include "text/nfc.h"
#include "text/pre_tokenize.h"
#include "text/tokenizer.h"

#include <unistd.h>

static qp_error error;

static cJSON *read_json(const char *path)
{
    char *text;
    size_t length;
    cJSON *json;
    assert_ok(file_read_text(path, 1 << 20, &text, &length, &error));
    assert_ok(json_parse(text, length, path, &json, &error));
    free(text);
    return json;
}

/* --- Words. --- */

typedef struct word_list {
    const cJSON *expected;
    int count;
    const char *about;
} word_list;

static qp_status compare_word(void *context, const char *word, size_t length, qp_error *why)
{
    (void)why;
    word_list *list = context;
    const cJSON *item = cJSON_GetArrayItem(list->expected, list->count++);
    if (!item || strlen(item->valuestring) != length ||
        memcmp(item->valuestring, word, length) != 0)
        fail_msg("%s: word %d is \"%.*s\", expected \"%s\"", list->about, list->count, (int)length,
                 word, item ? item->valuestring : "(none)");
    return QP_OK;
}

static void names_stand_for_words(void **state)
{
    (void)state;
    cJSON *rows = read_json("golden/tokenizer/words.json");
    const cJSON *row;
    assert_true(cJSON_GetArraySize(rows) > 50);
    cJSON_ArrayForEach(row, rows)
    {
        const char *name = cJSON_GetObjectItem(row, "pre")->valuestring;
        const char *text = cJSON_GetObjectItem(row, "text")->valuestring;
        pre_tokenizer pre = {0};
        pre_scratch scratch = {0};
        pre_habits habits;
        strbuf normalized = {0};
        assert_ok(pre_tokenizer_by_name(&pre, name, &habits, "here", &error));
        assert_string_equal(pre_tokenizer_name(&pre, habits), name);
        if (habits.nfc)
            assert_ok(nfc_append(text, strlen(text), &normalized, &error));
        else
            strbuf_puts(&normalized, text);
        word_list list = {.expected = cJSON_GetObjectItem(row, "words"), .about = name};
        assert_ok(pre_tokenize(&pre, &scratch, strbuf_text(&normalized), normalized.length, true,
                               compare_word, &list, &error));
        assert_int_equal(list.count, cJSON_GetArraySize(list.expected));
        strbuf_free(&normalized);
        pre_scratch_free(&scratch);
        pre_tokenizer_free(&pre);
    }
    cJSON_Delete(rows);
}

/* --- Ids: the same model with what each family has around it. --- */

/* FNV-1a of the ids, -1 after each string, as tokenizer_compare.py stores it for 16 strings. */
static void check_ids(const tokenizer *tokenizer, const char *name, const cJSON *hashes)
{
    char *text, *at;
    size_t length, block = 0, in_block = 0;
    uint64_t hash = 0xCBF29CE484222325u;
    assert_ok(file_read_text("golden/tokenizer/strings.bin", 1 << 20, &text, &length, &error));
    for (at = text; at < text + length;) {
        char *begin;
        size_t count = strtoul(at, &begin, 10);
        token_ids ids = {0};
        assert_ok(tokenizer_encode(tokenizer, begin + 1, count, 0, &ids, &error));
        assert_ok(token_ids_push(&ids, -1, &error));
        for (size_t i = 0; i < 4 * ids.count; i++)
            hash = (hash ^ ((uint32_t)ids.data[i / 4] >> 8 * (i % 4) & 0xFF)) * 0x100000001B3u;
        token_ids_free(&ids);
        at = begin + 1 + count;
        if (++in_block < 16 && at < text + length) continue;
        char found[17];
        snprintf(found, sizeof found, "%016llx", (unsigned long long)hash);
        const cJSON *expected = cJSON_GetArrayItem(hashes, (int)block++);
        assert_non_null(expected);
        if (strcmp(found, expected->valuestring) != 0)
            fail_msg("%s: strings %zu to %zu give other ids (tests/scripts/tokenizer_compare.py "
                     "shows which)",
                     name, 16 * block - 16, 16 * block - 1);
        hash = 0xCBF29CE484222325u;
        in_block = 0;
    }
    assert_int_equal(block, cJSON_GetArraySize(hashes));
    free(text);
}

/* loose.json with the family's normalizer and pre-tokenizer. */
static tokenizer *open_around(const cJSON *parts)
{
    cJSON *root = read_json("golden/tokenizer/loose.json");
    cJSON *model = cJSON_GetObjectItem(root, "model");
    static const char *const keys[] = {"normalizer", "pre_tokenizer"};
    for (int i = 0; i < 2; i++)
        cJSON_ReplaceItemInObject(root, keys[i],
                                  cJSON_Duplicate(cJSON_GetObjectItem(parts, keys[i]), true));
    cJSON_ReplaceItemInObject(model, "ignore_merges",
                              cJSON_Duplicate(cJSON_GetObjectItem(parts, "ignore_merges"), true));
    char *text = cJSON_PrintUnformatted(root);
    tokenizer *tokenizer;
    assert_ok(tokenizer_parse_json(text, strlen(text), parts->string, &tokenizer, &error));
    cJSON_free(text);
    cJSON_Delete(root);
    return tokenizer;
}

/* The tokenizer as a GGUF file, read again. */
static tokenizer *through_gguf(const tokenizer *from)
{
    char path[] = "/tmp/quipu-test-XXXXXX";
    close(mkstemp(path));
    strbuf losses = {0};
    gguf_writer *writer;
    gguf *file;
    tokenizer *again;
    assert_ok(gguf_writer_create(path, 0, &writer, &error));
    assert_ok(tokenizer_write_gguf(from, tokenizer_vocab_size(from), "tokenizer", writer, &losses,
                                   &error));
    assert_ok(gguf_writer_begin(writer, &error));
    assert_ok(gguf_writer_finish(writer, &error));
    gguf_writer_destroy(writer);
    assert_ok(gguf_open(path, &file, &error));
    assert_ok(tokenizer_open_gguf(file, &again, &error));
    gguf_close(file);
    unlink(path);
    strbuf_free(&losses);
    return again;
}

static void families_give_their_ids(void **state)
{
    (void)state;
    cJSON *families = read_json("golden/tokenizer/pre_tokenizers.json");
    cJSON *hashes = read_json("golden/tokenizer/hashes.json");
    const cJSON *parts;
    cJSON_ArrayForEach(parts, families)
    {
        char key[128];
        snprintf(key, sizeof key, "golden/loose.json, %s", parts->string);
        const cJSON *expected = cJSON_GetObjectItem(hashes, key);
        assert_non_null(expected);
        tokenizer *tokenizer = open_around(parts), *again = through_gguf(tokenizer);
        check_ids(tokenizer, key, expected);
        check_ids(again, key, expected);
        assert_string_equal(tokenizer_pre_name(again), parts->string);
        tokenizer_free(tokenizer);
        tokenizer_free(again);
    }
    cJSON_Delete(families);
    cJSON_Delete(hashes);
}

/* --- Normalization Form C. --- */

static void assert_nfc(const char *text, const char *expected)
{
    strbuf out = {0};
    assert_ok(nfc_append(text, strlen(text), &out, &error));
    assert_string_equal(strbuf_text(&out), expected);
    strbuf_free(&out);
}

static void letters_and_marks_compose(void **state)
{
    (void)state;
    assert_nfc("", "");
    assert_nfc("plain \xC3\xA9 text", "plain \xC3\xA9 text");
    assert_nfc("e\xCC\x81", "\xC3\xA9");                                /* e + acute */
    assert_nfc("x\xCC\x81", "x\xCC\x81");                               /* no such letter */
    assert_nfc("q\xCC\x87\xCC\xA3", "q\xCC\xA3\xCC\x87");               /* dot below first */
    assert_nfc("\xE1\xBA\x9B\xCC\xA3", "\xE1\xBA\x9B\xCC\xA3");         /* U+1E9B U+0323 */
    assert_nfc("a\xCC\x81\xCC\x81", "\xC3\xA1\xCC\x81");                /* the second stays */
    assert_nfc("\xE2\x84\xAB", "\xC3\x85");                             /* Angstrom sign */
    assert_nfc("\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC");             /* does not compose */
    assert_nfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"); /* Hangul L V T */
    assert_nfc("\xEA\xB0\x80\xE1\x86\xA8", "\xEA\xB0\x81");             /* Hangul LV T */
    assert_nfc("\xCC\x81", "\xCC\x81");                                 /* a mark alone */
    assert_nfc("e\xFF\xCC\x81\xC3", "e\xFF\xCC\x81\xC3");               /* invalid bytes */
}

/* Many marks on a letter are sorted, not shifted one by one. */
static void many_marks_are_sorted(void **state)
{
    (void)state;
    enum { MARKS = 200000 };
    strbuf text = {0}, out = {0};
    strbuf_putc(&text, 'x');
    for (int i = 0; i < MARKS; i++)
        strbuf_puts(&text, i % 2 ? "\xCC\xA3" : "\xCC\x87"); /* below (220), above (230) */
    assert_ok(nfc_append(strbuf_text(&text), text.length, &out, &error));
    assert_int_equal(out.length, text.length); /* x and a dot above, 3 bytes, are a letter of 3 */
    assert_memory_equal(strbuf_text(&out), "\xE1\xBA\x8B\xCC\xA3\xCC\xA3", 7);
    strbuf_free(&text);
    strbuf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_stand_for_words),
        cmocka_unit_test(families_give_their_ids),
        cmocka_unit_test(letters_and_marks_compose),
        cmocka_unit_test(many_marks_are_sorted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
