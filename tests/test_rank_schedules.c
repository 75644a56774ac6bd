/* Schedules of ranks: in one file, replaced while the ranks are open, timed on all ranks, and drawn
 * as one timeline.
 */
#include "test.h"

#include "base/cpu.h"
#include "op/exchange.h"
#include "lower/lower.h"
#include "schedule/build.h"
#include "schedule/ranks.h"
#include "schedule/timeline.h"
#include "vm/machine.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTEXT = 32, PAGE = 4, RANKS = 3, WORKERS = 2, TOKENS = 5, MOST_VOCAB = 1024 };

static qp_error error;
static char path[] = "/tmp/quipu-ranks-XXXXXX";

typedef struct bench {
    model *model;
    program program;
    thread_pool *pool;
    machine machine;
    batch batch;
} bench;

static void open_bench(bench *b, const char *file)
{
    *b = (bench){0};
    assert_ok(model_open("synthetic:tiny", NULL, &b->model, &error));
    plan_options o = plan_default_options(model_get_config(b->model));
    o.max_tokens = 16, o.context = CONTEXT, o.page_size = PAGE;
    assert_ok(lower_build(model_get_config(b->model), b->model, &o, &b->program, &error));
    assert_ok(thread_pool_create(WORKERS, &b->pool, &error));
    assert_ok(batch_init(&b->batch, &b->program, &error));
    const schedule_options options = schedule_run_options(&b->program);
    const machine_setup setup = {.program = &b->program,
                                 .pool = b->pool,
                                 .cpu_features = cpu_features(0),
                                 .schedule = &options,
                                 .schedule_file = file,
                                 .inner = &machine_threads,
                                 .n_ranks = RANKS};
    assert_ok(machine_open(&machine_ranks, &setup, &b->machine, &error));
}

static void close_bench(bench *b)
{
    machine_close(&b->machine);
    batch_free(&b->batch);
    thread_pool_destroy(b->pool);
    program_free(&b->program);
    model_close(b->model);
}

static void run(bench *b, machine_record *record, float *logits)
{
    static const int32_t ids[TOKENS] = {3, 40, 77, 114, 5}, pages[] = {2, 0};
    const machine_request r = {
        .batch = &b->batch, .logits = true, .records = record, .n_records = record != NULL};
    batch_clear(&b->batch);
    batch_add(&b->batch, ids, TOKENS, 0, pages);
    batch_want(&b->batch, TOKENS - 1);
    assert_ok(machine_pass(&b->machine, &r, &error));
    memcpy(logits, machine_logits(&b->machine),
           (size_t)b->program.config.vocab_size * sizeof *logits);
}

/* The program of a rank, as the machine builds it. */
static void build_rank(const bench *b, int rank, int ranks, program *out)
{
    plan_options o = b->program.options;
    o.ranks = ranks, o.rank = rank;
    assert_ok(lower_rebuild(&b->program, &o, out, &error));
}

static void save(const bench *b, int ranks, int workers)
{
    program first;
    schedule_ranks all;
    build_rank(b, 0, ranks, &first);
    schedule_options options = schedule_run_options(&first);
    options.workers = workers;
    options.assignment = SCHEDULE_DAG;
    assert_ok(schedule_ranks_make(&first, &options, NULL, &all, &error));
    assert_int_equal(all.n, ranks);
    assert_ok(schedule_save(all.schedules, ranks, path, &error));
    schedule_ranks_free(&all);
    program_free(&first);
}

static void a_file_has_the_schedules_of_all_ranks(void **state)
{
    (void)state;
    bench b, from_file;
    program p;
    schedule s;
    float want[MOST_VOCAB], found[MOST_VOCAB];
    open_bench(&b, NULL);
    run(&b, NULL, want);
    save(&b, RANKS, WORKERS);
    open_bench(&from_file, path);
    assert_int_equal(machine_schedule(&from_file.machine)->options.assignment, SCHEDULE_DAG);
    run(&from_file, NULL, found);
    assert_memory_equal(found, want, (size_t)b.program.config.vocab_size * sizeof *want);
    close_bench(&from_file);
    assert_int_equal(schedule_load(path, &b.program, &s, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "schedules of 3 ranks, but there is 1"));
    build_rank(&b, 1, 2, &p);
    assert_int_equal(schedule_load(path, &p, &s, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "schedules of 3 ranks, but there are 2"));
    program_free(&p);
    close_bench(&b);
}

/* Every byte of the file is checked, whichever rank reads it. */
static void damage_of_one_rank_is_seen_by_all(void **state)
{
    (void)state;
    bench b;
    program p;
    schedule s;
    open_bench(&b, NULL);
    save(&b, RANKS, WORKERS);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, -100, SEEK_END);
    fputc(0x55, file);
    fclose(file);
    for (int rank = 0; rank < RANKS; rank++) {
        build_rank(&b, rank, RANKS, &p);
        assert_int_equal(schedule_load(path, &p, &s, &error), QP_FORMAT);
        assert_non_null(strstr(error.message, "damaged"));
        schedule_free(&s);
        program_free(&p);
    }
    close_bench(&b);
}

static void ranks_take_another_schedule(void **state)
{
    (void)state;
    bench b;
    float want[MOST_VOCAB], found[MOST_VOCAB];
    open_bench(&b, NULL);
    const size_t bytes = (size_t)b.program.config.vocab_size * sizeof *want;
    run(&b, NULL, want);
    schedule_options options = schedule_run_options(&b.program);
    options.setting = SCHEDULE_THROUGHPUT;
    options.assignment = SCHEDULE_WAVE;
    assert_ok(machine_reschedule(&b.machine, &options, NULL, &error));
    assert_int_equal(machine_schedule(&b.machine)->options.assignment, SCHEDULE_WAVE);
    run(&b, NULL, found);
    assert_memory_equal(found, want, bytes);
    save(&b, RANKS, WORKERS + 1);
    assert_int_not_equal(machine_reschedule(&b.machine, &options, path, &error), QP_OK);
    assert_non_null(strstr(error.message, "rank 0: "));
    assert_non_null(strstr(error.message, "a schedule of 3 workers"));
    assert_int_equal(machine_schedule(&b.machine)->options.assignment, SCHEDULE_WAVE);
    save(&b, RANKS, WORKERS);
    assert_ok(machine_reschedule(&b.machine, &options, path, &error));
    assert_int_equal(machine_schedule(&b.machine)->options.assignment, SCHEDULE_DAG);
    run(&b, NULL, found);
    assert_memory_equal(found, want, bytes);
    close_bench(&b);
}

/* A pass that is timed. Its record's timings are those of all ranks in turn; free() them. */
static machine_record record_pass(bench *b, int64_t *sizes, int32_t *indptr)
{
    static float logits[MOST_VOCAB];
    const machine_timing timing = {.max_passes = 1};
    size_t places = 0;
    assert_ok(machine_time(&b->machine, &timing, &error));
    for (int r = 0; machine_schedule_of_rank(&b->machine, r); r++)
        places += (size_t)WORKERS * (size_t)machine_schedule_of_rank(&b->machine, r)->longest;
    assert_null(machine_schedule_of_rank(&b->machine, RANKS));
    machine_record record = {.timings = calloc(places, sizeof(instruction_timing))};
    run(b, &record, logits);
    assert_true(record.timed && record.end > record.begin);
    memcpy(sizes, b->batch.sizes.of, sizeof b->batch.sizes.of);
    indptr[0] = 0, indptr[1] = TOKENS, indptr[2] = 0, indptr[3] = 2, indptr[4] = TOKENS - PAGE;
    return record;
}

static timeline_panel measure_rank(const bench *b, const machine_record *record, int rank,
                                   const int64_t *sizes, int32_t *indptr)
{
    const instruction_timing *timings = record->timings;
    timeline_panel panel;
    program_memory memory = {.data = {[PLAN_QO_INDPTR] = indptr,
                                      [PLAN_KV_INDPTR] = indptr + 2,
                                      [PLAN_KV_LAST_PAGE_LEN] = indptr + 4}};
    for (int r = 0; r < rank; r++)
        timings += (size_t)WORKERS * (size_t)machine_schedule_of_rank(&b->machine, r)->longest;
    assert_ok(timeline_measured(machine_schedule_of_rank(&b->machine, rank), timings, record->begin,
                                record->end, &memory, sizes, &panel, &error));
    return panel;
}

/* No rank ends an exchange before all have begun it. */
static void assert_met(const timeline_panel *panel)
{
    int found = 0;
    for (int32_t i = 0; i < panel->count; i++) {
        const timeline_slice *a = &panel->slices[i];
        if (a->help || a->in->opcode == INSTRUCTION_NOOP || !op_exchanges((op_code)a->in->opcode))
            continue;
        found++;
        for (int32_t k = 0; k < panel->count; k++) {
            const timeline_slice *b = &panel->slices[k];
            if (!b->help && b->node == a->node) assert_true(b->work <= a->signal);
        }
    }
    assert_true(found > RANKS && found % RANKS == 0);
}

/* Each critical slice but the first began when the one before had ended, or later. */
static void assert_chained(const timeline_panel *panel)
{
    assert_true(panel->n_chain > 2);
    for (int32_t i = 1; i < panel->n_chain; i++)
        assert_true(panel->slices[panel->chain[i]].work >= panel->slices[panel->chain[i - 1]].work);
}

static void all_ranks_are_timed(void **state)
{
    (void)state;
    bench b;
    int64_t sizes[AXES];
    int32_t indptr[8];
    timeline line;
    timeline_panel panels[RANKS], joined;
    strbuf name = {0};
    open_bench(&b, NULL);
    machine_record record = record_pass(&b, sizes, indptr);
    assert_ok(timeline_create(machine_schedule(&b.machine), "tiny", &line, &error));
    timeline_take_ranks(&line, RANKS);
    assert_int_equal(line.n_tracks, RANKS * WORKERS);
    timeline_print_track(&line, WORKERS + 1, &name);
    assert_string_equal(strbuf_text(&name), "rank 1 worker 1");
    int32_t count = 0;
    for (int r = 0; r < RANKS; r++) {
        panels[r] = measure_rank(&b, &record, r, sizes, indptr);
        for (int32_t i = 0; i < panels[r].count; i++) {
            const timeline_slice *s = &panels[r].slices[i];
            assert_true(s->wait <= s->work && s->work <= s->signal && s->signal <= s->end);
        }
        count += panels[r].count;
    }
    assert_ok(timeline_join_ranks(&line, panels, &joined, &error));
    assert_int_equal(joined.count, count);
    assert_met(&joined);
    assert_chained(&joined);
    for (int r = 0; r < RANKS; r++)
        timeline_panel_free(&panels[r]);
    timeline_panel_free(&joined);
    timeline_free(&line);
    strbuf_free(&name);
    free(record.timings);
    assert_ok(machine_time(&b.machine, NULL, &error));
    close_bench(&b);
}

static void parts_are_of_one_rank(void **state)
{
    (void)state;
    bench b;
    const machine_timing timing = {.max_passes = 1, .sink = (machine_part_sink *)abort};
    open_bench(&b, NULL);
    assert_int_equal(machine_time(&b.machine, &timing, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "one rank, and there are 3"));
    close_bench(&b);
}

static void limits_are_of_all_ranks(void **state)
{
    (void)state;
    bench b;
    machine_profile limits;
    open_bench(&b, NULL);
    assert_ok(machine_limits(&b.machine, &limits, &error));
    assert_true(limits.bytes_per_second > 0 && limits.flops_per_second > 0);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_has_the_schedules_of_all_ranks),
        cmocka_unit_test(damage_of_one_rank_is_seen_by_all),
        cmocka_unit_test(ranks_take_another_schedule),
        cmocka_unit_test(all_ranks_are_timed),
        cmocka_unit_test(parts_are_of_one_rank),
        cmocka_unit_test(limits_are_of_all_ranks),
    };
    int file = mkstemp(path);
    if (file < 0) return 1;
    close(file);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
