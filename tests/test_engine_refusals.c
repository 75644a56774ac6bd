/* What an engine, a sampler and a matcher refuse, each with one thing wrong. */
#include "engine_test.h"

#include <limits.h>
#include <math.h>
#include <unistd.h>

static const qp_adapter unnamed = {0}, nowhere = {.path = "/nowhere"},
                        waiting = {.path = "/nowhere", .waits = true};

static const struct {
    const char *said;
    qp_engine_options given;
} engines[] = {
    {"an adapter has no path: name its file", {.adapters = &unnamed, .n_adapters = 1}},
    {"cannot wait for sessions that want it; leave out one of the two",
     {.adapters = &waiting, .n_adapters = 1, .merge_adapters = true}},
    {"an engine has at most ", {.adapters = &nowhere, .n_adapters = 100000}},
    {"adapters of a session at once must be 1, with which sessions begin, to ",
     {.adapters = &nowhere, .n_adapters = 1, .adapters_at_once = 1000000}},
    {"ranks cut a model by gather or reduce, found \"half\"", {.cut = "half"}},
    {"there are 1 to 1024 ranks, found 1025", {.ranks = 1025}},
    {"ranks are threads, mpi or messages, found \"pigeons\"", {.transport = "pigeons"}},
    {"GPUs exchange rows by auto, peers, nccl or host, found \"mail\"",
     {.gpus = "0", .exchange = "mail"}},
};

static void engines_that_cannot_be_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        qp_engine_options given = engines[i].given;
        qp_engine *engine = NULL;
        qp_error error;
        given.size = sizeof given;
        given.model = "synthetic:tiny";
        given.context = 64;
        if (!given.threads) given.threads = 1;
        if (!given.gpus) given.device = "cpu";
        if (qp_engine_open(&given, &engine, &error) == QP_OK) fail_msg("%s", engines[i].said);
        if (!strstr(error.message, engines[i].said))
            fail_msg("%s, expected %s", error.message, engines[i].said);
    }
}

static void samplers_and_grammars_that_cannot_be_are_refused(void **state)
{
    (void)state;
    qp_error error;
    qp_sampler *sampler;
    qp_matcher *matcher;
    qp_grammar *grammar;
    qp_vocabulary *vocabulary;
    qp_engine *engine = open_engine((qp_engine_options){.model = "synthetic:tiny", .context = 64});
    const qp_logit_bias bias = {3, NAN};
    qp_sampling sampling;
    sampling.size = sizeof sampling;
    assert_ok(qp_sampling_defaults(engine, &sampling, &error));
    sampling.logit_bias = &bias;
    sampling.n_logit_bias = 1;
    assert_int_equal(qp_sampler_open(engine, &sampling, &sampler, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "the logit bias of token 3 must be a finite number"));
    sampling.n_logit_bias = 0;
    assert_int_equal(qp_matcher_open(engine, &sampling, &matcher, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "the settings have no grammar for the matcher"));
    sampling.value[QP_MIROSTAT] = 1;
    assert_int_equal(qp_sampler_open(engine, &sampling, &sampler, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "mirostat may be 0 or 2: its first version"));
    assert_ok(qp_vocabulary_open("golden/models/llama-text.gguf", &vocabulary, &error));
    assert_int_equal(qp_grammar_open(vocabulary, (qp_grammar_kind)99, "{}", 2, &grammar, &error),
                     QP_INVALID);
    assert_non_null(strstr(error.message, "there is no kind of grammar 99"));
    qp_vocabulary_close(vocabulary);
    qp_engine_close(engine);
}

static void samplers_of_another_engine_are_refused(void **state)
{
    (void)state;
    qp_error error;
    qp_sampler *sampler;
    qp_engine *engines[2];
    qp_sampling sampling = {.size = sizeof sampling};
    for (int i = 0; i < 2; i++)
        engines[i] = open_engine((qp_engine_options){.model = "synthetic:tiny", .context = 16});
    assert_ok(qp_sampling_defaults(engines[0], &sampling, &error));
    assert_ok(qp_sampler_open(engines[0], &sampling, &sampler, &error));
    const int32_t token = 1;
    qp_sequence sequence = {
        .size = sizeof sequence, .sampler = sampler, .tokens = &token, .count = 1, .max_tokens = 1};
    assert_ok(qp_session_open(engines[1], &sequence.session, &error));
    assert_int_equal(qp_step(engines[1], &sequence, 1, &error), QP_INVALID);
    assert_string_equal(error.message, "the sampler of sequence 0 is another engine's");
    qp_sampler_close(sampler);
    for (int i = 0; i < 2; i++)
        qp_engine_close(engines[i]);
    qp_session_close(sequence.session);
}

/* The bits of its masks would be those of other tokens, or beyond the mask's end. */
static void grammars_of_another_vocabulary_are_refused(void **state)
{
    (void)state;
    char folder[] = "/tmp/quipu-grammar-XXXXXX", file[64], bytes[PATH_MAX];
    assert_non_null(mkdtemp(folder));
    assert_non_null(realpath("golden/tokenizer/bytes.json", bytes));
    snprintf(file, sizeof file, "%s/tokenizer.json", folder);
    assert_int_equal(symlink(bytes, file), 0);
    const struct {
        const char *model, *vocabulary, *said;
    } cases[] = {
        {"golden/models/llama-text.gguf", folder, "is not the same text"},
        {"golden/models/llama-mlp-bias.gguf", "golden/models/llama-text.gguf", "rows of logits"},
        {"golden/models/llama-text.gguf", "golden/models/llama-text", NULL}, /* the same texts */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qp_error error;
        qp_matcher *matcher;
        qp_grammar *grammar;
        qp_vocabulary *vocabulary;
        qp_engine *engine =
            open_engine((qp_engine_options){.model = cases[i].model, .context = 16});
        qp_sampling sampling = {.size = sizeof sampling};
        assert_ok(qp_sampling_defaults(engine, &sampling, &error));
        assert_ok(qp_vocabulary_open(cases[i].vocabulary, &vocabulary, &error));
        assert_ok(qp_grammar_open(vocabulary, QP_GRAMMAR_JSON, "", 0, &grammar, &error));
        sampling.grammar = grammar;
        sampling.stop_tokens[0] = 0;
        sampling.n_stop_tokens = 1;
        const qp_status status = qp_matcher_open(engine, &sampling, &matcher, &error);
        assert_int_equal(status, cases[i].said ? QP_INVALID : QP_OK);
        if (cases[i].said) assert_non_null(strstr(error.message, cases[i].said));
        qp_matcher_close(matcher);
        qp_grammar_close(grammar);
        qp_vocabulary_close(vocabulary);
        qp_engine_close(engine);
    }
    assert_int_equal(unlink(file) | rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_that_cannot_be_are_refused),
        cmocka_unit_test(samplers_and_grammars_that_cannot_be_are_refused),
        cmocka_unit_test(samplers_of_another_engine_are_refused),
        cmocka_unit_test(grammars_of_another_vocabulary_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
