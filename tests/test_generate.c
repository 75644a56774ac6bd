/* Generation: penalties, biases, all kinds of ends, and text in whole characters.
 *
 * A small model's logits lie within a few units of zero, so biases of hundreds force its tokens:
 * with a presence penalty of 100, biases 400, 390, 380 write three tokens one after the other.
 */
#include "engine_test.h"

#include <math.h>

static const char text_gguf[] = "golden/models/llama-text.gguf";
static qp_error error;

/* What a generation handed out. */
typedef struct record {
    char text[4096];
    size_t length;
    int32_t tokens[512];
    size_t n_tokens;
    size_t lengths[512]; /* bytes handed out with each token */
    size_t last_length;  /* bytes handed out at the end, without a token */
    int *cancel;
    size_t cancel_after; /* tokens; 0: never */
    qp_status fail_with;
} record;

static qp_status on_token(void *context, int32_t token, const char *text, size_t length)
{
    record *r = context;
    if (r->fail_with != QP_OK) return r->fail_with;
    assert_true(r->length + length < sizeof r->text);
    memcpy(r->text + r->length, text, length);
    r->length += length;
    r->text[r->length] = '\0';
    if (token >= 0) {
        r->lengths[r->n_tokens] = length;
        r->tokens[r->n_tokens++] = token;
    } else {
        r->last_length = length;
    }
    if (r->cancel_after && r->n_tokens == r->cancel_after) *r->cancel = 1;
    return QP_OK;
}

static qp_sampling greedy(const qp_engine *engine)
{
    qp_sampling s = {.size = sizeof s};
    assert_int_equal(qp_sampling_defaults(engine, &s, NULL), QP_OK);
    assert_ok(qp_sampling_set(&s, QP_TEMPERATURE, 0, QP_FROM_REQUEST, &error));
    s.n_stop_tokens = 0;
    return s;
}

static void set(qp_sampling *s, qp_setting setting, double value)
{
    assert_ok(qp_sampling_set(s, setting, value, QP_FROM_REQUEST, &error));
}

/* All that is said here holds whatever the interval. */
static int64_t eos_interval;

static const int32_t prompt[] = {54, 74, 71};

static qp_generate_result generate(qp_session *session, const qp_sampling *s, int64_t max_tokens,
                                   record *r)
{
    *r = (record){.cancel = r->cancel, .cancel_after = r->cancel_after};
    qp_generate_options options = {.size = sizeof options,
                                   .prompt = prompt,
                                   .n_prompt = 3,
                                   .sampling = s,
                                   .max_tokens = max_tokens,
                                   .eos_interval = eos_interval,
                                   .cancel = r->cancel,
                                   .on_token = on_token,
                                   .context = r};
    qp_generate_result result = {.size = sizeof result};
    assert_ok(qp_generate(session, &options, &result, &error));
    if (result.finish != QP_FINISH_CANCELLED)
        assert_int_equal(result.generated_tokens, r->n_tokens);
    return result;
}

static qp_generate_result generate_fresh(qp_engine *engine, const qp_sampling *s,
                                         int64_t max_tokens, record *r)
{
    qp_session *session = open_session(engine);
    qp_generate_result result = generate(session, s, max_tokens, r);
    qp_session_close(session);
    return result;
}

static qp_engine *open_text(int64_t context)
{
    return open_engine((qp_engine_options){.model = text_gguf, .context = context});
}

/* The token whose text is exactly these bytes. */
static int32_t token_of(const qp_engine *engine, const char *bytes)
{
    for (int32_t id = 0; id < qp_engine_get_info(engine)->vocab_size; id++) {
        char *text;
        size_t length;
        assert_ok(qp_detokenize(qp_engine_vocabulary(engine), &id, 1, QP_SPECIAL, &text, &length,
                                &error));
        bool same = length == strlen(bytes) && memcmp(text, bytes, length) == 0;
        free(text);
        if (same) return id;
    }
    fail_msg("no token \"%s\"", bytes);
    return -1;
}

/* Forces these tokens, all different, in order; n <= 8. */
static void force(qp_sampling *s, qp_logit_bias biases[8], const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        biases[i] = (qp_logit_bias){tokens[i], 500 - 10 * (float)i};
    s->logit_bias = biases;
    s->n_logit_bias = n;
    set(s, QP_PRESENCE_PENALTY, 100);
}

/* Forces the tokens whose texts are given; NULL ends the list. */
static void force_texts(const qp_engine *engine, qp_sampling *s, qp_logit_bias biases[8],
                        const char *const *texts)
{
    int32_t tokens[8];
    size_t n = 0;
    for (; texts[n]; n++)
        tokens[n] = token_of(engine, texts[n]);
    force(s, biases, tokens, n);
}

/* --- Sampling -------------------------------------------------------------------------------- */

static void the_same_seed_gives_the_same_text(void **state)
{
    (void)state;
    record first = {0}, r = {0};
    int differing = 0;
    for (int threads = 1; threads <= 3; threads++) {
        qp_engine *engine =
            open_engine((qp_engine_options){.model = text_gguf, .threads = threads});
        qp_sampling s = {.size = sizeof s};
        assert_int_equal(qp_sampling_defaults(engine, &s, NULL), QP_OK);
        s.n_stop_tokens = 0;
        set(&s, QP_TEMPERATURE, 1.3);
        set(&s, QP_SEED, 42);
        generate_fresh(engine, &s, 40, threads == 1 ? &first : &r);
        if (threads > 1) assert_memory_equal(first.tokens, r.tokens, 40 * sizeof *r.tokens);
        for (int seed = 43; seed < 46; seed++) {
            set(&s, QP_SEED, seed);
            generate_fresh(engine, &s, 40, &r);
            differing += memcmp(first.tokens, r.tokens, 40 * sizeof *r.tokens) != 0;
        }
        qp_engine_close(engine);
    }
    assert_int_equal(differing, 9);
}

/* A draw depends on the seed and the token's place in its sequence: an answer that is cut and asked
 * to go on is the answer in one piece. */
static void an_answer_can_be_continued(void **state)
{
    (void)state;
    qp_engine *engine = open_text(0);
    qp_sampling s = {.size = sizeof s};
    assert_int_equal(qp_sampling_defaults(engine, &s, NULL), QP_OK);
    s.n_stop_tokens = 0;
    set(&s, QP_SEED, 9);
    record whole = {0}, part = {0};
    generate_fresh(engine, &s, 30, &whole);
    qp_session *session = open_session(engine);
    generate(session, &s, 11, &part);
    size_t count;
    qp_session_tokens(session, &count);
    assert_int_equal(count, 3 + 10); /* the last token has not been through the model */
    int32_t last = part.tokens[10];
    record rest = {0};
    qp_generate_options options = {.size = sizeof options,
                                   .prompt = &last,
                                   .n_prompt = 1,
                                   .sampling = &s,
                                   .max_tokens = 19,
                                   .on_token = on_token,
                                   .context = &rest};
    assert_ok(qp_generate(session, &options, NULL, &error));
    assert_memory_equal(part.tokens, whole.tokens, 11 * sizeof *whole.tokens);
    assert_memory_equal(rest.tokens, whole.tokens + 11, 19 * sizeof *whole.tokens);
    qp_session_close(session);
    qp_engine_close(engine);
}

static void narrow_filters_are_greedy(void **state)
{
    (void)state;
    qp_engine *engine = open_text(0);
    qp_sampling s = greedy(engine);
    record want = {0}, r = {0};
    generate_fresh(engine, &s, 24, &want);
    static const struct {
        qp_setting setting;
        double value;
    } narrow[] = {{QP_TEMPERATURE, 0}, {QP_TOP_K, 1}, {QP_TOP_P, 1e-6}, {QP_MIN_P, 1}};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
        assert_int_equal(qp_sampling_defaults(engine, &s, NULL), QP_OK);
        s.n_stop_tokens = 0;
        set(&s, QP_SEED, 1000 + (double)i);
        set(&s, narrow[i].setting, narrow[i].value);
        generate_fresh(engine, &s, 24, &r);
        assert_memory_equal(r.tokens, want.tokens, 24 * sizeof *r.tokens);
    }
    set(&s, QP_MIN_P, 0);
    generate_fresh(engine, &s, 24, &r);
    assert_memory_not_equal(r.tokens, want.tokens, 24 * sizeof *r.tokens);
    qp_engine_close(engine);
}

static void penalties_count_what_they_should(void **state)
{
    (void)state;
    qp_engine *engine = open_text(0);
    record r = {0};
    /* Presence: once a token is in the answer, whatever its number; not for the prompt's. */
    const int32_t a = 100, b = 101;
    qp_logit_bias biases[] = {{a, 400}, {b, 350}};
    qp_sampling s = greedy(engine);
    s.logit_bias = biases, s.n_logit_bias = 2;
    set(&s, QP_PRESENCE_PENALTY, 60);
    generate_fresh(engine, &s, 6, &r); /* a 400, b 350, then a 340 above b 290, for ever */
    const int32_t presence[] = {a, b, a, a, a, a};
    assert_memory_equal(r.tokens, presence, sizeof presence);
    s = greedy(engine);
    s.logit_bias = biases, s.n_logit_bias = 2;
    set(&s, QP_FREQUENCY_PENALTY, 30);
    generate_fresh(engine, &s, 7, &r); /* a 400 370 | b 350 | a 340 | b 320 | a 310 | b 290 */
    const int32_t frequency[] = {a, a, b, a, b, a, b};
    assert_memory_equal(r.tokens, frequency, sizeof frequency);
    qp_logit_bias of_prompt[] = {{prompt[0], 400}, {b, 380}};
    s = greedy(engine);
    s.logit_bias = of_prompt, s.n_logit_bias = 2;
    set(&s, QP_PRESENCE_PENALTY, 100);
    generate_fresh(engine, &s, 1, &r);
    assert_int_equal(r.tokens[0], prompt[0]);
    /* Repetition: the prompt's tokens too, and a division. */
    s = greedy(engine);
    s.logit_bias = of_prompt, s.n_logit_bias = 2;
    set(&s, QP_REPETITION_PENALTY, 1.5); /* 400 / 1.5 < 380 > 380 / 1.5 = 253 < 267 */
    generate_fresh(engine, &s, 3, &r);
    const int32_t repetition[] = {b, prompt[0], prompt[0]};
    assert_memory_equal(r.tokens, repetition, sizeof repetition);
    /* A negative logit is multiplied. */
    qp_logit_bias all[288];
    for (int32_t i = 0; i < 288; i++)
        all[i] = (qp_logit_bias){i, i == prompt[0] ? -300 : i == b ? -400 : -1000};
    s = greedy(engine);
    s.logit_bias = all, s.n_logit_bias = 288;
    set(&s, QP_REPETITION_PENALTY, 1.5);
    generate_fresh(engine, &s, 1, &r);
    assert_int_equal(r.tokens[0], b); /* -450 is below -400 */
    qp_engine_close(engine);
}

static void biases_force_and_ban(void **state)
{
    (void)state;
    qp_engine *engine = open_text(0);
    record r = {0}, plain = {0};
    qp_sampling s = greedy(engine);
    generate_fresh(engine, &s, 1, &plain);
    qp_logit_bias ban = {plain.tokens[0], -INFINITY};
    s.logit_bias = &ban, s.n_logit_bias = 1;
    generate_fresh(engine, &s, 8, &r);
    for (size_t i = 0; i < r.n_tokens; i++)
        assert_int_not_equal(r.tokens[i], plain.tokens[0]);
    qp_session *session = open_session(engine);
    static const int32_t outside[] = {-1, 288};
    for (int i = 0; i < 2; i++) {
        qp_logit_bias wrong = {outside[i], 1};
        s.logit_bias = &wrong;
        qp_generate_options options = {
            .size = sizeof options, .prompt = prompt, .n_prompt = 3, .sampling = &s};
        assert_int_equal(qp_generate(session, &options, NULL, &error), QP_INVALID);
        assert_non_null(strstr(error.message, "logit bias"));
        assert_non_null(strstr(error.message, "0 to 287"));
    }
    size_t count;
    qp_session_tokens(session, &count);
    assert_int_equal(count, 0); /* nothing was evaluated */
    qp_session_close(session);
    qp_engine_close(engine);
}

/* --- Ends ------------------------------------------------------------------------------------ */

static void stop_texts_cross_tokens(void **state)
{
    (void)state;
    qp_engine *engine = open_text(0);
    static const char *const pieces[] = {"the", " and", "ing", "or", "x", NULL};
    static const struct {
        const char *stops[3];
        const char *text; /* "the anding" + "orx" without a stop */
        qp_finish finish;
        size_t tokens;
    } cases[] = {
        {{"nding"}, "the a", QP_FINISH_STOP_TEXT, 3},
        {{"the"}, "", QP_FINISH_STOP_TEXT, 1},
        {{"t"}, "", QP_FINISH_STOP_TEXT, 1},
        {{"gor", "and"}, "the ", QP_FINISH_STOP_TEXT, 2},
        {{"gorx", "ngo"}, "the andi", QP_FINISH_STOP_TEXT, 4},
        {{"andingo!", "dingorX"}, "the andingorx", QP_FINISH_LENGTH, 5},
        {{"rxy"}, "the andingorx", QP_FINISH_LENGTH, 5}, /* held back to the end */
        {{"orx"}, "the anding", QP_FINISH_STOP_TEXT, 5},
        /* The first to be complete ends the answer. */
        {{"ndin", "the andingo"}, "the a", QP_FINISH_STOP_TEXT, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qp_logit_bias biases[8];
        qp_sampling s = greedy(engine);
        force_texts(engine, &s, biases, pieces);
        s.stops = cases[i].stops;
        while (s.n_stops < 3 && cases[i].stops[s.n_stops])
            s.n_stops++;
        record r = {0};
        qp_generate_result result = generate_fresh(engine, &s, 5, &r);
        if (strcmp(r.text, cases[i].text) != 0 || result.finish != cases[i].finish ||
            result.generated_tokens != cases[i].tokens)
            fail_msg("case %zu: \"%s\", %s, %zu tokens", i, r.text, qp_finish_name(result.finish),
                     result.generated_tokens);
    }
    qp_sampling s = greedy(engine);
    static const char *const empty[] = {"x", ""};
    s.stops = empty, s.n_stops = 2;
    qp_session *session = open_session(engine);
    qp_generate_options options = {
        .size = sizeof options, .prompt = prompt, .n_prompt = 3, .sampling = &s};
    assert_int_equal(qp_generate(session, &options, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "empty"));
    qp_session_close(session);
    qp_engine_close(engine);
}

static void stop_tokens_end_and_are_not_text(void **state)
{
    (void)state;
    qp_engine *engine = open_text(0);
    static const char *const pieces[] = {"the", " and", "<|im_end|>", "or", NULL};
    qp_logit_bias biases[8];
    qp_sampling s = {.size = sizeof s};
    assert_int_equal(qp_sampling_defaults(engine, &s, NULL), QP_OK);
    assert_true(s.n_stop_tokens >= 1);
    assert_int_equal(s.stop_tokens[0], 2); /* <|im_end|>, from the file */
    set(&s, QP_TEMPERATURE, 0);
    force_texts(engine, &s, biases, pieces);
    record r = {0};
    qp_generate_result result = generate_fresh(engine, &s, 10, &r);
    assert_int_equal(result.finish, QP_FINISH_STOP_TOKEN);
    assert_string_equal(qp_finish_name(result.finish), "stop");
    assert_string_equal(r.text, "the and");
    assert_int_equal(result.generated_tokens, 2);
    s.n_stop_tokens = 0; /* then it is a token like others, and silent */
    result = generate_fresh(engine, &s, 4, &r);
    assert_string_equal(r.text, "the andor");
    assert_int_equal(r.n_tokens, 4);
    qp_session *session = open_session(engine);
    r = (record){0};
    qp_generate_options options = {.size = sizeof options,
                                   .prompt = prompt,
                                   .n_prompt = 3,
                                   .sampling = &s,
                                   .max_tokens = 4,
                                   .special = true,
                                   .on_token = on_token,
                                   .context = &r};
    assert_ok(qp_generate(session, &options, NULL, &error));
    assert_string_equal(r.text, "the and<|im_end|>or");
    qp_session_close(session);
    qp_engine_close(engine);
}

/* What was made past the end leaves no trace, neither in the session nor in what comes next. */
static void tokens_past_the_end_are_forgotten(void **state)
{
    (void)state;
    qp_engine *engine = open_text(0);
    static const char *const pieces[] = {"the", " and", "<|im_end|>", "or", NULL};
    static const int64_t intervals[] = {0, 2, 3, 16, QP_MAX_EOS_INTERVAL};
    qp_logit_bias biases[8];
    record want = {0};
    for (size_t i = 0; i < sizeof intervals / sizeof *intervals; i++) {
        qp_sampling s = greedy(engine), plain = greedy(engine);
        s.stop_tokens[0] = 2, s.n_stop_tokens = 1;
        force_texts(engine, &s, biases, pieces);
        eos_interval = intervals[i];
        qp_session *session = open_session(engine);
        record r = {0};
        qp_generate_result result = generate(session, &s, 0, &r);
        size_t count;
        qp_session_tokens(session, &count);
        assert_int_equal(result.finish, QP_FINISH_STOP_TOKEN);
        assert_int_equal(r.n_tokens, 2);
        assert_int_equal(count, 3 + 2);
        generate(session, &plain, 20, &r);
        if (i == 0) want = r;
        assert_memory_equal(r.tokens, want.tokens, 20 * sizeof *r.tokens);
        qp_session_close(session);
    }
    static const int64_t wrong[] = {-1, QP_MAX_EOS_INTERVAL + 1};
    for (int i = 0; i < 2; i++) {
        qp_sampling s = greedy(engine);
        qp_session *session = open_session(engine);
        qp_generate_options options = {.size = sizeof options,
                                       .prompt = prompt,
                                       .n_prompt = 3,
                                       .sampling = &s,
                                       .eos_interval = wrong[i]};
        assert_int_equal(qp_generate(session, &options, NULL, &error), QP_INVALID);
        assert_non_null(strstr(error.message, "0 to 256"));
        qp_session_close(session);
    }
    eos_interval = 0;
    qp_engine_close(engine);
}

static void lengths_and_contexts_end(void **state)
{
    (void)state;
    qp_engine *engine = open_text(10);
    qp_sampling s = greedy(engine);
    record r = {0};
    qp_generate_result result = generate_fresh(engine, &s, 4, &r);
    assert_int_equal(result.finish, QP_FINISH_LENGTH);
    assert_string_equal(qp_finish_name(result.finish), "length");
    assert_int_equal(r.n_tokens, 4);
    assert_int_equal(result.prompt_tokens, 3);
    assert_int_equal(result.prompt_passes, 1);
    assert_int_equal(result.generate_passes, 3);
    for (int64_t max = 0; max < 20;
         max += 8) { /* 3 + 7 tokens fill the context; one more is free */
        qp_session *session = open_session(engine);
        result = generate(session, &s, max, &r);
        assert_int_equal(result.finish, max == 8 ? QP_FINISH_LENGTH : QP_FINISH_CONTEXT);
        assert_int_equal(r.n_tokens, 8);
        size_t count;
        qp_session_tokens(session, &count);
        assert_int_equal(count, 10);
        qp_generate_options options = {
            .size = sizeof options, .prompt = prompt, .n_prompt = 1, .sampling = &s};
        assert_int_equal(qp_generate(session, &options, NULL, &error), QP_INVALID);
        assert_non_null(strstr(error.message, "context is full"));
        options.n_prompt = 0;
        assert_int_equal(qp_generate(session, &options, NULL, &error), QP_INVALID);
        assert_non_null(strstr(error.message, "prompt is empty"));
        options.n_prompt = 1, options.max_tokens = -1;
        assert_int_equal(qp_generate(session, &options, NULL, &error), QP_INVALID);
        assert_non_null(strstr(error.message, "max_tokens must be 0"));
        qp_session_close(session);
    }
    qp_engine_close(engine);
}

static void cancelling_keeps_what_was_said(void **state)
{
    (void)state;
    qp_engine *engine = open_text(0);
    qp_sampling s = greedy(engine);
    record want = {0};
    generate_fresh(engine, &s, 20, &want);
    int cancel = 0;
    record r = {.cancel = &cancel, .cancel_after = 7};
    qp_session *session = open_session(engine);
    qp_generate_result result = generate(session, &s, 20, &r);
    assert_int_equal(result.finish, QP_FINISH_CANCELLED);
    assert_int_equal(result.generated_tokens, 7);
    assert_memory_equal(r.tokens, want.tokens, 7 * sizeof *r.tokens);
    assert_memory_equal(r.text, want.text, r.length);
    size_t count;
    qp_session_tokens(session, &count);
    assert_int_equal(count, 3 + 6);
    /* Cancelled before it began: nothing is done, nothing is wrong. */
    result = generate(session, &s, 20, &r);
    assert_int_equal(result.finish, QP_FINISH_CANCELLED);
    assert_int_equal(result.generated_tokens, 0);
    qp_session_close(session);
    qp_engine_close(engine);
}

static void a_failing_receiver_ends_it(void **state)
{
    (void)state;
    qp_engine *engine = open_text(0);
    qp_sampling s = greedy(engine);
    record r = {.fail_with = QP_IO};
    qp_session *session = open_session(engine);
    qp_generate_options options = {.size = sizeof options,
                                   .prompt = prompt,
                                   .n_prompt = 3,
                                   .sampling = &s,
                                   .on_token = on_token,
                                   .context = &r};
    assert_int_equal(qp_generate(session, &options, NULL, &error), QP_IO);
    qp_session_close(session);
    qp_engine_close(engine);
}

/* --- Text ------------------------------------------------------------------------------------ */

static void characters_come_out_whole(void **state)
{
    (void)state;
    qp_engine *engine = open_text(0);
    /* The knot, F0 9F AA A2, and e acute, C3 A9, from one-byte tokens. */
    static const char *const pieces[] = {"the",  "\xF0", "\x9F", "\xAA",
                                         "\xA2", "\xC3", "\xA9", NULL};
    static const size_t lengths[] = {3, 0, 0, 0, 4, 0, 2};
    qp_logit_bias biases[8];
    qp_sampling s = greedy(engine);
    force_texts(engine, &s, biases, pieces);
    record r = {0};
    generate_fresh(engine, &s, 7, &r);
    assert_string_equal(r.text, "the\xF0\x9F\xAA\xA2\xC3\xA9");
    assert_memory_equal(r.lengths, lengths, sizeof lengths);
    assert_int_equal(r.last_length, 0);
    /* Cut inside a character: at the end the caller gets its bytes unchanged. */
    generate_fresh(engine, &s, 3, &r);
    assert_string_equal(r.text, "the\xF0\x9F");
    assert_int_equal(r.last_length, 2);
    /* A stop text of half characters is found across tokens too. */
    static const char *const stops[] = {"\xAA\xA2\xC3\xA9"};
    s.stops = stops, s.n_stops = 1;
    qp_generate_result result = generate_fresh(engine, &s, 7, &r);
    assert_int_equal(result.finish, QP_FINISH_STOP_TEXT);
    assert_string_equal(r.text, "the\xF0\x9F");
    qp_engine_close(engine);
}

static void models_without_a_vocabulary_give_tokens(void **state)
{
    (void)state;
    qp_engine *engine = open_engine((qp_engine_options){.model = "synthetic:tiny:Q8_0"});
    qp_sampling s = greedy(engine);
    record r = {0};
    generate_fresh(engine, &s, 5, &r);
    assert_int_equal(r.n_tokens, 5);
    assert_int_equal(r.length, 0);
    const qp_vocabulary *none = qp_engine_vocabulary(engine);
    qp_tokens tokens = {0};
    char *text;
    assert_null(none);
    assert_int_equal(qp_tokenize(none, "a", 1, 0, &tokens, &error), QP_INVALID);
    assert_int_equal(qp_detokenize(none, prompt, 3, 0, &text, NULL, &error), QP_INVALID);
    assert_int_equal(qp_render_chat(none, "[]", 2, true, &text, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "no vocabulary"));
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_gives_the_same_text),
        cmocka_unit_test(an_answer_can_be_continued),
        cmocka_unit_test(narrow_filters_are_greedy),
        cmocka_unit_test(penalties_count_what_they_should),
        cmocka_unit_test(biases_force_and_ban),
        cmocka_unit_test(stop_texts_cross_tokens),
        cmocka_unit_test(stop_tokens_end_and_are_not_text),
        cmocka_unit_test(tokens_past_the_end_are_forgotten),
        cmocka_unit_test(lengths_and_contexts_end),
        cmocka_unit_test(cancelling_keeps_what_was_said),
        cmocka_unit_test(a_failing_receiver_ends_it),
        cmocka_unit_test(characters_come_out_whole),
        cmocka_unit_test(models_without_a_vocabulary_give_tokens),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    eos_interval = 5;
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
