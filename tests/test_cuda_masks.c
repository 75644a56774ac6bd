/* Masks of allowed tokens on their way to a GPU, over the fake driver (fake_cuda/README.md): after
 * a run every slot there has the mask that its sampler was given last, also if only some changed.
 */
#include "engine_test.h"
#include "fake_gpu.h"

#include "engine/engine.h"
#include "op/adjust_logits/adjust_logits.h"

enum { SESSIONS = 6, WORDS = ADJUST_MASK_WORDS(512) }; /* the vocabulary of synthetic:tiny */

static qp_engine *engine;
static qp_session *sessions[SESSIONS];
static qp_sampler *samplers[SESSIONS];
static int32_t last[SESSIONS];
static uint32_t masks[SESSIONS][WORDS];

static qp_status on_token(void *context, int32_t token)
{
    *(int32_t *)context = token;
    return QP_OK;
}

static void open_all(void)
{
    qp_error error;
    qp_sampling sampling = {.size = sizeof sampling};
    engine = open_engine((qp_engine_options){.size = sizeof(qp_engine_options),
                                             .model = "synthetic:tiny:BF16",
                                             .threads = 1,
                                             .exec = "cuda",
                                             .context = 64,
                                             .max_sessions = SESSIONS,
                                             .max_outputs = SESSIONS});
    assert_int_equal(qp_engine_get_info(engine)->vocab_size, 512);
    assert_ok(qp_sampling_defaults(engine, &sampling, &error));
    sampling.n_stop_tokens = 0;
    for (int i = 0; i < SESSIONS; i++) {
        sessions[i] = open_session(engine);
        assert_ok(qp_sampler_open(engine, &sampling, &samplers[i], &error));
    }
}

static void close_all(void)
{
    for (int i = 0; i < SESSIONS; i++) {
        qp_sampler_close(samplers[i]);
        qp_session_close(sessions[i]);
    }
    qp_engine_close(engine);
}

static void set_mask(int i, uint32_t bits)
{
    qp_error error;
    for (int w = 0; w < WORDS; w++)
        masks[i][w] = bits ^ (uint32_t)(w + 1);
    assert_ok(qp_sampler_allow(samplers[i], masks[i], &error));
}

/* A token of each sequence; the first ones follow a prompt. */
static void step(bool first)
{
    static const int32_t prompt[] = {1, 2, 3};
    qp_sequence all[SESSIONS];
    qp_error error;
    for (int i = 0; i < SESSIONS; i++)
        all[i] = (qp_sequence){.size = sizeof all[i],
                               .session = sessions[i],
                               .tokens = first ? prompt : &last[i],
                               .count = first ? 3 : 1,
                               .sampler = samplers[i],
                               .max_tokens = 1,
                               .on_token = on_token,
                               .context = &last[i]};
    assert_ok(qp_step(engine, all, SESSIONS, &error));
    for (int i = 0; i < SESSIONS; i++)
        assert_int_equal(all[i].chosen, 1);
}

static void check_slots(void)
{
    qp_error error;
    uint32_t found[WORDS];
    for (int i = 0; i < SESSIONS; i++) {
        assert_ok(machine_read(engine_memory(engine), PLAN_ALLOWED, sessions[i]->slot, found,
                               sizeof found, &error));
        assert_memory_equal(found, masks[i], sizeof found);
    }
}

static void slots_have_the_masks(void **state)
{
    (void)state;
    require_fake_gpu();
    open_all();
    for (int i = 0; i < SESSIONS; i++)
        set_mask(i, 0x1000u * (uint32_t)(i + 1));
    step(true);
    check_slots();
    set_mask(1, 0xa5a5u); /* between slots that keep theirs */
    set_mask(4, 0x5a5au);
    step(false);
    check_slots();
    step(false); /* none changes */
    check_slots();
    set_mask(SESSIONS - 1, 7);
    set_mask(0, 9);
    step(false);
    check_slots();
    close_all();
}

/* What is written is read again, before any run. */
static void a_mask_is_read_before_a_run(void **state)
{
    (void)state;
    require_fake_gpu();
    qp_error error;
    uint32_t found[WORDS];
    open_all();
    for (int w = 0; w < WORDS; w++)
        masks[0][w] = (uint32_t)w * 3;
    const machine *m = engine_memory(engine);
    assert_ok(machine_write(m, PLAN_ALLOWED, 2, masks[0], sizeof masks[0], &error));
    assert_ok(machine_read(m, PLAN_ALLOWED, 2, found, sizeof found, &error));
    assert_memory_equal(found, masks[0], sizeof found);
    for (int i = 0; i < SESSIONS; i++)
        memset(masks[i], 17 * (i + 1), sizeof masks[i]);
    assert_ok(machine_write(m, PLAN_ALLOWED, -1, masks, sizeof masks, &error)); /* of all slots */
    assert_ok(machine_read(m, PLAN_ALLOWED, SESSIONS - 1, found, sizeof found, &error));
    assert_memory_equal(found, masks[SESSIONS - 1], sizeof found);
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_have_the_masks),
        cmocka_unit_test(a_mask_is_read_before_a_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
