/* The megakernel makes the same tokens as the machine `cuda`. Without a GPU: its schedules are
 * verified, damaged ones are refused, and messages say what is missing. */
#include "engine_test.h"
#include "base/clock.h"
#include "vm/mega/parts.h"
#include "gpu_test.h"
#include "kernels_for_tests.h"
#include "likeliest.h"
#include "lower/lower.h"
#include "schedule/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MADE = 120, WIDE_MADE = 30, RUNS = 100, DELAY_NS = 20000, LONG_PROMPT = 500 };

static void make_tokens(const qp_engine_options *options, int64_t count, int64_t interval,
                        token_list *out)
{
    qp_error error;
    qp_engine *engine = open_engine(*options);
    assert_ok(generate(engine, count, interval, out, &error));
    assert_int_equal(out->count, count);
    qp_engine_close(engine);
}

static const char *const models[] = {"synthetic:tiny:BF16", "synthetic:smollm2-135m:BF16"};

static void it_makes_the_same_tokens(void **state)
{
    (void)state;
    require_gpu();
    static const char *const kv_types[] = {"F16", "BF16"};
    static const char *const plain[] = {
        "synthetic:tiny:BF16",        "synthetic:smollm2-135m:BF16", "synthetic:tiny:F16",
        "synthetic:smollm2-135m:F16", "synthetic:tiny-qwen2:BF16",   "synthetic:tiny-qwen3:BF16",
        "synthetic:tiny-qwen3:F16",   "synthetic:tiny-smollm3:BF16", "synthetic:tiny-mistral:BF16"};
    for (size_t i = 0; i < 2 * sizeof plain / sizeof *plain; i++) {
        token_list expected, found;
        qp_engine_options options = {.size = sizeof options,
                                     .model = plain[i / 2],
                                     .device = "cuda",
                                     .exec = "cuda",
                                     .kv_type = kv_types[i % 2],
                                     .context = 1024};
        make_tokens(&options, MADE, 1, &expected);
        options.exec = "megakernel";
        static const int64_t intervals[] = {1, 16, 50, 128};
        for (int j = 0; j < 4; j++) {
            make_tokens(&options, MADE, intervals[j], &found);
            assert_memory_equal(expected.of, found.of, MADE * sizeof *found.of);
        }
    }
}

/* Rows longer than one block of columns: a second block that is not full, and one that is. Repeated
 * runs give the same bits. */
static void it_reads_long_rows(void **state)
{
    (void)state;
    require_gpu();
    static const char *const wide[] = {"synthetic:llama-3.2-3b:BF16", "synthetic:llama-3.2-3b:F16",
                                       "synthetic:llama-3.1-8b:BF16"};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        token_list expected, found;
        qp_engine_options options = {.size = sizeof options,
                                     .model = wide[i],
                                     .device = "cuda",
                                     .exec = "cuda",
                                     .context = 256};
        make_tokens(&options, WIDE_MADE, 1, &expected);
        options.exec = "megakernel";
        make_tokens(&options, WIDE_MADE, 7, &found);
        assert_memory_equal(expected.of, found.of, WIDE_MADE * sizeof *found.of);
    }
}

/* Every type that has fragments, and mixed types; tiles wider than a chunk, and several tiles in a
 * chunk. */
static void it_reads_quantised_weights(void **state)
{
    (void)state;
    require_gpu();
    static const char *const quantised[] = {"synthetic:tiny:Q8_0",
                                            "synthetic:tiny:Q4_0",
                                            "synthetic:tiny:Q4_1",
                                            "synthetic:tiny:Q4_K",
                                            "synthetic:tiny:Q6_K",
                                            "synthetic:smollm2-135m:Q8_0",
                                            "synthetic:smollm2-135m:Q4_0",
                                            "synthetic:smollm2-135m:Q4_1",
                                            "synthetic:tiny:Q4_K+Q6_K",
                                            "synthetic:tiny:Q4_0+Q6_K",
                                            "synthetic:tiny:Q6_K+Q8_0",
                                            "synthetic:tiny-qwen2:Q8_0",
                                            "synthetic:tiny-qwen2:Q4_K+Q6_K",
                                            "synthetic:tiny-qwen3:Q4_0",
                                            "synthetic:tiny-smollm3:Q8_0",
                                            "synthetic:tiny-mistral:Q4_K",
                                            "synthetic:wide:Q4_0"};
    for (size_t i = 0; i < sizeof quantised / sizeof *quantised; i++) {
        token_list expected, found;
        qp_engine_options options = {.size = sizeof options,
                                     .model = quantised[i],
                                     .device = "cuda",
                                     .exec = "cuda",
                                     .context = 1024};
        /* In small models some blocks have little to do: their producer warps run passes ahead, and
         * parts of attention come and go with the length of the context. */
        int count = strstr(quantised[i], ":tiny:") ? MOST_MADE : MADE;
        make_tokens(&options, count, 1, &expected);
        options.exec = "megakernel";
        make_tokens(&options, count, 50, &found);
        assert_memory_equal(expected.of, found.of, (size_t)count * sizeof *found.of);
        options.kv_type = "BF16";
        make_tokens(&options, MADE, 50, &found);
    }
}

static void it_makes_what_the_reference_makes(void **state)
{
    (void)state;
    require_gpu();
    token_list expected, found;
    qp_engine_options options = {.size = sizeof options,
                                 .model = models[0],
                                 .exec = "reference",
                                 .kv_type = "F16",
                                 .context = 1024};
    make_tokens(&options, MOST_MADE, 1, &expected);
    options.device = "cuda";
    options.exec = "megakernel";
    make_tokens(&options, MOST_MADE, 128, &found);
    for (int i = 0; i < MOST_MADE; i++)
        if (expected.of[i] != found.of[i])
            fail_msg("token %d of %d: expected %d, found %d", i, MOST_MADE, expected.of[i],
                     found.of[i]);
}

/* The kernel with delays for one sequence; NULL: there is none for such weights. */
static cuda_function delayed_kernel(qp_engine *engine, bool has_one)
{
    cuda_function kernel = NULL;
    qp_error error;
    if (!has_one) return NULL;
    mega_of(engine)->arguments.delay = DELAY_NS;
    assert_ok(check_kernels_for_tests(engine, true, &error));
    assert_ok(find_delayed(mega_of(engine), false, &kernel, &error));
    return kernel;
}

/* A pass after n_prompt tokens, RUNS times, every other one by `delayed` unless that is NULL: its
 * logits have the same bits. */
static void check_runs(qp_engine *engine, int n_prompt, cuda_function delayed)
{
    cuda_function usual = mega_of(engine)->kernel;
    qp_session *session = open_session(engine);
    size_t bytes = (size_t)qp_engine_get_info(engine)->vocab_size * sizeof(float);
    int32_t prompt[LONG_PROMPT + 1];
    for (int i = 0; i <= n_prompt; i++)
        prompt[i] = (i * 97 + 5) % 500;
    qp_input input = {.session = session, .tokens = prompt, .count = (size_t)n_prompt};
    qp_error error;
    assert_ok(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error));
    float *first = eval_rows(engine, session, prompt + n_prompt, 1);
    for (int run = 1; run < RUNS; run++) {
        mega_of(engine)->kernel = delayed && run % 2 ? delayed : usual;
        qp_session_truncate(session, (size_t)n_prompt, NULL);
        float *again = eval_rows(engine, session, prompt + n_prompt, 1);
        if (memcmp(first, again, bytes) != 0)
            fail_msg("other logits behind %d tokens in run %d", n_prompt, run);
        free(again);
    }
    mega_of(engine)->kernel = usual;
    free(first);
    qp_session_close(session);
}

/* Bits do not depend on which block comes first: warps sleep at random in every other run. Both
 * after few tokens, where a block computes a KV head's attention alone, and after enough for it to
 * be cut into parts. */
static void its_bits_do_not_depend_on_the_order(void **state)
{
    (void)state;
    require_gpu();
    static const struct {
        const char *model;
        bool delays;
        const char *kv_type;
    } cases[] = {{"synthetic:tiny:BF16", true, "F16"},
                 {"synthetic:smollm2-135m:BF16", true, "F16"},
                 {"synthetic:tiny:F16", false, "F16"},
                 {"synthetic:tiny:Q8_0", true, "F16"},
                 {"synthetic:tiny:Q4_0", true, "F16"},
                 {"synthetic:tiny:Q4_1", true, "F16"},
                 {"synthetic:tiny:Q4_K", true, "F16"},
                 {"synthetic:tiny:Q6_K", true, "F16"},
                 {"synthetic:tiny:F8", true, "F16"},
                 {"synthetic:internlm2-1.8b:BF16", true, "F16"},
                 {"synthetic:tiny-qwen2:BF16", true, "F16"},
                 {"synthetic:tiny-qwen2:Q8_0", false, "F16"},
                 {"synthetic:tiny-qwen3:BF16", true, "F16"},
                 {"synthetic:tiny-smollm3:Q8_0", true, "F16"},
                 {"synthetic:tiny-mistral:BF16", true, "F16"},
                 {"synthetic:smollm2-135m:BF16", true, "F8"},
                 {"synthetic:internlm2-1.8b:BF16", false, "F8"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        qp_engine *engine = open_engine((qp_engine_options){.model = cases[c].model,
                                                            .kv_type = cases[c].kv_type,
                                                            .device = "cuda",
                                                            .exec = "megakernel",
                                                            .context = 1024});
        cuda_function usual = mega_of(engine)->kernel;
        cuda_function delayed = delayed_kernel(engine, cases[c].delays);
        check_runs(engine, PROMPT - 1, delayed);
        check_runs(engine, LONG_PROMPT, delayed);
        token_list expected, found;
        qp_error error;
        mega_of(engine)->kernel = usual;
        assert_ok(generate(engine, MADE, 16, &expected, &error));
        if (delayed) mega_of(engine)->kernel = delayed;
        assert_ok(generate(engine, MADE, 50, &found, &error));
        assert_memory_equal(expected.of, found.of, MADE * sizeof *found.of);
        qp_engine_close(engine);
    }
}

static void it_says_what_it_does_not_run(void **state)
{
    (void)state;
    require_gpu();
    qp_engine *engine = NULL;
    qp_error error;
    qp_engine_options options = {
        .size = sizeof options, .threads = 1, .device = "cuda", .exec = "megakernel"};
    static const char *const refused[] = {"synthetic:tiny:F32", "synthetic:tiny:Q8_0+F16",
                                          "synthetic:tiny:BF16+F16", "synthetic:tiny:Q5_0"};
    for (int i = 0; i < 4; i++) {
        options.model = refused[i];
        assert_int_equal(qp_engine_open(&options, &engine, &error), QP_UNSUPPORTED);
        assert_non_null(strstr(error.message, "all BF16, all F16"));
    }
    options.exec = NULL; /* operators for the rest */
    assert_ok(qp_engine_open(&options, &engine, &error));
    assert_null(mega_of(engine));
    qp_engine_close(engine);
}

static void it_runs_on_no_cpu(void **state)
{
    (void)state;
    qp_engine *engine = NULL;
    qp_error error;
    qp_engine_options options = {.size = sizeof options,
                                 .model = "synthetic:tiny:BF16",
                                 .threads = 1,
                                 .device = "cpu",
                                 .exec = "megakernel"};
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "--exec megakernel runs on a GPU"));
    assert_non_null(strstr(error.message, "--device cpu"));
}

/* However the schedule's instructions are dealt, and to however many blocks. */
static void every_strategy_gives_the_same_bits(void **state)
{
    (void)state;
    require_gpu();
    for (int m = 0; m < 2; m++) {
        token_list expected, found;
        qp_error error;
        qp_engine *engine = open_engine((qp_engine_options){
            .model = models[m], .device = "cuda", .exec = "megakernel", .context = 1024});
        assert_ok(generate(engine, MADE, 50, &expected, &error));
        for (int assignment = 1; schedule_assignment_name(assignment); assignment++) {
            const cuda_mega_options how = {.assignment = (schedule_assignment)assignment};
            cuda_mega_free(mega_of(engine));
            assert_ok(cuda_mega_init(mega_of(engine), cuda_of(engine), &how, &error));
            assert_non_null(mega_of(engine));
            assert_ok(generate(engine, MADE, 50, &found, &error));
            assert_memory_equal(expected.of, found.of, MADE * sizeof *found.of);
        }
        /* So few blocks that each has more pairs of QKV than its warps take at once. */
        const cuda_mega_options few = {.n_blocks = 12};
        cuda_mega_free(mega_of(engine));
        assert_ok(cuda_mega_init(mega_of(engine), cuda_of(engine), &few, &error));
        assert_non_null(mega_of(engine));
        assert_ok(generate(engine, MADE, 50, &found, &error));
        assert_memory_equal(expected.of, found.of, MADE * sizeof *found.of);
        qp_engine_close(engine);
    }
}

/* Without a GPU: the schedules are proved, and the megakernel carries all of their waits. */
static void every_wait_is_carried(void **state)
{
    (void)state;
    static const char *const paths[] = {"synthetic:tiny:BF16", "synthetic:smollm2-135m:BF16",
                                        "synthetic:llama-3.1-8b:BF16", "synthetic:qwen3-8b:Q4_K",
                                        "synthetic:tiny-mistral:BF16"};
    static const int blocks[] = {8, 33, 132, 144};
    for (size_t i = 0; i < sizeof paths / sizeof *paths * 4 * 5; i++) {
        qp_error error;
        model *m;
        program p, sums;
        schedule s;
        model_options sizes_only = {.sizes_only = true};
        assert_ok(model_open(paths[i / 20], &sizes_only, &m, &error));
        plan_options of = plan_default_options(model_get_config(m));
        of.context = 4096;
        assert_ok(lower_build(model_get_config(m), m, &of, &p, &error));
        const mega_schedule_options options = {.n_blocks = blocks[i / 5 % 4],
                                               .assignment = (schedule_assignment)(i % 5)};
        assert_ok(mega_build_sums(&p, options.n_blocks, &sums, &error));
        assert_ok(mega_schedule(&sums, &options, &s, &error));
        schedule_free(&s);
        program_free(&sums);
        program_free(&p);
        model_close(m);
    }
}

/* A wait for data that a reader could not see is refused. */
static void a_wait_that_nothing_carries_is_refused(void **state)
{
    (void)state;
    qp_error error;
    model *m;
    program p, sums;
    schedule s;
    model_options sizes_only = {.sizes_only = true};
    assert_ok(model_open(models[0], &sizes_only, &m, &error));
    plan_options of = plan_default_options(model_get_config(m));
    assert_ok(lower_build(model_get_config(m), m, &of, &p, &error));
    const mega_schedule_options options = {.n_blocks = 16};
    assert_ok(mega_build_sums(&p, options.n_blocks, &sums, &error));
    assert_ok(mega_schedule(&sums, &options, &s, &error));
    instruction *attention = NULL, *mlp = NULL, *later = NULL;
    for (int i = 0; i < s.length[3]; i++) {
        instruction *in = s.instructions + 3 * (size_t)s.longest + i;
        if (in->opcode == OP_ATTENTION_PARTIAL && !attention) attention = in;
        if (in->opcode == OP_ATTENTION_PARTIAL && in->layer == 1) later = in;
        if (in->opcode == OP_NORM_MLP && !mlp) mlp = in;
    }
    assert_non_null(attention);
    assert_non_null(mlp);
    assert_non_null(later);
    const instruction_wait kept = attention->waits[0];
    attention->waits[0] = mlp->waits[0];
    assert_int_equal(mega_check_waits(&s, &error), QP_UNSUPPORTED);
    assert_non_null(
        strstr(error.message, "attention_partial, layer 0) waits for attention_output"));
    attention->waits[0] = kept;
    attention->waits[0].needed--;
    assert_int_equal(mega_check_waits(&s, &error), QP_UNSUPPORTED);
    attention->waits[0] = kept;
    assert_ok(mega_check_waits(&s, &error));
    /* One more wait that the schedule fulfils, but that no data carries to the reader. */
    assert_int_equal(later->waits[1].counter, 0);
    later->waits[1] = mlp->waits[0];
    assert_ok(schedule_verify(&s, &error));
    assert_int_equal(mega_prove(&s, &error), QP_UNSUPPORTED);
    schedule_free(&s);
    program_free(&sums);
    program_free(&p);
    model_close(m);
}

/* Ways to damage a record of a block; false: there is nothing to damage. */
enum { DAMAGES = 6 };
static bool damage(schedule *s, int block, int i, int how)
{
    instruction *in = s->instructions + (size_t)block * (size_t)s->longest + i;
    switch (how) {
    case 0: /* left out */
        s->length[block]--;
        memmove(in, in + 1, (size_t)(s->length[block] - i) * sizeof *in);
        return true;
    case 1:
        in->units.end--;
        return true;
    case 2:
        in->units.begin++, in->units.end++;
        return true;
    case 3: /* the operands of another step */
        in->node = (in->node + 1) % (uint32_t)s->n_nodes;
        return true;
    case 4:
        if (!in->signal) return false;
        in->signal = 0;
        return true;
    default:
        if (!in->waits[0].counter && !in->waits[1].counter) return false;
        memset(in->waits, 0, sizeof in->waits);
        in->flags = 0;
        return true;
    }
}

/* Whichever record of a queue is damaged, nothing of the program is uploaded. */
static void a_damaged_program_is_refused(void **state)
{
    (void)state;
    enum { BLOCKS = 12 };
    qp_error error;
    model *m;
    program p, sums;
    model_options sizes_only = {.sizes_only = true};
    assert_ok(model_open(models[0], &sizes_only, &m, &error));
    plan_options of = plan_default_options(model_get_config(m));
    assert_ok(lower_build(model_get_config(m), m, &of, &p, &error));
    assert_ok(mega_build_sums(&p, BLOCKS, &sums, &error));
    int damaged = 0;
    for (int how = 0; how < DAMAGES; how++)
        for (int i = 0, length = 1; i < length; i++) {
            const mega_schedule_options options = {.n_blocks = BLOCKS};
            const int block = (i + how) % BLOCKS;
            schedule s;
            assert_ok(mega_schedule(&sums, &options, &s, &error));
            length = s.length[block];
            if (i < length && damage(&s, block, i, how)) {
                damaged++;
                if (mega_prove(&s, &error) == QP_OK)
                    fail_msg("block %d's record %d, damaged in way %d, is accepted", block, i, how);
            }
            schedule_free(&s);
        }
    assert_true(damaged > 40);
    program_free(&sums);
    program_free(&p);
    model_close(m);
}

/* A block leaves out its part of the last MLP, for which all blocks wait. Afterwards this process
 * cannot use the GPU. */
static void it_reports_what_does_not_come(void **state)
{
    (void)state;
    require_gpu();
    qp_engine *engine = open_engine((qp_engine_options){
        .model = models[0], .device = "cuda", .exec = "megakernel", .context = 256});
    const mega_arguments *a = &mega_of(engine)->arguments;
    const cuda_device *device = &engine->device;
    const int block = 5;
    size_t bytes = (size_t)a->longest * sizeof(mega_entry);
    cuda_address at = a->program + block * bytes, length_at = a->lengths + block * sizeof(int32_t);
    mega_entry *queue = malloc(bytes);
    int32_t length;
    qp_error error;
    assert_non_null(queue);
    assert_int_equal(
        device->driver->copy_to_host(&length, length_at, sizeof length, device->stream), 0);
    assert_int_equal(device->driver->copy_to_host(queue, at, bytes, device->stream), 0);
    assert_ok(cuda_device_wait(device, "reading", &error));
    length--;
    assert_int_equal(queue[length - 1].in.opcode, MEGA_MLP);
    queue[length - 1] = queue[length];
    assert_int_equal(device->driver->copy_to_device(at, queue, bytes, device->stream), 0);
    assert_int_equal(
        device->driver->copy_to_device(length_at, &length, sizeof length, device->stream), 0);
    assert_ok(cuda_device_wait(device, "writing", &error));
    free(queue);
    token_list list;
    uint64_t start = clock_ns();
    assert_int_equal(generate(engine, MADE, 16, &list, &error), QP_DEVICE);
    assert_true(clock_ns() - start < UINT64_C(2000000000));
    assert_non_null(strstr(error.message, "waited for x"));
    char counts[64];
    snprintf(counts, sizeof counts, "expected %d, found %d", mega_of(engine)->n_blocks,
             mega_of(engine)->n_blocks - 1);
    assert_non_null(strstr(error.message, counts));
    qp_engine_close(engine);
}

/* An argument chooses tests. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_makes_the_same_tokens),
        cmocka_unit_test(it_reads_long_rows),
        cmocka_unit_test(it_reads_quantised_weights),
        cmocka_unit_test(it_makes_what_the_reference_makes),
        cmocka_unit_test(its_bits_do_not_depend_on_the_order),
        cmocka_unit_test(it_says_what_it_does_not_run),
        cmocka_unit_test(it_runs_on_no_cpu),
        cmocka_unit_test(every_wait_is_carried),
        cmocka_unit_test(a_wait_that_nothing_carries_is_refused),
        cmocka_unit_test(a_damaged_program_is_refused),
        cmocka_unit_test(every_strategy_gives_the_same_bits),
        cmocka_unit_test(it_reports_what_does_not_come), /* last */
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
