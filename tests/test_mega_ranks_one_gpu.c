/* The megakernels of several ranks beside each other on one GPU, compared with one rank's. In a
 * program of its own, because loading all code before the first launch takes seconds for each
 * engine (ranks_one_gpu.h).
 */
#include "gpu_test.h"
#include "mega_answer.h"

/* Ranks with a part each of one rank's blocks have its bits: the same blocks compute the same parts
 * of the residual, and sums of integers have no order. Other numbers of blocks round parts
 * elsewhere. */
static void compare_ranks(const char *model, int first, int last)
{
    mega_answer one = mega_answer_by(one_gpu_options(model, 1));
    for (int ranks = first; ranks <= last; ranks *= 2) {
        print_message("%s, %d ranks\n", model, ranks);
        mega_answer several = mega_answer_by(one_gpu_options(model, ranks));
        assert_same_answers(&one, &several);
        free(several.logits);
    }
    free(one.logits);
}

/* Blocks of 256 weights are not cut, so in Q4_K tiny's heads have no two ranks. */
static void test_two_ranks(void **state)
{
    (void)state;
    require_gpu();
    static const char *const models[] = {
        "synthetic:tiny:BF16",         "synthetic:tiny:Q8_0",
        "synthetic:tiny:Q4_1",         "synthetic:llama-3.2-1b:BF16",
        "synthetic:llama-3.2-1b:F16",  "synthetic:llama-3.2-1b:Q8_0",
        "synthetic:llama-3.2-1b:Q4_0", "synthetic:llama-3.2-1b:Q4_K",
        "synthetic:llama-3.2-1b:Q6_K"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        compare_ranks(models[i], 2, 2);
}

static void test_many_ranks(void **state)
{
    (void)state;
    require_gpu();
    compare_ranks("synthetic:llama-3.2-1b:BF16", 4, 8);
    compare_ranks("synthetic:llama-3.2-1b:Q4_K", 4, 8);
}

/* A hidden size of 8192, which one rank's megakernel does not run: near the machine cuda. */
static void test_wide(void **state)
{
    (void)state;
    require_gpu();
    static const char *const models[] = {"synthetic:wide:BF16", "synthetic:wide:Q4_K"};
    int32_t ids[FIRST];
    for (int i = 0; i < FIRST; i++)
        ids[i] = (i * 7 + 3) % 64;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        qp_engine *e =
            open_engine((qp_engine_options){.model = models[i], .exec = "cuda", .context = 1024});
        const size_t v = (size_t)qp_engine_get_info(e)->vocab_size;
        float *one = eval_fresh(e, ids, FIRST);
        qp_engine_close(e);
        mega_answer two = mega_answer_by(one_gpu_options(models[i], 2));
        assert_near(one, two.logits, FIRST * v);
        free(one);
        free(two.logits);
    }
}

/* An argument chooses tests. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_wide),
    };
    one_gpu_prepare();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
