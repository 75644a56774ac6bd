/* Forms of answers: masks against a search over all tokens, ends, limits, and what many texts of
 * one form do to each other. test_schemas.py checks what forms mean. */
#include "test.h"

#include "base/hash.h"
#include "engine/vocabulary.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "grammar/stacks.h"

#include <pthread.h>

static qp_vocabulary *vocabulary;
static token_trie *trie;

static int open_vocabulary(void **state)
{
    qp_error error;
    (void)state;
    assert_ok(qp_vocabulary_open("golden/models/llama-text.gguf", &vocabulary, &error));
    assert_ok(token_trie_build(vocabulary->tokenizer, &trie, &error));
    return 0;
}

static int close_vocabulary(void **state)
{
    (void)state;
    token_trie_free(trie);
    qp_vocabulary_close(vocabulary);
    return 0;
}

static void read_form(const char *text, grammar *g)
{
    qp_error error;
    const bool schema = *text == '{';
    if (schema)
        assert_ok(json_schema_parse(text, strlen(text), g, &error));
    else
        assert_ok(gbnf_read(text, strlen(text), g, &error));
}

static form *open_form(const char *text)
{
    qp_error error;
    grammar g = {0};
    form *f;
    read_form(text, &g);
    assert_ok(form_open(&g, trie, &f, &error));
    grammar_free(&g);
    return f;
}

static matcher *open_matcher(form *f)
{
    qp_error error;
    matcher *m;
    const int32_t stop = qp_special_token(vocabulary, QP_ROLE_EOS);
    assert_ok(matcher_open(f, &stop, 1, (size_t)trie->vocab_size + 40, &m, &error));
    return m;
}

static bool allows(const uint32_t *mask, int32_t token)
{
    return mask[token >> 5] >> (token & 31) & 1;
}

static int32_t stop_token(void)
{
    return qp_special_token(vocabulary, QP_ROLE_EOS);
}

/* Appends the bytes of a text, each as a token. */
static void take_text(matcher *m, const char *text)
{
    qp_error error;
    for (; *text; text++) {
        int32_t token = 0;
        size_t length;
        const char *piece = qp_token_piece(vocabulary, token, &length);
        while (token < trie->vocab_size &&
               (length != 1 || *piece != *text || qp_token_is_control(vocabulary, token)))
            piece = qp_token_piece(vocabulary, ++token, &length);
        assert_ok(matcher_take(m, token, &error));
    }
}

/* ---- Masks --------------------------------------------------------------------------------- */

/* Whether a token may follow, found byte by byte in stacks of its own. */
static bool may_follow(stacks *s, uint32_t config, int32_t token)
{
    char bytes[TRIE_MAX_PIECE];
    const size_t length = token_trie_bytes(trie, token, bytes);
    for (size_t i = 0; i < length; i++)
        config = stacks_step(s, config, (uint8_t)bytes[i]);
    return length > 0 && config != CONFIG_DEAD;
}

static void check_mask(stacks *s, uint32_t config, const uint32_t *mask)
{
    for (int32_t token = 0; token < trie->vocab_size; token++) {
        const bool right =
            token == stop_token() ? s->configs[config].ends : may_follow(s, config, token);
        if (allows(mask, token) != right) fail_msg("token %d: %d", (int)token, right);
    }
    for (int32_t token = trie->vocab_size; token < trie->vocab_size + 40; token++)
        assert_false(allows(mask, token));
}

static int32_t choose(const uint32_t *mask, uint64_t random)
{
    int32_t chosen = -1;
    uint64_t n = 0;
    for (int32_t token = 0; token < trie->vocab_size; token++)
        if (allows(mask, token) && hash_random(random, 0, (uint64_t)token) % ++n == 0)
            chosen = token;
    return chosen;
}

static void check_masks_of(const char *text, uint64_t seed)
{
    qp_error error;
    grammar g = {0};
    automaton a;
    stacks s;
    form *f = open_form(text);
    matcher *m = open_matcher(f);
    const uint32_t *mask;
    read_form(text, &g);
    assert_ok(automaton_compile(&g, &a, &error));
    assert_ok(stacks_open(&s, &a, 1 << 20, &error)); /* no count is out of its sight */
    uint32_t config = stacks_root(&s);
    for (uint64_t i = 0; i < 60; i++) {
        char bytes[TRIE_MAX_PIECE];
        assert_ok(matcher_mask(m, &mask, &error));
        check_mask(&s, config, mask);
        const int32_t token = choose(mask, hash_random(seed, 1, i));
        if (token == stop_token()) break;
        assert_ok(matcher_take(m, token, &error));
        const size_t length = token_trie_bytes(trie, token, bytes);
        for (size_t k = 0; k < length; k++)
            config = stacks_step(&s, config, (uint8_t)bytes[k]);
        s.work = 0;
    }
    stacks_free(&s);
    automaton_free(&a);
    grammar_free(&g);
    matcher_close(m);
    form_release(f);
}

static void test_masks(void **state)
{
    static const char *const forms[] = {
        "{}",
        "{\"type\":\"string\",\"maxLength\":7}",
        "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":30},"
        "\"minItems\":50,\"maxItems\":200}",
        "{\"properties\":{\"the\":{\"type\":\"integer\"},\"cat\":{\"enum\":[\"a\",\"at\",\"the\"]}}"
        ","
        "\"required\":[\"cat\"],\"additionalProperties\":{\"type\":\"number\"}}",
        "root ::= (\"a\" | \"at\" | \"cat\" \" \"?){3,90} \"x\" root?",
        "root ::= [a-z ]{20,40} (\"the\" [^a]{70} | \"a\" [^ ]{70,75})",
        "root ::= (word \" \"?)* \".\"\nword ::= \"t\" [a-h] | \"the\" | word2\nword2 ::= \"c\" "
        "word",
    };
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (uint64_t seed = 0; seed < 5; seed++)
            check_masks_of(forms[i], seed + 10 * i);
}

/* ---- Ends ---------------------------------------------------------------------------------- */

static void test_ends(void **state)
{
    qp_error error;
    const uint32_t *mask;
    form *f = open_form("root ::= \"a\" \"b\"?");
    matcher *m = open_matcher(f);
    (void)state;
    assert_ok(matcher_mask(m, &mask, &error));
    assert_false(allows(mask, stop_token()));
    assert_int_equal(matcher_take(m, stop_token(), &error), QP_INVALID);
    take_text(m, "a");
    assert_true(matcher_may_end(m));
    assert_ok(matcher_mask(m, &mask, &error));
    assert_true(allows(mask, stop_token()));
    assert_int_equal(matcher_take(m, -1, &error), QP_INVALID);
    assert_int_equal(matcher_take(m, trie->vocab_size, &error), QP_INVALID);
    take_text(m, "b");
    assert_ok(matcher_mask(m, &mask, &error));
    for (int32_t token = 0; token < trie->vocab_size; token++)
        assert_int_equal(allows(mask, token), token == stop_token());
    assert_ok(matcher_take(m, stop_token(), &error));
    assert_int_equal(matcher_mask(m, &mask, &error), QP_INVALID);
    assert_int_equal(matcher_take(m, stop_token(), &error), QP_INVALID);
    matcher_close(m);
    assert_int_equal(matcher_open(f, NULL, 0, 10, &m, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "stop token"));
    form_release(f);
}

/* A control token has a byte of its own before its name, which only a builder can write. */
static void test_control_tokens(void **state)
{
    qp_error error;
    const uint32_t *mask;
    grammar g = {0};
    form *f;
    const int32_t bos = qp_special_token(vocabulary, QP_ROLE_BOS);
    char bytes[TRIE_MAX_PIECE];
    const size_t length = token_trie_bytes(trie, bos, bytes);
    (void)state;
    assert_true(length > 1 && (uint8_t)bytes[0] == TRIE_CONTROL);
    const uint32_t root = grammar_add_rule(&g, "root", 4);
    grammar_set_rule(&g, root, grammar_literal(&g, bytes, length));
    assert_ok(form_open(&g, trie, &f, &error));
    matcher *m = open_matcher(f);
    assert_ok(matcher_mask(m, &mask, &error));
    for (int32_t token = 0; token < trie->vocab_size; token++)
        assert_int_equal(allows(mask, token), token == bos);
    assert_ok(matcher_take(m, bos, &error));
    assert_true(matcher_may_end(m));
    matcher_close(m);
    form_release(f);
    grammar_free(&g);
}

/* ---- Limits -------------------------------------------------------------------------------- */

static void test_depth(void **state)
{
    qp_error error;
    const uint32_t *mask;
    form *f = open_form("{}");
    matcher *m = open_matcher(f);
    int depth = 0;
    (void)state;
    for (; depth < 1000; depth++) {
        assert_ok(matcher_mask(m, &mask, &error));
        int32_t token = tokenizer_find(vocabulary->tokenizer, "[", 1);
        if (!allows(mask, token)) break;
        assert_ok(matcher_take(m, token, &error));
    }
    assert_in_range(depth, 100, STACKS_MAX_DEPTH);
    for (; depth > 0; depth--)
        take_text(m, "]");
    assert_true(matcher_may_end(m));
    matcher_close(m);
    form_release(f);
}

/* What a form allows next may be out of reach: deeper than the limit, or in no token. */
static void test_dead_ends(void **state)
{
    qp_error error;
    const uint32_t *mask;
    grammar g = {0};
    (void)state;
    /* Only a deeper rule goes on, at an odd depth in one form and at an even one in the other. */
    static const char *const forms[] = {
        "root ::= a\na ::= \"[\" b \"]\"\nb ::= \"[\" a \"]\" | \"x\"",
        "root ::= \"[\" a \"]\"\na ::= \"[\" b \"]\"\nb ::= \"[\" a \"]\" | \"x\""};
    int dead = 0;
    for (int i = 0; i < 2; i++) {
        form *f = open_form(forms[i]);
        matcher *m = open_matcher(f);
        const int32_t bracket = tokenizer_find(vocabulary->tokenizer, "[", 1);
        qp_status status = matcher_mask(m, &mask, &error);
        while (status == QP_OK && allows(mask, bracket)) {
            assert_ok(matcher_take(m, bracket, &error));
            status = matcher_mask(m, &mask, &error);
        }
        dead += status == QP_UNSUPPORTED &&
                strstr(error.message, "the text is nested deeper than ") != NULL;
        matcher_close(m);
        form_release(f);
    }
    assert_in_range(dead, 1, 2);
    const uint32_t root = grammar_add_rule(&g, "root", 4);
    grammar_set_rule(&g, root, grammar_literal(&g, (char[]){(char)TRIE_CONTROL, '?', '?'}, 3));
    form *f;
    assert_ok(form_open(&g, trie, &f, &error));
    matcher *m = open_matcher(f);
    assert_int_equal(matcher_mask(m, &mask, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "no token of the vocabulary goes on with a text"));
    matcher_close(m);
    form_release(f);
    grammar_free(&g);
}

/* A form that takes too much memory fails, and its other texts go on. */
static void test_ambiguous(void **state)
{
    qp_error error;
    const uint32_t *mask;
    form *f = open_form("root ::= ((\"a\"{1,3000} \"b\"?){1,3000} \"c\"?){1,3000}");
    matcher *hostile = open_matcher(f), *other = open_matcher(f);
    const int32_t a = tokenizer_find(vocabulary->tokenizer, "a", 1);
    qp_status status = QP_OK;
    (void)state;
    take_text(other, "ab");
    for (int i = 0; i < 3000 && status == QP_OK; i++) {
        status = matcher_mask(hostile, &mask, &error);
        if (status == QP_OK) status = matcher_take(hostile, a, &error);
    }
    assert_int_equal(status, QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "ambiguous"));
    assert_ok(matcher_mask(other, &mask, &error));
    assert_true(allows(mask, a));
    matcher_close(hostile);
    take_text(other, "c");
    matcher_close(other);
    form_release(f);
}

/* ---- Threads ------------------------------------------------------------------------------- */

static void *make_texts(void *context)
{
    qp_error error;
    for (uint64_t seed = 0; seed < 20; seed++) {
        matcher *m = open_matcher(context);
        const uint32_t *mask;
        for (uint64_t i = 0; i < 40; i++) {
            assert_ok(matcher_mask(m, &mask, &error));
            const int32_t token = choose(mask, hash_random(seed, 1, i));
            assert_ok(matcher_take(m, token, &error));
            if (token == stop_token()) break;
        }
        matcher_close(m);
    }
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t threads[3];
    form *f = open_form("{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":40}}");
    (void)state;
    form_warm(f, 1000000);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, make_texts, f), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    form_release(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),          cmocka_unit_test(test_ends),
        cmocka_unit_test(test_control_tokens), cmocka_unit_test(test_depth),
        cmocka_unit_test(test_dead_ends),      cmocka_unit_test(test_ambiguous),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}
