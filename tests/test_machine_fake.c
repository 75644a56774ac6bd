/* GPU machines over the fake driver (fake_cuda/README.md): what they accept, several runs at a
 * time, and which machine of an engine runs which request. Kernels do not run, so tokens are
 * whatever the memory holds.
 */
#include "engine_test.h"
#include "fake_gpu.h"
#include "op/adjust_logits/adjust_logits.h"

#include "base/cpu.h"
#include "cuda/ranks.h"
#include "engine/engine.h"
#include "inspect/diff/diff.h"
#include "lower/lower.h"
#include "vm/mega/machine.h"

#include <stdlib.h>

enum { SEQUENCES = 4, CONTEXT = 64, PAGE = 8, MOST = 16 };

static qp_error error;

typedef struct bench {
    model *model;
    program program;
    thread_pool *pool;
    cuda_device device;
    machine cuda, mega;
    batch batch;
    int32_t tokens[MOST * SEQUENCES];
} bench;

static void bench_open(bench *b)
{
    *b = (bench){0};
    assert_ok(cuda_device_open(&b->device, &error));
    assert_ok(model_open("synthetic:tiny:BF16", NULL, &b->model, &error));
    plan_options o = plan_default_options(model_get_config(b->model));
    o.max_tokens = 24;
    o.max_sequences = o.max_outputs = SEQUENCES;
    o.context = CONTEXT;
    o.page_size = PAGE;
    assert_ok(lower_build(model_get_config(b->model), b->model, &o, &b->program, &error));
    assert_ok(thread_pool_create(1, &b->pool, &error));
    assert_ok(batch_init(&b->batch, &b->program, &error));
    machine_setup setup = {.program = &b->program,
                           .pool = b->pool,
                           .cpu_features = cpu_features(0),
                           .device = &b->device};
    assert_ok(machine_open(&machine_cuda, &setup, &b->cuda, &error));
    setup.over = &b->cuda;
    assert_ok(machine_open(&machine_megakernel, &setup, &b->mega, &error));
}

static void bench_close(bench *b)
{
    machine_close(&b->mega);
    machine_close(&b->cuda);
    batch_free(&b->batch);
    thread_pool_destroy(b->pool);
    program_free(&b->program);
    model_close(b->model);
    cuda_device_close(&b->device);
}

/* One token of each of `sequences`, at `past`, with pages for `passes`. */
static void fill(bench *b, int sequences, int64_t past, int passes)
{
    int32_t pages[CONTEXT / PAGE];
    batch_clear(&b->batch);
    for (int s = 0; s < sequences; s++) {
        for (int i = 0; i < CONTEXT / PAGE; i++)
            pages[i] = i * SEQUENCES + s;
        batch_add_ahead(&b->batch, 1, past, past + passes, pages);
        batch_want(&b->batch, s);
        ((float *)b->batch.of[PLAN_TEMPERATURES])[s] = 1;
        ((float *)b->batch.of[PLAN_TOP_PS])[s] = 1;
    }
}

static machine_request request(bench *b, machine_choice choice, int passes)
{
    memset(b->tokens, -1, sizeof b->tokens);
    return (machine_request){
        .batch = &b->batch, .choice = choice, .passes = passes, .tokens = b->tokens};
}

static void refused(const machine *m, machine_request r, const char *what)
{
    const char *why = machine_accepts(m, &r);
    assert_non_null(why);
    if (!strstr(why, what)) fail_msg("no \"%s\" in \"%s\"", what, why);
    assert_int_equal(machine_run(m, &r, &error), QP_UNSUPPORTED);
}

static void test_groups_under_way_together(void **state)
{
    (void)state;
    require_fake_gpu();
    bench b;
    int passes;
    bench_open(&b);
    const machine_pace pace = machine_pace_of(&b.cuda, SEQUENCES, MACHINE_LIKELIEST);
    assert_true(pace.passes == 8 && pace.runs == 2);
    fill(&b, SEQUENCES, 3, 1);
    machine_request first = request(&b, MACHINE_SAMPLED, 1), second = first;
    assert_ok(machine_run(&b.cuda, &first, &error));
    fill(&b, SEQUENCES, 4, pace.passes); /* the batch is free again */
    second.passes = pace.passes;
    second.tokens += SEQUENCES;
    second.continues = true;
    assert_ok(machine_run(&b.cuda, &second, &error));
    assert_int_equal(machine_run(&b.cuda, &second, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "under way"));
    const machine_request alone = {.batch = &b.batch};
    assert_int_equal(machine_run(&b.cuda, &alone, &error), QP_INVALID);
    assert_int_equal(b.tokens[0], -1); /* before wait() */
    assert_ok(machine_wait(&b.cuda, &passes, &error));
    assert_int_equal(passes, 1);
    for (int i = 0; i < SEQUENCES; i++)
        assert_int_not_equal(b.tokens[i], -1);
    assert_int_equal(b.tokens[SEQUENCES], -1);
    assert_ok(machine_wait(&b.cuda, &passes, &error));
    assert_int_equal(passes, pace.passes);
    assert_int_not_equal(b.tokens[(pace.passes + 1) * SEQUENCES - 1], -1);
    assert_int_equal(b.tokens[(pace.passes + 1) * SEQUENCES], -1);
    assert_int_equal(machine_wait(&b.cuda, NULL, &error), QP_INVALID);
    assert_ok(machine_pass(&b.cuda, &alone, &error));
    bench_close(&b);
}

static void test_what_is_not_done_is_said(void **state)
{
    (void)state;
    require_fake_gpu();
    const int32_t ids[5] = {1, 2, 3, 4, 5}, pages[1] = {0};
    bench b;
    bench_open(&b);
    fill(&b, SEQUENCES, 0, 9);
    machine_request r = request(&b, MACHINE_LIKELIEST, 9);
    refused(&b.cuda, r, "one group");
    assert_null(machine_accepts(&b.mega, &r));
    r.continues = true;
    refused(&b.mega, r, "under way");
    r = request(&b, MACHINE_SAMPLED, 2);
    assert_null(machine_accepts(&b.cuda, &r));
    refused(&b.mega, r, "one pass at a time");
    r.passes = 1;
    assert_null(machine_accepts(&b.mega, &r));
    r.choice = MACHINE_LOGITS;
    r.first = 1;
    assert_null(machine_accepts(&b.cuda, &r));
    refused(&b.mega, r, "from their beginning");
    fill(&b, 1, 0, 9);
    r = request(&b, MACHINE_SAMPLED, 9);
    batch_i32(&b.batch, PLAN_USES)[0] = ADJUST_PENALISE | ADJUST_BIAS;
    assert_null(machine_accepts(&b.mega, &r));
    batch_i32(&b.batch, PLAN_USES)[0] = ADJUST_MASK;
    refused(&b.mega, r, "no masks");
    r.passes = 8;
    assert_null(machine_accepts(&b.cuda, &r));
    batch_clear(&b.batch);
    batch_add(&b.batch, ids, 5, 0, pages);
    batch_want(&b.batch, 4);
    r = request(&b, MACHINE_LIKELIEST, 1);
    refused(&b.cuda, r, "one new token");
    refused(&b.mega, r, "one new token");
    r.choice = MACHINE_SAMPLED;
    assert_ok(machine_pass(&b.cuda, &r, &error));
    assert_int_equal(b.tokens[0], 0);
    bench_close(&b);
}

/* A sequence's last token and two proposals after `past` positions, beside another sequence's. */
static void fill_to_verify(bench *b, int sequences, int64_t past)
{
    const int32_t ids[3] = {5, 6, 7}, pages[2][2] = {{3, 0}, {1, 2}};
    batch_clear(&b->batch);
    for (int s = 0; s < sequences; s++)
        batch_add(&b->batch, ids, s == 0 ? 3 : 1, past, pages[s]);
    for (int i = 0; i < 2 + sequences; i++) {
        batch_want(&b->batch, i);
        ((float *)b->batch.of[PLAN_TEMPERATURES])[i] = 0;
        ((float *)b->batch.of[PLAN_TOP_PS])[i] = 1;
        batch_i32(&b->batch, PLAN_USES)[i] = 0;
    }
}

static void test_the_megakernel_verifies(void **state)
{
    (void)state;
    require_fake_gpu();
    bench b;
    bench_open(&b);
    fill_to_verify(&b, 2, 6);
    machine_request r = request(&b, MACHINE_SAMPLED, 1);
    r.verifies = true;
    refused(&b.mega, r, "proposals");
    machine_close(&b.mega);
    machine_setup setup = {.program = &b.program,
                           .device = &b.device,
                           .over = &b.cuda,
                           .alone = true,
                           .verifies = true};
    assert_null(machine_megakernel.verify_refusal(&setup));
    assert_ok(machine_open(&machine_megakernel, &setup, &b.mega, &error));
    refused(&b.mega, r, "proposals"); /* two sequences */
    fill_to_verify(&b, 1, 6);
    r.verifies = false;
    refused(&b.mega, r, "proposals");
    r.verifies = true;
    assert_null(machine_accepts(&b.mega, &r));
    machine_close(&b.mega);
    setup.alone = false;
    assert_ok(machine_open(&machine_megakernel, &setup, &b.mega, &error));
    fill_to_verify(&b, 2, 6);
    assert_ok(machine_pass(&b.mega, &r, &error));
    const mega_arguments *a = &mega_machine_of(&b.mega)->batch;
    const mega_row expected[4] = {{5, 6, 0}, {6, 7, 0}, {7, 8, 0}, {5, 6, 2}};
    assert_int_equal(a->n_rows, 4);
    assert_int_equal(a->n_passes, 1);
    assert_memory_equal(a->rows, expected, sizeof expected);
    bench_close(&b);
}

static bool count_to_three(void *context, const int32_t *tokens)
{
    assert_int_equal(tokens[0], 0);
    return ++*(int *)context < 3;
}

static void test_the_megakernel_hands_tokens_out(void **state)
{
    (void)state;
    require_fake_gpu();
    bench b;
    int passes, heard = 0;
    bench_open(&b);
    fill(&b, 1, 0, MOST);
    machine_request r = request(&b, MACHINE_LIKELIEST, MOST);
    assert_ok(machine_run(&b.mega, &r, &error));
    assert_ok(machine_wait(&b.mega, &passes, &error));
    assert_int_equal(passes, MOST);
    assert_int_equal(b.tokens[MOST - 1], 0);
    r.on_tokens = count_to_three;
    r.context = &heard;
    assert_ok(machine_pass(&b.mega, &r, &error));
    assert_int_equal(heard, 3);
    assert_int_equal(machine_pace_of(&b.mega, 1, MACHINE_LIKELIEST).passes, 16);
    assert_int_equal(machine_pace_of(&b.mega, SEQUENCES, MACHINE_SAMPLED).passes, 1);
    assert_int_equal(machine_pace_of(&b.mega, 9, MACHINE_LIKELIEST).passes, 0);
    bench_close(&b);
}

/* Launches of a pass alone are timed once that is asked for, as one queue of all nodes. */
static void test_launches_are_recorded(void **state)
{
    (void)state;
    require_fake_gpu();
    bench b;
    bench_open(&b);
    assert_null(machine_schedule(&b.cuda));
    assert_ok(machine_time(&b.cuda, &(machine_timing){.max_passes = 1}, &error));
    const schedule *s = machine_schedule(&b.cuda);
    assert_int_equal(s->options.workers, 1);
    instruction_timing *timings = calloc((size_t)s->longest, sizeof *timings);
    machine_record record = {.timings = timings};
    fill(&b, 1, 0, 1);
    machine_request r = {.batch = &b.batch, .records = &record, .n_records = 1};
    assert_ok(machine_pass(&b.cuda, &r, &error));
    assert_true(record.timed && record.begin <= record.end);
    for (int i = 1; i < s->longest; i++)
        assert_true(timings[i].wait >= timings[i - 1].wait && timings[i].end >= timings[i].wait);
    assert_ok(machine_time(&b.cuda, NULL, &error));
    assert_null(machine_schedule(&b.cuda));
    record.timings = NULL;
    assert_ok(machine_pass(&b.cuda, &r, &error));
    assert_true(!record.timed && record.end >= record.begin);
    free(timings);
    bench_close(&b);
}

static int n_marks;

static cuda_result refuse_launch(const cuda_launch *launch, cuda_function function,
                                 void **parameters, void **extra)
{
    (void)launch, (void)function, (void)parameters, (void)extra;
    return 1; /* CUDA_ERROR_INVALID_VALUE */
}

static cuda_result count_mark(cuda_event event, cuda_stream stream)
{
    (void)event, (void)stream;
    n_marks++;
    return CUDA_SUCCESS;
}

/* A timed pass that fails leaves nothing behind: the next pass, which is not timed, marks no
 * launches. */
static void test_a_failed_pass_is_no_longer_timed(void **state)
{
    (void)state;
    require_fake_gpu();
    for (int choice = MACHINE_LOGITS; choice <= MACHINE_LIKELIEST; choice++) {
        bench b;
        machine_record record = {0};
        bench_open(&b);
        const cuda_driver *const working = b.device.driver;
        cuda_driver driver = *working;
        driver.launch_with = refuse_launch;
        driver.event_record = count_mark;
        assert_ok(machine_time(&b.cuda, &(machine_timing){.max_passes = 1}, &error));
        instruction_timing *timings =
            calloc((size_t)machine_schedule(&b.cuda)->longest, sizeof *timings);
        record.timings = timings;
        fill(&b, 2, 0, 1);
        machine_request r = request(&b, (machine_choice)choice, 1);
        r.records = &record;
        r.n_records = 1;
        n_marks = 0;
        b.device.driver = &driver;
        assert_int_not_equal(machine_pass(&b.cuda, &r, &error), QP_OK);
        assert_true(n_marks > 0 && !record.timed);
        driver.launch_with = working->launch_with;
        r.n_records = n_marks = 0;
        assert_ok(machine_pass(&b.cuda, &r, &error));
        assert_int_equal(n_marks, choice == MACHINE_LIKELIEST); /* that of the group's end */
        b.device.driver = working;
        free(timings);
        bench_close(&b);
    }
}

static void check_engine(const char *exec, const char *device, const char *first, const char *last)
{
    const qp_engine_options options = {.size = sizeof options,
                                       .model = "synthetic:tiny:BF16",
                                       .threads = 1,
                                       .max_sessions = 12,
                                       .exec = exec,
                                       .device = device};
    qp_engine *e = NULL;
    assert_ok(qp_engine_open(&options, &e, &error));
    assert_string_equal(engine_machine(e, 0)->type->name, first);
    assert_string_equal(engine_memory(e)->type->name, last);
    const int32_t ids[3] = {1, 2, 3}, pages[1] = {0};
    for (int count = 1; count <= 3; count += 2) {
        batch_clear(&e->batch);
        batch_add(&e->batch, ids, count, 0, pages);
        batch_want(&e->batch, count - 1);
        engine_run run = {.request = {.batch = &e->batch}};
        assert_ok(engine_find_run(e, &run, &error));
        assert_string_equal(run.machine->type->name, count == 1 ? first : last);
    }
    qp_engine_close(e);
}

/* The megakernel before cuda, which runs what the first does not; machines imply their device. */
static void test_the_order_of_an_engines_machines(void **state)
{
    (void)state;
    require_fake_gpu();
    check_engine(NULL, "cuda", "megakernel", "cuda");
    check_engine("auto", "auto", "megakernel", "cuda");
    check_engine("megakernel", NULL, "megakernel", "cuda");
    check_engine("cuda", NULL, "cuda", "cuda");
    check_engine("cuda", "auto", "cuda", "cuda");
    check_engine("threads", "auto", "threads", "threads");
    check_engine(NULL, NULL, "megakernel", "cuda");
    check_engine(NULL, "cpu", "threads", "threads");
}

/* Every token is 0, so lookup is right. Nothing is proposed before the first pass, which is timed.
 */
static void test_an_engine_verifies_on_the_megakernel(void **state)
{
    (void)state;
    require_fake_gpu();
    enum { TOKENS = 41 };
    const int32_t ids[1] = {0};
    qp_engine *e = open_engine((qp_engine_options){
        .model = "synthetic:tiny:BF16", .exec = "megakernel", .speculate = "lookup"});
    qp_session *session = open_session(e);
    const mega_arguments *a = &mega_machine_of(engine_machine(e, 0))->batch;
    const qp_generate_options o = {
        .size = sizeof o, .prompt = ids, .n_prompt = 1, .max_tokens = TOKENS};
    qp_generate_result result = {.size = sizeof result};
    assert_false(e->program.options.few_alike);
    assert_ok(qp_generate(session, &o, &result, &error));
    assert_int_equal(result.generated_tokens, TOKENS);
    assert_true(result.accepted_tokens > TOKENS / 2 && result.accepted_tokens < TOKENS);
    assert_true(a->first_pass > 0 && a->first_pass <= result.generate_passes);
    assert_true(a->n_rows > 1 && a->rows[1].position == a->rows[0].position + 1);
    qp_session_close(session);
    qp_engine_close(e);
}

/* GPUs of ranks: one each, by default those that follow; what is missing is said. */
static void test_ranks_have_gpus_of_their_own(void **state)
{
    (void)state;
    require_fake_gpu();
    static const int same[2] = {1, 1}, swapped[2] = {1, 0}, none[2] = {0, 7};
    cuda_device device;
    cuda_ranks ranks;
    assert_ok(cuda_device_open(&device, &error));
    assert_ok(cuda_ranks_open(&ranks, &device, NULL, 2, CUDA_BY_PEERS, &error));
    assert_int_equal(ranks.devices[1]->ordinal, 1);
    assert_true(ranks.exchanges[0].receive[1] == ranks.exchanges[1].receive[1]);
    assert_true(ranks.exchanges[0].rounds != ranks.exchanges[1].rounds);
    assert_ok(cuda_ranks_check(&ranks, &error));
    *(exchange_failure *)(uintptr_t)ranks.exchanges[1].failure =
        (exchange_failure){.failed = 1, .from = 0, .block = 5, .expected = 9, .found = 8};
    assert_int_equal(cuda_ranks_check(&ranks, &error), QP_DEVICE);
    assert_non_null(strstr(error.message, "rank 1 (GPU 1) waited 2 s for rows of rank 0 (GPU 0)"));
    cuda_ranks_close(&ranks);
    assert_int_equal(cuda_ranks_open(&ranks, &device, NULL, 3, CUDA_BY_PEERS, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "this machine has 2"));
    cuda_ranks_close(&ranks);
    assert_int_equal(cuda_ranks_open(&ranks, &device, none, 2, CUDA_BY_PEERS, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "no GPU 7"));
    cuda_ranks_close(&ranks);
    cuda_device_close(&device);
    assert_ok(cuda_device_open_number(&device, 1, &error));
    assert_int_equal(cuda_ranks_open(&ranks, &device, same, 2, CUDA_BY_PEERS, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "GPU 1 both"));
    cuda_ranks_close(&ranks);
    assert_ok(cuda_ranks_open(&ranks, &device, swapped, 2, CUDA_BY_PEERS, &error));
    assert_int_equal(ranks.devices[1]->ordinal, 0);
    cuda_ranks_close(&ranks);
    cuda_device_close(&device);
}

/* A rank runs on its own GPU, with its own part of the model; a wait in vain of any rank ends its
 * run with the message. */
static void test_a_rank_runs_on_its_gpu(void **state)
{
    (void)state;
    require_fake_gpu();
    bench b;
    cuda_ranks gpus;
    bench_open(&b);
    assert_ok(cuda_ranks_open(&gpus, &b.device, NULL, 2, CUDA_BY_PEERS, &error));
    for (int rank = 0; rank < 2; rank++) {
        plan_options o = b.program.options;
        program p;
        machine m;
        o.ranks = 2;
        o.rank = rank;
        o.cut = PLAN_REDUCE;
        assert_ok(lower_rebuild(&b.program, &o, &p, &error));
        machine_setup setup = {.program = &p, .pool = b.pool, .device = &b.device};
        assert_int_equal(machine_open(&machine_cuda, &setup, &m, &error), QP_UNSUPPORTED);
        machine_close(&m);
        setup.gpus = &gpus;
        assert_ok(machine_open(&machine_cuda, &setup, &m, &error));
        fill(&b, SEQUENCES, 0, 1);
        machine_request r = request(&b, MACHINE_LIKELIEST, 1);
        assert_ok(machine_pass(&m, &r, &error));
        r = (machine_request){.batch = &b.batch, .logits = true};
        assert_ok(machine_pass(&m, &r, &error));
        exchange_failure *failure = (exchange_failure *)(uintptr_t)gpus.exchanges[1].failure;
        *failure = (exchange_failure){.failed = 1, .from = 0};
        assert_int_equal(machine_pass(&m, &r, &error), QP_DEVICE);
        *failure = (exchange_failure){0};
        machine_close(&m);
        program_free(&p);
    }
    cuda_ranks_close(&gpus);
    bench_close(&b);
}

static qp_status open_ranks(int ranks, const char *gpus, const char *cut, qp_engine **out)
{
    const qp_engine_options options = {.size = sizeof options,
                                       .model = "synthetic:tiny:BF16",
                                       .threads = 1,
                                       .device = gpus ? NULL : "cuda",
                                       .ranks = ranks,
                                       .gpus = gpus,
                                       .cut = cut};
    return qp_engine_open(&options, out, &error);
}

static void refuse_ranks(int ranks, const char *gpus, const char *what)
{
    qp_engine *e = NULL;
    assert_int_not_equal(open_ranks(ranks, gpus, NULL, &e), QP_OK);
    if (!strstr(error.message, what)) fail_msg("no \"%s\" in \"%s\"", what, error.message);
    assert_null(e);
}

/* An engine with a rank on each of two GPUs generates; the cut is `reduce`, unless another one is
 * asked for. With that cut the megakernel comes before the machine of several tokens. */
static void test_an_engine_on_two_gpus(void **state)
{
    (void)state;
    require_fake_gpu();
    static const struct {
        int ranks;
        const char *gpus, *cut;
    } cases[] = {{2, NULL, NULL}, {0, "1,0", "auto"}, {2, "0,1", "gather"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qp_engine *e = NULL;
        qp_session *session = NULL;
        const int32_t ids[3] = {1, 2, 3};
        assert_ok(open_ranks(cases[i].ranks, cases[i].gpus, cases[i].cut, &e));
        assert_string_equal(engine_memory(e)->type->name, "ranks");
        assert_int_equal(e->n_machines, i == 2 ? 1 : 2);
        assert_int_equal(e->ranks.cut, i == 2 ? PLAN_GATHER : PLAN_REDUCE);
        assert_int_equal(e->device.ordinal, i == 1);
        assert_ok(qp_session_open(e, &session, &error));
        const qp_input input = {.session = session, .tokens = ids, .count = 3};
        assert_ok(qp_eval(e, &input, 1, NULL, NULL, NULL, &error));
        qp_session_close(session);
        qp_engine_close(e);
    }
    refuse_ranks(3, NULL, "this machine has 2");
    refuse_ranks(3, "0,1", "--gpus 0,1 names 2");
    refuse_ranks(0, "0,x", "separated by commas");
    refuse_ranks(0, "5", "no GPU 5");
}

/* A comparison of two ranks on GPUs runs every step; what it cannot do is said. */
static void test_ranks_on_gpus_are_compared(void **state)
{
    (void)state;
    require_fake_gpu();
    diff_options o = {.model = "synthetic:tiny:BF16", .a = "reference", .b = "cuda", .ranks = 2};
    strbuf text = {0};
    bool equal;
    o.n_tokens = 4;
    assert_ok(diff_print(&o, &text, &equal, &error));
    assert_non_null(strstr(strbuf_text(&text), "cuda on 2 ranks against reference"));
    strbuf_free(&text);
    o.ranks = 9;
    assert_int_equal(diff_print(&o, &text, &equal, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "up to 8 ranks"));
    o.ranks = 2;
    o.b = "megakernel";
    o.n_tokens = 2;
    assert_ok(diff_print(&o, &text, &equal, &error));
    assert_non_null(strstr(strbuf_text(&text), "megakernel on 2 ranks against reference"));
    strbuf_free(&text);
    o.b = "threads";
    o.sums = true;
    assert_int_equal(diff_print(&o, &text, &equal, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "without --sums"));
    strbuf_free(&text);
}

/* Launches of two GPUs are traced, on a track each; the megakernel on two is not. */
static void test_launches_of_ranks_are_traced(void **state)
{
    (void)state;
    require_fake_gpu();
    const qp_engine_options options = {.size = sizeof options,
                                       .model = "synthetic:tiny:BF16",
                                       .threads = 1,
                                       .exec = "cuda",
                                       .ranks = 2};
    const qp_trace_options how = {.size = sizeof how, .max_passes = 4};
    const int32_t ids[3] = {1, 2, 3};
    qp_engine *e;
    qp_session *session;
    qp_trace *trace;
    char *text;
    size_t length;
    assert_ok(qp_engine_open(&options, &e, &error));
    assert_ok(qp_session_open(e, &session, &error));
    assert_ok(qp_trace_open(e, &how, &trace, &error));
    const qp_input input = {.session = session, .tokens = ids, .count = 3};
    assert_ok(qp_eval(e, &input, 1, NULL, NULL, NULL, &error));
    assert_ok(qp_trace_print(trace, QP_TRACE_CHROME, &text, &length, &error));
    assert_non_null(strstr(text, "\"GPU 0\""));
    assert_non_null(strstr(text, "\"GPU 1\""));
    assert_non_null(strstr(text, "\"all_reduce"));
    free(text);
    qp_trace_close(trace);
    qp_session_close(session);
    qp_engine_close(e);
    assert_ok(open_ranks(2, NULL, NULL, &e));
    assert_int_equal(qp_trace_open(e, &how, &trace, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "--exec cuda"));
    qp_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_have_gpus_of_their_own),
        cmocka_unit_test(test_a_rank_runs_on_its_gpu),
        cmocka_unit_test(test_an_engine_on_two_gpus),
        cmocka_unit_test(test_ranks_on_gpus_are_compared),
        cmocka_unit_test(test_launches_of_ranks_are_traced),
        cmocka_unit_test(test_groups_under_way_together),
        cmocka_unit_test(test_what_is_not_done_is_said),
        cmocka_unit_test(test_the_megakernel_verifies),
        cmocka_unit_test(test_the_megakernel_hands_tokens_out),
        cmocka_unit_test(test_launches_are_recorded),
        cmocka_unit_test(test_a_failed_pass_is_no_longer_timed),
        cmocka_unit_test(test_the_order_of_an_engines_machines),
        cmocka_unit_test(test_an_engine_verifies_on_the_megakernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
