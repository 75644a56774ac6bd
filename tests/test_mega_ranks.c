/* The megakernels of several ranks on several GPUs, compared with one rank's; a rank whose words
 * never come. On one GPU: test_mega_ranks_one_gpu.c.
 */
#include "gpu_test.h"
#include "mega_answer.h"

#include "base/clock.h"

static mega_answer mega_answer_of(const char *model, int ranks, int workers)
{
    return mega_answer_by((qp_engine_options){
        .model = model, .exec = "megakernel", .ranks = ranks, .workers = workers});
}

/* With a part each of one rank's blocks ranks have its bits (test_mega_ranks_one_gpu.c); with all
 * blocks of their GPUs they are near. */
static void test_megakernel(void **state)
{
    (void)state;
    require_gpus();
    static const struct {
        const char *name;
        int ranks; /* at most: a rank has one KV head or more */
    } models[] = {{"synthetic:tiny:BF16", 2},         {"synthetic:llama-3.2-1b:BF16", 8},
                  {"synthetic:llama-3.2-1b:F16", 2},  {"synthetic:llama-3.2-1b:Q8_0", 2},
                  {"synthetic:llama-3.2-1b:Q4_0", 2}, {"synthetic:llama-3.2-1b:Q4_K", 8}};
    const int gpus = count_gpus();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const char *model = models[i].name;
        mega_answer one = mega_answer_of(model, 1, ONE_GPU_BLOCKS);
        for (int ranks = 2; ranks <= models[i].ranks && ranks <= gpus; ranks *= 2) {
            print_message("%s, %d ranks\n", model, ranks);
            mega_answer several = mega_answer_of(model, ranks, ONE_GPU_BLOCKS / ranks),
                        whole = mega_answer_of(model, ranks, 0);
            assert_same_answers(&one, &several);
            assert_near(one.logits, whole.logits, one.floats / (FIRST + 1) * FIRST);
            free(several.logits);
            free(whole.logits);
        }
        free(one.logits);
    }
}

/* What rank 1 pushes does not come to rank 0. Afterwards this process cannot use the GPUs. */
static void test_megakernel_waits_in_vain(void **state)
{
    (void)state;
    require_gpus();
    qp_engine *e = open_engine((qp_engine_options){
        .model = "synthetic:tiny:BF16", .exec = "megakernel", .context = 256, .ranks = RANKS});
    mega_ranks *sender = &mega_of_rank(e, 1)->arguments.ranks;
    token_list list;
    const uint64_t start = clock_ns();
    sender->receive[0] = sender->receive[1];
    assert_int_not_equal(generate(e, 20, 16, &list, &error), QP_OK);
    assert_true(clock_ns() - start < UINT64_C(6000000000));
    assert_non_null(strstr(error.message, "waited for rank 1"));
    qp_engine_close(e);
}

/* An argument chooses tests. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_megakernel),
        cmocka_unit_test(test_megakernel_waits_in_vain), /* last */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
