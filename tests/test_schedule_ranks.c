/* Schedules of several ranks. In random legal orders, one a rank, they give the reference's bits;
 * the verifier refuses every change of one rank's schedule that does harm: of those that it
 * accepts, all ranks together still give these bits, and no rank waits for ever.
 */
#include "mutate_schedule.h"
#include "schedule_test.h"

#include "comm/comm.h"
#include "op/exchange.h"
#include "vm/execute.h"

#include <pthread.h>
#include <stdlib.h>

enum { RANKS = 2, WORKERS = 3, MUTATIONS = 1000, TOKENS = 3 };

static qp_error error;

/* One rank: its program, memory and schedule. */
typedef struct rank {
    program program;
    executor executor;
    schedule schedule;
    bound_kernel *kernels;
    void *scratch;
    comm *comm;
    uint64_t seed;
    bool right;
} rank;

typedef struct setting {
    model *model;
    batch batch;
    rank ranks[RANKS];
    float *want; /* the logits */
    int64_t vocab;
} setting;

static plan_options options_of(const model *m, int n_ranks, int rank)
{
    plan_options o = small_options(model_get_config(m));
    o.ranks = n_ranks, o.rank = rank;
    return o;
}

static void fill(setting *s)
{
    static const int32_t ids[TOKENS] = {5, 200, 33}, pages[] = {2, 0, 1};
    batch_clear(&s->batch);
    batch_add(&s->batch, ids, TOKENS, 0, pages);
    batch_want(&s->batch, TOKENS - 1);
}

static void open_rank(setting *s, int r)
{
    rank *x = &s->ranks[r];
    plan_options o = options_of(s->model, RANKS, r);
    assert_ok(lower_build(model_get_config(s->model), s->model, &o, &x->program, &error));
    assert_ok(executor_init(&x->executor, &x->program, NULL, 0, NULL, NULL, NULL, &error));
    schedule_options so = schedule_run_options(&x->program);
    so.workers = WORKERS;
    assert_ok(schedule_build(&x->program, &so, &x->schedule, &error));
    x->kernels = calloc((size_t)x->schedule.n_nodes, sizeof *x->kernels);
    x->scratch = malloc(serial_scratch_bytes(&x->schedule) + 64);
    assert_true(x->kernels && x->scratch);
}

/* A pass of one rank, as the reference computes it. */
static void compute_want(setting *s)
{
    program p;
    executor x;
    plan_options o = options_of(s->model, 1, 0);
    assert_ok(lower_build(model_get_config(s->model), s->model, &o, &p, &error));
    assert_ok(executor_init(&x, &p, NULL, 0, NULL, NULL, NULL, &error));
    assert_ok(batch_init(&s->batch, &s->ranks[0].program, &error));
    fill(s);
    executor_run(&x, &s->batch, 0, p.logits_end);
    s->vocab = p.config.vocab_size;
    s->want = malloc((size_t)s->vocab * sizeof *s->want);
    memcpy(s->want, executor_logits(&x), (size_t)s->vocab * sizeof *s->want);
    executor_free(&x);
    program_free(&p);
}

static int open_setting(void **state)
{
    setting *s = calloc(1, sizeof *s);
    assert_ok(model_open("synthetic:tiny:F32", NULL, &s->model, &error));
    for (int r = 0; r < RANKS; r++)
        open_rank(s, r);
    compute_want(s);
    *state = s;
    return 0;
}

static int close_setting(void **state)
{
    setting *s = *state;
    for (int r = 0; r < RANKS; r++) {
        free(s->ranks[r].kernels);
        free(s->ranks[r].scratch);
        schedule_free(&s->ranks[r].schedule);
        executor_free(&s->ranks[r].executor);
        program_free(&s->ranks[r].program);
    }
    batch_free(&s->batch);
    free(s->want);
    model_close(s->model);
    free(s);
    return 0;
}

typedef struct turn {
    setting *setting;
    rank *rank;
} turn;

/* Two passes of a rank's schedule in a random order. */
static void *run_rank(void *context)
{
    const turn *t = context;
    rank *x = t->rank;
    qp_error why;
    serial_machine *machine = NULL;
    for (int n = 0; n < x->schedule.n_nodes; n++)
        if (op_exchanges(x->program.nodes[n].op)) x->kernels[n].packed = x->comm;
    const serial_options o = {.nodes = x->kernels, .scratch = x->scratch, .seed = x->seed};
    x->right = serial_create(&x->schedule, &machine, &why) == QP_OK;
    for (int pass = 0; pass < 2 && x->right; pass++)
        x->right =
            serial_run(machine, &x->executor.memory, t->setting->batch.sizes.of, &o, &why) == QP_OK;
    if (!x->right) comm_abort(x->comm, why.message);
    x->right = x->right && comm_check(x->comm, &why) == QP_OK &&
               memcmp(executor_logits(&x->executor), t->setting->want,
                      (size_t)t->setting->vocab * sizeof(float)) == 0;
    serial_destroy(machine);
    return NULL;
}

/* Whether all ranks together give the logits of one. */
static bool run_right(setting *s, uint64_t seed)
{
    comm *ends[RANKS];
    pthread_t threads[RANKS];
    turn turns[RANKS];
    bool right = true;
    assert_ok(comm_threads_open(RANKS, ends, &error));
    for (int r = 0; r < RANKS; r++) {
        rank *x = &s->ranks[r];
        x->comm = ends[r];
        x->seed = hash_random(seed, (uint64_t)r, 1) | 1;
        executor_take_inputs(&x->executor, &s->batch);
        memset(executor_logits(&x->executor), 0, (size_t)s->vocab * sizeof(float));
        turns[r] = (turn){s, x};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &turns[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < RANKS; r++) {
        right = right && s->ranks[r].right;
        comm_close(ends[r]);
    }
    return right;
}

static qp_status verify(setting *s)
{
    const schedule *all[RANKS];
    for (int r = 0; r < RANKS; r++)
        all[r] = &s->ranks[r].schedule;
    return schedule_verify_ranks(all, RANKS, &error);
}

static void any_order_gives_the_bits_of_one_rank(void **state)
{
    setting *s = *state;
    assert_ok(verify(s));
    for (uint64_t seed = 1; seed <= 10; seed++)
        assert_true(run_right(s, seed));
}

static void no_harmful_mutation_is_accepted(void **state)
{
    setting *s = *state;
    int accepted = 0, refused = 0;
    for (uint64_t i = 0; i < MUTATIONS; i++) {
        schedule *changed = &s->ranks[i % RANKS].schedule;
        const mutation kind = (mutation)(i / RANKS % KINDS);
        const size_t n = (size_t)changed->options.workers * (size_t)changed->longest;
        instruction *kept = malloc(n * sizeof *kept);
        uint32_t *per_pass = malloc((size_t)changed->n_counters * sizeof *per_pass);
        memcpy(kept, changed->instructions, n * sizeof *kept);
        memcpy(per_pass, changed->per_pass, (size_t)changed->n_counters * sizeof *per_pass);
        for (uint64_t attempt = 0; !mutate(changed, kind, hash_random(11, attempt, i)); attempt++)
            continue;
        const bool sound = verify(s) == QP_OK;
        if (sound && !run_right(s, i + 1))
            fail_msg("mutation %d of kind %d does harm", (int)i, (int)kind);
        *(sound ? &accepted : &refused) += 1;
        memcpy(changed->instructions, kept, n * sizeof *kept);
        memcpy(changed->per_pass, per_pass, (size_t)changed->n_counters * sizeof *per_pass);
        free(kept);
        free(per_pass);
    }
    assert_true(refused > MUTATIONS / 2 && accepted > MUTATIONS / 100);
}

/* Ranks of two cuts make other exchanges, and a lost order between two of one rank is seen. */
static void exchanges_must_fit_together(void **state)
{
    setting *s = *state;
    program p;
    schedule other;
    plan_options o = options_of(s->model, RANKS, 1);
    o.cut = PLAN_REDUCE;
    assert_ok(lower_build(model_get_config(s->model), s->model, &o, &p, &error));
    schedule_options so = schedule_run_options(&p);
    so.workers = WORKERS;
    assert_ok(schedule_build(&p, &so, &other, &error));
    const schedule *all[] = {&s->ranks[0].schedule, &other};
    assert_int_equal(schedule_verify_ranks(all, 2, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "exchange 0 of rank 1"));
    schedule_free(&other);
    program_free(&p);
}

static instruction *find_exchange(schedule *s, int number)
{
    for (int i = 0; i < s->options.workers * s->longest; i++) {
        instruction *in = &s->instructions[i];
        if (in->opcode != INSTRUCTION_NOOP && op_exchanges((op_code)in->opcode) && number-- == 0)
            return in;
    }
    return NULL;
}

/* One by all rows that there can be, and not by all rows of the batch; and one that waits for
 * nobody. */
static void exchanges_are_whole_and_in_order(void **state)
{
    schedule *s = &((setting *)*state)->ranks[0].schedule;
    instruction *in = find_exchange(s, 0);
    in->tokens.end = (int32_t)s->program->capacity.of[s->program->nodes[in->node].row_axis];
    assert_int_equal(schedule_verify(s, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "an exchange between ranks is cut"));
    in->tokens.end = INSTRUCTION_ALL_TOKENS;
    assert_ok(schedule_verify(s, &error));
    in = find_exchange(s, 1);
    const size_t bytes = (size_t)s->longest * sizeof *in;
    const int worker = (int)((in - s->instructions) / s->longest);
    int other = 0;
    while (other == worker || s->length[other] == s->longest)
        assert_true(++other < s->options.workers);
    instruction *queue = s->instructions + (size_t)other * (size_t)s->longest;
    instruction *kept = malloc(bytes), early = *in;
    memcpy(kept, queue, bytes);
    memset(early.waits, 0, sizeof early.waits);
    early.flags &= (uint16_t) ~(INSTRUCTION_PREVIOUS_0 | INSTRUCTION_PREVIOUS_1);
    memmove(queue + 1, kept, bytes - sizeof *queue);
    *queue = early;
    s->length[other]++;
    early = *in;
    *in = (instruction){.opcode = INSTRUCTION_NOOP};
    assert_int_equal(schedule_verify(s, &error), QP_INVALID);
    if (!strstr(error.message, "before an earlier exchange")) fail_msg("%s", error.message);
    *in = early;
    memcpy(queue, kept, bytes);
    s->length[other]--;
    free(kept);
    assert_ok(schedule_verify(s, &error));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_gives_the_bits_of_one_rank),
        cmocka_unit_test(no_harmful_mutation_is_accepted),
        cmocka_unit_test(exchanges_must_fit_together),
        cmocka_unit_test(exchanges_are_whole_and_in_order),
    };
    return cmocka_run_group_tests(tests, open_setting, close_setting);
}
