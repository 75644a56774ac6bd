/* The megakernels of two ranks: beside each other on one GPU, and on two GPUs, compared with one
 * rank's; a rank whose words never come.
 */
#include "engine_test.h"
#include "gpu_test.h"
#include "likeliest.h"
#include "machines_test.h"
#include "ranks_test.h"

#include "base/clock.h"
#include "cuda/ranks.h"
#include "op/exchange_cuda.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST = 5, MEGA_DECODED = 600 /* beyond what a block attends to by itself */, DRAWN = 150 };

typedef struct mega_answer {
    float *logits; /* [FIRST + 1][vocab_size]: of the first tokens, then after the tokens */
    int32_t tokens[MEGA_DECODED + 1];
    token_list drawn;
    size_t floats;
} mega_answer;

/* Tokens that are sampled with penalties, after one token. */
static void draw(qp_engine *e, token_list *out)
{
    static const struct {
        qp_setting setting;
        double value;
    } settings[] = {{QP_TEMPERATURE, 1.5},
                    {QP_TOP_K, 40},
                    {QP_SEED, 7},
                    {QP_REPETITION_PENALTY, 1.1},
                    {QP_FREQUENCY_PENALTY, 0.25}};
    const int32_t prompt = 3;
    qp_sampling sampling = {.size = sizeof sampling};
    assert_ok(qp_sampling_defaults(e, &sampling, &error));
    sampling.n_stop_tokens = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        assert_ok(qp_sampling_set(&sampling, settings[i].setting, settings[i].value,
                                  QP_FROM_COMMAND_LINE, &error));
    assert_ok(generate_by(e, &sampling, &prompt, 1, DRAWN, 16, out, &error));
    assert_int_equal(out->count, DRAWN);
}

/* Ranks that share a GPU load no code while a kernel of another one waits for them. */
static void load_exchanges(qp_engine *e, int ranks)
{
    static const char *const kernels[] = {"run_all_gather_words", "run_all_gather_chunks"};
    for (int rank = 0; rank < ranks; rank++) {
        cuda_device *d = mega_of_rank(e, rank)->executor->device;
        cuda_function function;
        assert_ok(cuda_device_enter(d, &error));
        for (int i = 0; i < 2; i++)
            assert_ok(cuda_device_function(d, "exchange", kernels[i], 0, &function, &error));
    }
}

/* All tokens are read by the megakernel, the first ones one at a time. `gpus`: "0,0" for ranks that
 * share a GPU, where their blocks fit beside each other; or NULL. */
static mega_answer mega_answer_of(const char *model, int ranks, const char *gpus, int workers)
{
    mega_answer a = {0};
    qp_engine *e = open_engine((qp_engine_options){.model = model,
                                                   .exec = "megakernel",
                                                   .context = 1024,
                                                   .ranks = ranks,
                                                   .gpus = gpus,
                                                   .exchange = gpus ? "beside" : "auto",
                                                   .workers = workers});
    if (gpus) load_exchanges(e, ranks);
    qp_session *session = open_session(e);
    const size_t v = (size_t)qp_engine_get_info(e)->vocab_size;
    a.floats = (FIRST + 1) * v;
    a.logits = malloc(a.floats * sizeof *a.logits);
    for (int i = 0; i <= FIRST; i++) {
        const int32_t id = i < FIRST ? (i * 7 + 3) % 64 : a.tokens[MEGA_DECODED];
        float *row = eval_rows(e, session, &id, 1);
        memcpy(a.logits + (size_t)i * v, row, v * sizeof *row);
        free(row);
        a.tokens[0] = 11;
        if (i == FIRST - 1)
            assert_ok(qp_decode(e, &session, 1, MEGA_DECODED, a.tokens, NULL, &error));
    }
    qp_session_close(session);
    draw(e, &a.drawn);
    qp_engine_close(e);
    return a;
}

static const char *const mega_models[] = {"synthetic:tiny:BF16", "synthetic:tiny:F16",
                                          "synthetic:llama-3.2-1b:BF16",
                                          "synthetic:llama-3.2-1b:F16"};

/* The same ranks on one GPU, as many blocks as it has room for. */
static void test_megakernel_beside(void **state)
{
    (void)state;
    require_gpu();
    for (size_t i = 0; i < sizeof mega_models / sizeof *mega_models; i++) {
        print_message("%s\n", mega_models[i]);
        mega_answer one = mega_answer_of(mega_models[i], 1, NULL, 128),
                    two = mega_answer_of(mega_models[i], 2, "0,0", 64);
        assert_memory_equal(one.logits, two.logits, one.floats * sizeof *one.logits);
        assert_memory_equal(one.tokens, two.tokens, sizeof one.tokens);
        assert_memory_equal(one.drawn.of, two.drawn.of, DRAWN * sizeof *one.drawn.of);
        free(one.logits);
        free(two.logits);
    }
}

/* Two ranks with half as many blocks each have the bits of one: the same blocks compute the same
 * parts of the residual, and sums of integers have no order. Ranks with other numbers of blocks
 * round parts elsewhere. */
static void test_megakernel(void **state)
{
    (void)state;
    require_gpus();
    for (size_t i = 0; i < sizeof mega_models / sizeof *mega_models; i++) {
        mega_answer one = mega_answer_of(mega_models[i], 1, NULL, 128),
                    two = mega_answer_of(mega_models[i], 2, NULL, 64),
                    whole = mega_answer_of(mega_models[i], 2, NULL, 0);
        assert_memory_equal(one.logits, two.logits, one.floats * sizeof *one.logits);
        assert_memory_equal(one.tokens, two.tokens, sizeof one.tokens);
        assert_memory_equal(one.drawn.of, two.drawn.of, DRAWN * sizeof *one.drawn.of);
        assert_near(one.logits, whole.logits, one.floats / (FIRST + 1) * FIRST);
        free(one.logits);
        free(two.logits);
        free(whole.logits);
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

int main(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* of ranks that share a GPU */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_megakernel_beside), cmocka_unit_test(test_megakernel),
        cmocka_unit_test(test_megakernel_waits_in_vain), /* last */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
