/* Sequences side by side on the GPU, with contexts of all lengths from zero: new tokens that are
 * the first of a block of sixteen, of a page or of a sequence, long contexts beside short ones, few
 * and many heads per block, sequences that end while others continue. A sequence's logits have the
 * same bits among 2 to 8 sequences of the megakernel as alone, and on `cuda` among any 2 to 64,
 * also where attention is a kernel of its own, for any page size. They equal those of a CPU up to
 * rounding.
 */
#include "engine_test.h"
#include "gpu_test.h"
#include "kernels_for_tests.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = 64,
    STEPS = 3,
    SHORT = 18,          /* sequences with a prompt of 0, 1, 2 .. tokens */
    LAST = 1536 - STEPS, /* the longest prompt that ends in the batch's kernel */
    LONG = 1600,         /* beside it attention is a kernel of its own: another sequence */
    CONTEXT = LONG + STEPS,
    DECODED = 13,     /* tokens in one call: 1,546 positions at the end */
    DELAYED_RUNS = 5, /* runs by kernels whose warps sleep */
};

static int32_t token_of(int sequence, int position)
{
    return (sequence * 131 + position * 17 + 3) % 500;
}

/* Behind the short ones new tokens go over the end of each sixteen of positions, at the first, the
 * second or the third step. */
static int prompt_of(int sequence)
{
    if (sequence == MOST) return LONG;
    if (sequence == MOST - 1) return LAST;
    return sequence < SHORT ? sequence : 16 * (sequence - SHORT + 2) - 1 - sequence % STEPS;
}

/* Sequences with the same bits are side by side, with pages of all sizes. */
static const struct {
    const char *model, *kv_type;
    int64_t page_size;
} kinds[] = {
    {"synthetic:tiny:BF16", "F16", 16},          {"synthetic:tiny:BF16", "F16", 64},
    {"synthetic:tiny:BF16", "F16", 48},          {"synthetic:tiny:BF16", "BF16", 16},
    {"synthetic:tiny:BF16", "BF16", 128},        {"synthetic:tiny:BF16", "F8", 16},
    {"synthetic:tiny:BF16", "F8", 48},           {"synthetic:smollm2-135m:BF16", "F16", 64},
    {"synthetic:llama-3.2-1b:BF16", "BF16", 16}, {"synthetic:internlm2-1.8b:BF16", "F16", 32},
    {"synthetic:internlm2-1.8b:BF16", "F8", 16},
};

typedef struct sequences {
    char name[96];
    qp_engine *engine;
    size_t vocab_size;
    qp_session *sessions[MOST + 1];
    float *expected; /* [MOST][STEPS][vocab_size] */
} sequences;

static float *logits_of(const sequences *s, float *logits, int sequence, int step)
{
    return logits + ((size_t)sequence * STEPS + (size_t)step) * s->vocab_size;
}

static float *new_logits(const sequences *s)
{
    float *logits = calloc((size_t)(MOST + 1) * STEPS * s->vocab_size, sizeof *logits);
    assert_non_null(logits);
    return logits;
}

/* Opens all sequences, each with its prompt read alone. */
static void open_sequences(sequences *s, size_t kind, const char *exec, bool delayed)
{
    static int32_t tokens[CONTEXT];
    qp_error error;
    s->engine = open_engine((qp_engine_options){.model = kinds[kind].model,
                                                .kv_type = kinds[kind].kv_type,
                                                .page_size = kinds[kind].page_size,
                                                .context = CONTEXT,
                                                .max_sessions = MOST + 1,
                                                .device = "cuda",
                                                .exec = exec});
    snprintf(s->name, sizeof s->name, "%s by %s, cache in %s, pages of %d%s", kinds[kind].model,
             exec, kinds[kind].kv_type, (int)kinds[kind].page_size, delayed ? ", delayed" : "");
    if (delayed) assert_ok(delay_batches(s->engine, &error));
    s->vocab_size = (size_t)qp_engine_get_info(s->engine)->vocab_size;
    for (int i = 0; i <= MOST; i++) {
        for (int t = 0; t < prompt_of(i); t++)
            tokens[t] = token_of(i, t);
        s->sessions[i] = open_session(s->engine);
        qp_input input = {
            .session = s->sessions[i], .tokens = tokens, .count = (size_t)prompt_of(i)};
        if (input.count) assert_ok(qp_eval(s->engine, &input, 1, NULL, NULL, NULL, &error));
    }
}

static void close_sequences(sequences *s)
{
    for (int i = 0; i <= MOST; i++)
        qp_session_close(s->sessions[i]);
    qp_engine_close(s->engine);
}

/* Who stands side by side: every `apart`th sequence from the first on, around MOST of them, as
 * rows; behind each step every `end`th of those that are left ends, where `end` is not 0. */
typedef struct company {
    int first, n;
    int apart; /* odd; 0: 1 */
    int end;
    bool one_long; /* the last row is the LONG one's */
} company;

static int sequence_of(const company *c, int row)
{
    return c->one_long && row == c->n - 1 ? MOST
                                          : (c->first + row * (c->apart ? c->apart : 1)) % MOST;
}

static bool is_left(const company *c, int row, int step)
{
    return !c->end || row % c->end >= step;
}

/* Reads a token of each sequence after the prompts, STEPS times, into logits. */
static void run_steps(const sequences *s, const company *c, float *logits)
{
    qp_error error;
    for (int row = 0; row < c->n; row++) {
        int i = sequence_of(c, row);
        qp_session_truncate(s->sessions[i], (size_t)prompt_of(i), NULL);
    }
    for (int step = 0; step < STEPS; step++) {
        int32_t tokens[MOST];
        qp_input inputs[MOST];
        float *rows[MOST];
        logit_sink sink = {rows, s->vocab_size};
        size_t n = 0;
        for (int row = 0; row < c->n; row++) {
            int i = sequence_of(c, row);
            if (!is_left(c, row, step)) continue;
            tokens[n] = token_of(i, prompt_of(i) + step);
            rows[n] = logits_of(s, logits, i, step);
            inputs[n] = (qp_input){.session = s->sessions[i], .tokens = &tokens[n], .count = 1};
            n++;
        }
        if (qp_eval(s->engine, inputs, n, take_logits, &sink, NULL, &error) != QP_OK)
            fail_msg("%s: %d rows from sequence %d on%s, step %d: %s", s->name, (int)n, c->first,
                     c->one_long ? ", one of them long" : "", step, error.message);
    }
}

/* They are what is expected of each. */
static void check_company(const sequences *s, company c)
{
    float *logits = new_logits(s);
    run_steps(s, &c, logits);
    for (int row = 0; row < c.n; row++)
        for (int step = 0; step < STEPS; step++) {
            int i = sequence_of(&c, row);
            if (i == MOST || !is_left(&c, row, step)) continue;
            if (memcmp(logits_of(s, s->expected, i, step), logits_of(s, logits, i, step),
                       s->vocab_size * sizeof(float)) != 0)
                fail_msg("%s: other logits behind %d tokens in row %d of %d%s%s, step %d", s->name,
                         prompt_of(i), row, c.n, c.one_long ? ", one of them long" : "",
                         c.end ? ", some of which end" : "", step);
        }
    free(logits);
}

static void check_all_company(const sequences *s)
{
    static const int sizes[] = {2, 5, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, MOST};
    const int count = (int)(sizeof sizes / sizeof *sizes);
    for (int i = 0; i < count; i++)
        check_company(s, (company){.first = 11 * i, .n = sizes[i], .apart = 1 + i % 3 * 18});
    for (int end = 3; end < 6; end++)
        check_company(s, (company){.first = 5 * end, .n = MOST, .end = end});
    for (int i = 0; i < count; i += 3)
        check_company(s, (company){.first = 23 * i, .n = sizes[i], .one_long = true});
    check_company(s, (company){.n = MOST, .one_long = true});
}

/* Expects what all of them have together. */
static void expect_together(sequences *s)
{
    s->expected = new_logits(s);
    run_steps(s, &(company){.n = MOST}, s->expected);
}

/* Whether the kind before has the same bits. */
static bool is_as_before(size_t kind)
{
    return kind > 0 && strcmp(kinds[kind].model, kinds[kind - 1].model) == 0 &&
           strcmp(kinds[kind].kv_type, kinds[kind - 1].kv_type) == 0;
}

static void test_contexts(void **state)
{
    (void)state;
    static sequences s;
    require_gpu();
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        open_sequences(&s, kind, "cuda", false);
        if (!is_as_before(kind)) {
            free(s.expected);
            expect_together(&s);
        }
        check_all_company(&s);
        close_sequences(&s);
    }
    free(s.expected);
}

/* Two to eight sequences of the megakernel beside each of them alone: all have one order of sums.
 */
static void check_few(sequences *s)
{
    s->expected = new_logits(s);
    for (int i = 0; i < MOST; i++)
        run_steps(s, &(company){.first = i, .n = 1}, s->expected);
    for (int i = 0; i < MOST; i += 3) {
        check_company(s, (company){.first = i, .n = 2 + i % 7, .apart = 1 + i % 4 * 12});
        if (i % 6 == 0)
            check_company(s, (company){.first = i, .n = 2 + i % 7, .one_long = true, .apart = 7});
    }
    free(s->expected);
}

static void test_few(void **state)
{
    (void)state;
    static sequences s;
    require_gpu();
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        /* The megakernel has no such pages, and no cache in F8. */
        if (64 % kinds[kind].page_size != 0 || strcmp(kinds[kind].kv_type, "F8") == 0) continue;
        open_sequences(&s, kind, "megakernel", false);
        check_few(&s);
        close_sequences(&s);
    }
}

/* Kernels whose warps sleep at random have the usual ones' bits. */
static void test_delays(void **state)
{
    (void)state;
    static sequences s;
    require_gpu();
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        if (is_as_before(kind)) continue;
        open_sequences(&s, kind, "cuda", false);
        expect_together(&s);
        close_sequences(&s);
        open_sequences(&s, kind, "cuda", true);
        for (int run = 0; run < DELAYED_RUNS; run++)
            check_company(&s, (company){.first = 13 * run, .n = MOST - 5 * run});
        close_sequences(&s);
        free(s.expected);
    }
}

/* ---- tokens that are fed back -------------------------------------------------------------- */

static int32_t likeliest(const float *row, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return (int32_t)best;
}

/* What all decode in one call, over the end of what the batch's kernel takes, is what each pass's
 * logits say. */
static void check_decoding(sequences *s)
{
    static int32_t tokens[(DECODED + 1) * MOST];
    qp_error error;
    qp_input inputs[MOST];
    float *rows[MOST], *logits = new_logits(s);
    logit_sink sink = {rows, s->vocab_size};
    for (int i = 0; i < MOST; i++) {
        tokens[i] = token_of(i, prompt_of(i));
        qp_session_truncate(s->sessions[i], (size_t)prompt_of(i), NULL);
    }
    assert_ok(qp_decode(s->engine, s->sessions, MOST, DECODED, tokens, NULL, &error));
    for (int i = 0; i < MOST; i++)
        qp_session_truncate(s->sessions[i], (size_t)prompt_of(i), NULL);
    for (int pass = 0; pass < DECODED; pass++) {
        const int32_t *read = tokens + pass * MOST, *made = read + MOST;
        for (int i = 0; i < MOST; i++) {
            rows[i] = logits_of(s, logits, i, 0);
            inputs[i] = (qp_input){.session = s->sessions[i], .tokens = &read[i], .count = 1};
        }
        assert_ok(qp_eval(s->engine, inputs, MOST, take_logits, &sink, NULL, &error));
        for (int i = 0; i < MOST; i++)
            if (made[i] != likeliest(rows[i], s->vocab_size))
                fail_msg("%s: token %d behind %d others is %d, not %d", s->name, pass, prompt_of(i),
                         made[i], likeliest(rows[i], s->vocab_size));
    }
    free(logits);
}

static void test_decoding(void **state)
{
    (void)state;
    static sequences s;
    require_gpu();
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        if (is_as_before(kind)) continue;
        open_sequences(&s, kind, "cuda", false);
        check_decoding(&s);
        close_sequences(&s);
    }
}

/* ---- as a CPU has them --------------------------------------------------------------------- */

/* Of the logits of STEPS rows the largest difference, and that in the mean. */
typedef struct difference {
    double most, mean;
} difference;

static difference difference_of(const float *a, const float *b, size_t n)
{
    difference found = {0, 0};
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= found.most)) found.most = d;
        found.mean += d * d / (double)n;
    }
    found.mean = sqrt(found.mean);
    return found;
}

/* A GPU's products of batches take x in BF16, its attention of prompts queries in 16 bits; the root
 * mean square of the logits is 1. Keys and values that differ a little may round to neighbours in
 * the cache, which in F8 are 16 times as far apart as in BF16. */
static void check_cpu(const sequences *s, const char *kv_type)
{
    static int32_t tokens[CONTEXT];
    qp_error error;
    qp_engine *cpu = open_engine((qp_engine_options){.model = "synthetic:tiny:BF16",
                                                     .kv_type = kv_type,
                                                     .context = CONTEXT,
                                                     .max_sessions = 1,
                                                     .threads = 4,
                                                     .device = "cpu",
                                                     .exec = "operators"});
    for (int i = 0; i < MOST; i++) {
        int prompt = prompt_of(i);
        if (prompt > SHORT * 12 && prompt != LAST) continue;
        for (int t = 0; t < prompt + STEPS; t++)
            tokens[t] = token_of(i, t);
        qp_session *session = open_session(cpu);
        qp_input input = {.session = session, .tokens = tokens, .count = (size_t)prompt};
        if (prompt) assert_ok(qp_eval(cpu, &input, 1, NULL, NULL, NULL, &error));
        float *rows = eval_rows(cpu, session, tokens + prompt, STEPS);
        difference found =
            difference_of(rows, logits_of(s, s->expected, i, 0), STEPS * s->vocab_size);
        const double times = strcmp(kv_type, "F8") == 0 ? 8 : 1;
        if (found.most > 0.03 * times || found.mean > 0.008 * times)
            fail_msg("cache in %s: logits behind %d tokens differ from a CPU's by %g, %g in the "
                     "mean",
                     kv_type, prompt, found.most, found.mean);
        free(rows);
        qp_session_close(session);
    }
    qp_engine_close(cpu);
}

static void test_cpu(void **state)
{
    (void)state;
    static sequences s;
    require_gpu();
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        if (is_as_before(kind) || strcmp(kinds[kind].model, "synthetic:tiny:BF16") != 0) continue;
        open_sequences(&s, kind, "cuda", false);
        expect_together(&s);
        check_cpu(&s, kinds[kind].kv_type);
        close_sequences(&s);
        free(s.expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contexts), cmocka_unit_test(test_few), cmocka_unit_test(test_delays),
        cmocka_unit_test(test_decoding), cmocka_unit_test(test_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
