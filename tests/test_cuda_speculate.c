/* Speculation on a GPU: with proposals of any kind, texts and logits are the same, to the bit, as
 * without. The megakernel reads a sequence's last token and its proposals in one pass.
 */
#include "speculate_test.h"

#include "gpu_test.h"
#include "kernels_for_tests.h"

/* The megakernel chooses by the context to read one sequence alone. */
enum { CONTEXT = 4096, DELAY_NS = 20000 };

static qp_error error;

/* workers: 0: one for each multiprocessor. */
static qp_engine *open_with_workers(const char *model, const char *exec, int workers, int sessions,
                                    const char *speculate)
{
    return open_engine((qp_engine_options){.model = model,
                                           .device = "cuda",
                                           .exec = exec,
                                           .workers = workers,
                                           .context = CONTEXT,
                                           .max_sessions = sessions,
                                           .speculate = speculate});
}

static qp_engine *open_gpu(const char *model, const char *exec, int sessions, const char *speculate)
{
    return open_with_workers(model, exec, 0, sessions, speculate);
}

/* Makes one text; with an engine that speculates by that proposer. */
static void make_one(qp_engine *engine, proposer *by, int i, size_t prompt, bool logits, made *m)
{
    if (by) engine->speculation.proposer = by;
    open_text_of(engine, i, prompt, logits, m);
    make_texts(engine, m, 1);
}

/* ---- positions ----------------------------------------------------------------------------- */

/* Where new positions begin or end chunks of the cache, or contexts are divided into parts. */
static const size_t prompts[] = {1, 9, 58, 63, 64, 125, 130, 250, 322, 379, 384, 505, 790};

static void check_positions(const char *model, int workers, size_t rows, bool joins, bool delays)
{
    const size_t n = sizeof prompts / sizeof *prompts;
    qp_engine *plain = open_with_workers(model, "megakernel", workers, 1, NULL);
    qp_engine *engine = open_with_workers(model, "megakernel", workers, 1, "lookup");
    known oracle = {.proposer = {.propose = propose_known}, .varies = true};
    assert_int_equal(cuda_mega_verify_rows(mega_of(engine)), rows);
    assert_true(mega_of(engine)->batch.joins || !joins);
    mega_of(engine)->batch.joins = joins;
    if (delays) {
        mega_of(engine)->batch.delay = DELAY_NS;
        assert_ok(find_delayed_batch(engine, &mega_of(engine)->batch_kernel, &error));
    }
    for (size_t k = 0; k < n; k++) {
        made expected, m;
        make_one(plain, NULL, 0, prompts[k], true, &expected);
        oracle.texts = &expected;
        make_one(engine, &oracle.proposer, 0, prompts[k], true, &m);
        if (memcmp(m.tokens, expected.tokens, m.count * sizeof *m.tokens) != 0 ||
            memcmp(m.logits, expected.logits, MOST * m.vocab_size * sizeof *m.logits) != 0)
            fail_msg("%s: another text or other logits after %zu tokens", model, prompts[k]);
        assert_true(was_right(&m) && m.accepted > MOST / 2 && m.passes <= 2 * MOST / rows + 4);
        close_text(&m);
        close_text(&expected);
    }
    qp_engine_close(engine);
    qp_engine_close(plain);
}

static void rows_have_the_bits_of_passes_of_one(void **state)
{
    (void)state;
    require_gpu();
    check_positions("synthetic:tiny:BF16", 0, 8, true, false);
    check_positions("synthetic:smollm2-135m:BF16", 0, 8, true, false);
    check_positions("synthetic:smollm2-135m:BF16", 0, 8, false, false);
    check_positions("synthetic:smollm2-135m:F16", 0, 8, true, false);
    check_positions("synthetic:internlm2-1.8b:BF16", 0, 8, true, false); /* heads of 128 */
    check_positions("synthetic:tiny-qwen2:BF16", 0, 8, false, false);
    check_positions("synthetic:tiny-qwen3:BF16", 0, 8, false, false); /* norms of q and k */
    check_positions("synthetic:tiny-qwen3:BF16", 16, 8, false, true);
    check_positions("synthetic:tiny-smollm3:BF16", 0, 8, false, false);
    check_positions("synthetic:tiny-mistral:BF16", 0, 8, false, false); /* a window */
    check_positions("synthetic:tiny:BF16", 0, 8, true, true);
    check_positions("synthetic:tiny:BF16", 16, 8, true, true); /* several parts a block */
    check_positions("synthetic:tiny:BF16", 16, 8, false, false);
    check_positions("synthetic:smollm2-135m:BF16", 0, 8, true, true);
}

/* Rows of weights of more than 2,048 columns. */
static void rows_of_two_blocks_too(void **state)
{
    (void)state;
    require_gpu();
    check_positions("synthetic:llama-3.2-3b:BF16", 0, 4, false, false);
    check_positions("synthetic:llama-3.2-3b:F16", 0, 4, false, false);
}

/* ---- texts --------------------------------------------------------------------------------- */

/* Side by side and one after the other, with penalties, biases, drawn tokens. */
static void check_texts(const char *model)
{
    made expected[TEXTS];
    qp_engine *plain = open_gpu(model, "megakernel", TEXTS, NULL);
    qp_engine *engine = open_gpu(model, "megakernel", TEXTS, "lookup");
    for (int i = 0; i < TEXTS; i++)
        make_one(plain, NULL, i, (size_t)(PROMPT - i), true, &expected[i]);
    compare_proposers(engine, expected, TEXTS * MOST / 2, MOST / 8 + 2); /* eight rows a pass */
    qp_engine_close(engine);
    qp_engine_close(plain);
}

static void texts_are_the_same(void **state)
{
    (void)state;
    require_gpu();
    check_texts("synthetic:tiny:BF16");
    check_texts("synthetic:smollm2-135m:BF16");
}

/* Where the megakernel reads one sequence alone, `cuda` verifies what several propose. */
static void the_megakernel_shares_with_cuda(void **state)
{
    (void)state;
    require_gpu();
    made expected[TEXTS], all[TEXTS];
    size_t accepted = 0;
    qp_engine *plain = open_gpu("synthetic:tiny:BF16", NULL, TEXTS, NULL);
    qp_engine *engine = open_gpu("synthetic:tiny:BF16", NULL, TEXTS, "lookup");
    known oracle = {.proposer = {.propose = propose_known}, .texts = expected};
    assert_true(mega_of(engine)->alone && mega_of(engine)->batch_kernel);
    for (int i = 0; i < TEXTS; i++)
        make_one(plain, NULL, i, (size_t)(PROMPT - i), true, &expected[i]);
    for (int i = 0; i < TEXTS; i++) {
        make_one(engine, &oracle.proposer, i, (size_t)(PROMPT - i), true, &all[i]);
        check_same(&all[i], &expected[i]);
        assert_true(was_right(&all[i]) && all[i].passes <= MOST / 8 + 2);
    }
    for (int i = 0; i < TEXTS; i++) {
        close_text(&all[i]);
        open_text(engine, i, true, &all[i]);
    }
    make_texts(engine, all, TEXTS);
    for (int i = 0; i < TEXTS; i++) {
        accepted += all[i].accepted;
        close_text(&all[i]);
        close_text(&expected[i]);
    }
    assert_true(accepted > TEXTS * MOST / 8);
    qp_engine_close(engine);
    qp_engine_close(plain);
}

/* What the megakernel does not verify. */
static void other_models_run_on_cuda(void **state)
{
    (void)state;
    require_gpu();
    static const char model[] = "synthetic:tiny:Q8_0";
    qp_engine *engine = NULL;
    const qp_engine_options options = {.size = sizeof options,
                                       .model = model,
                                       .device = "cuda",
                                       .exec = "megakernel",
                                       .speculate = "lookup"};
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "--exec cuda"));
    engine = open_gpu(model, NULL, 1, "lookup");
    assert_null(mega_of(engine));
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_bits_of_passes_of_one),
        cmocka_unit_test(rows_of_two_blocks_too),
        cmocka_unit_test(texts_are_the_same),
        cmocka_unit_test(the_megakernel_shares_with_cuda),
        cmocka_unit_test(other_models_run_on_cuda),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
