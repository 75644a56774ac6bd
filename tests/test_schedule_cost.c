/* Costs of instructions, and the times that the simulation of the queues predicts from them. */
#include "schedule_test.h"

#include "inspect/cost_fit.h"
#include "schedule/predict.h"

#include <math.h>

static bench tiny;

static int open_tiny(void **state)
{
    (void)state;
    bench_open(&tiny, "synthetic:tiny:BF16");
    return 0;
}

static int close_tiny(void **state)
{
    (void)state;
    bench_close(&tiny);
    return 0;
}

/* linear with BF16 weights: 0.1 ns a byte up to 16 FLOPs a byte, as much again for each 16 more. */
static cost_table example(int workers, double alone)
{
    return (cost_table){.device = "cpu",
                        .machine = "an example",
                        .version = "1",
                        .workers = workers,
                        .limits = {10e9, 100e9, 100},
                        .n_curves = 1,
                        .curves = {{.op = OP_LINEAR,
                                    .type = DTYPE_BF16,
                                    .fixed_ns = 300,
                                    .pass_bytes = 1e9,
                                    .n_points = 3,
                                    .points = {{1, 0.1, alone}, {16, 0.1, alone}, {64, 0.4, 1}}}}};
}

static cost_estimate linear(const cost_table *table, double bytes, double intensity, double pass)
{
    return cost_estimate_of(table, &table->limits, table->workers, OP_LINEAR, DTYPE_BF16,
                            (op_cost){.flops = bytes * intensity, .bytes = bytes}, pass, false);
}

static void assert_near(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%.12g, expected %.12g", found, expected);
}

static void test_costs_follow_the_curve(void **state)
{
    (void)state;
    cost_table table = example(2, 0.75);
    assert_near(linear(&table, 1000, 0.5, 1e9).ns, 100); /* below the first point: bytes */
    assert_near(linear(&table, 1000, 4, 1e9).ns, 100);
    assert_near(linear(&table, 1000, 32, 1e9).ns, 200);  /* between: straight in logarithms */
    assert_near(linear(&table, 1000, 128, 1e9).ns, 800); /* above the last: FLOPs */
    assert_near(linear(&table, 1000, 4, 1e9).fixed_ns, 300);
    assert_true(linear(&table, 1000, 4, 1e9).memory_bound);
    assert_false(linear(&table, 1000, 64, 1e9).memory_bound);
    assert_near(linear(&table, 1000, 4, 1e9).alone, 0.75);
    assert_near(linear(&table, 1000, 32, 1e9).alone, 0.875);
}

static void test_what_was_not_measured_costs_by_the_limits(void **state)
{
    (void)state;
    cost_table table = example(2, 1);
    op_cost work = {.flops = 1e6, .bytes = 1e6};
    for (int with = 0; with < 2; with++) {
        cost_estimate cost = cost_estimate_of(with ? &table : NULL, &table.limits, 2, OP_RMS_NORM,
                                              DTYPE_F32, work, 1e9, false);
        assert_near(cost.ns, 200000);
        assert_true(cost.memory_bound && cost.fixed_ns == 0 && cost.alone == 1);
    }
    work.flops = 1e8;
    cost_estimate cost =
        cost_estimate_of(&table, &table.limits, 2, OP_LINEAR, DTYPE_Q8_0, work, 1e9, false);
    assert_near(cost.ns, 2e6);
    assert_false(cost.memory_bound);
}

static void test_weights_in_a_cache_come_faster(void **state)
{
    (void)state;
    cost_table table = example(2, 1);
    table.n_reads = 3;
    table.reads[0] = (cost_read){1e7, 40e9};
    table.reads[1] = (cost_read){1e9, 20e9};
    table.reads[2] = (cost_read){4e9, 20e9};
    assert_near(linear(&table, 1000, 1, 1e9).ns, 100);
    assert_near(linear(&table, 1000, 1, 9e9).ns, 100);
    assert_near(linear(&table, 1000, 1, 1e6).ns, 50);
    assert_near(linear(&table, 1000, 1, 1e8).ns, 100 / sqrt(2));
    /* where arithmetic takes four times as long as reading would, little comes of it */
    assert_near(linear(&table, 1000, 64, 1e6).ns, 400 * (1 - 0.5 / 16));
}

/* Two workers. Where memory limits them, all take as long as their bytes at the present rate, but
 * at least as long as one alone; one alone as long as its core reads. */
static void test_costs_follow_the_rate_of_memory(void **state)
{
    (void)state;
    const cost_rates then = {40e9, 30e9};
    const cost_point read = {1, 0.05, 0.7}; /* 40 GB/s; 28.6 alone */
    assert_near(cost_at_rates(read, 2, then, then).ns_per_byte, 0.05);
    assert_near(cost_at_rates(read, 2, then, then).alone, 0.7);
    const cost_point slower = cost_at_rates(read, 2, then, (cost_rates){20e9, 30e9});
    assert_near(slower.ns_per_byte, 0.1);
    assert_near(slower.alone, 0.35);
    const cost_point faster = cost_at_rates(read, 2, then, (cost_rates){80e9, 30e9});
    assert_near(faster.ns_per_byte, 0.035);
    assert_near(faster.alone, 1);
    assert_near(cost_at_rates(read, 2, then, (cost_rates){80e9, 60e9}).ns_per_byte, 0.025);
    /* Arithmetic, and data in caches, take what they took. */
    const cost_point works = {50, 0.5, 1}, cached = {1, 0.02, 0.6};
    assert_near(cost_at_rates(works, 2, then, (cost_rates){20e9, 15e9}).ns_per_byte, 0.5);
    assert_near(cost_at_rates(cached, 2, then, (cost_rates){20e9, 15e9}).ns_per_byte, 0.02);
    /* It was not limited, but is where the rate falls below what it reads. */
    assert_near(cost_at_rates(works, 2, then, (cost_rates){2e9, 2e9}).ns_per_byte, 1);
    /* Rates that are not known change nothing. */
    assert_near(cost_at_rates(read, 2, then, (cost_rates){0}).ns_per_byte, 0.05);
    assert_near(cost_at_rates(read, 2, (cost_rates){0}, then).ns_per_byte, 0.05);
    /* A table predicts for the rates of now. */
    cost_table table = example(2, 1);
    const double usual = linear(&table, 1000, 1, 1e9).ns;
    table.rates = (cost_rates){2e9 * 1000 / usual, 1e9 * 1000 / usual};
    table.now = (cost_rates){table.rates.all / 2, table.rates.one};
    assert_near(linear(&table, 1000, 1, 1e9).ns, 2 * usual);
}

static void build(const cost_table *costs, int workers, schedule_assignment how, schedule *s)
{
    qp_error error;
    schedule_options options = {.workers = workers, .assignment = how, .costs = costs};
    assert_ok(schedule_build(&tiny.program, &options, s, &error));
    assert_null(s->options.costs);
}

static schedule_prediction predict(const schedule *s)
{
    qp_error error;
    schedule_prediction p;
    assert_ok(schedule_predict(s, &p, &error));
    for (int w = 0; w < s->options.workers; w++) {
        double free_at = 0;
        for (int i = 0; i < s->length[w]; i++) {
            size_t at = (size_t)w * (size_t)s->longest + (size_t)i;
            assert_true(p.begin[at] >= free_at - 1e-3 && p.end[at] >= p.begin[at]);
            assert_true(p.end[at] <= p.total);
            free_at = p.end[at];
        }
    }
    assert_true(p.critical_path <= p.total + 1e-3);
    return p;
}

/* The small model's points hold for passes as small, the large one's for passes as large; between
 * them the rates of plain reads decide, or where these are alike the bytes. */
static void test_small_models_have_points_of_their_own(void **state)
{
    (void)state;
    cost_table table = example(2, 0.75);
    cost_curve *curve = &table.curves[0];
    curve->small_bytes = 1e8;
    curve->n_small = 2;
    curve->small[0] = (cost_point){1, 0.025, 1};
    curve->small[1] = (cost_point){64, 0.4, 1};
    table.n_reads = 3;
    table.reads[0] = (cost_read){1e8, 40e9};
    table.reads[1] = (cost_read){2e8, 20e9};
    table.reads[2] = (cost_read){1e9, 10e9};
    assert_near(linear(&table, 1000, 1, 1e9).ns, 100);
    assert_near(linear(&table, 1000, 1, 4e9).ns, 100);
    assert_near(linear(&table, 1000, 1, 5e7).ns, 25);
    assert_near(linear(&table, 1000, 1, 2e8).ns, 50); /* half way from 10 to 40 GB/s */
    assert_near(linear(&table, 1000, 1, 2e8).alone, 0.875);
    assert_near(linear(&table, 1000, 64, 1e8).ns, 400);
    table.reads[0].bytes_per_second = table.reads[1].bytes_per_second = 10e9;
    assert_near(linear(&table, 1000, 1, sqrt(1e8 * 1e9)).ns, 50);
    assert_near(linear(&table, 1000, 1, 0).ns, 100);
}

/* Tiles change the curve by a factor that was measured at some intensities, and holds beyond them.
 */
static void test_tiles_have_points_of_their_own(void **state)
{
    (void)state;
    cost_table table = example(2, 0.75);
    cost_curve *curve = &table.curves[0];
    const op_cost work = {.flops = 16000, .bytes = 1000}, more = {.flops = 64000, .bytes = 1000};
    assert_near(
        cost_estimate_of(&table, &table.limits, 2, OP_LINEAR, DTYPE_BF16, work, 1e9, true).ns,
        100); /* none were measured */
    curve->n_tiles = 1;
    curve->tiles[0] = (cost_point){16, 0.08, 0.9};
    const cost_estimate tile =
        cost_estimate_of(&table, &table.limits, 2, OP_LINEAR, DTYPE_BF16, work, 1e9, true);
    assert_near(tile.ns, 80);
    assert_near(tile.alone, 0.9);
    assert_near(
        cost_estimate_of(&table, &table.limits, 2, OP_LINEAR, DTYPE_BF16, more, 1e9, true).ns, 320);
    assert_near(linear(&table, 1000, 16, 1e9).ns, 100);
}

static void test_a_table_for_other_workers_is_not_used(void **state)
{
    (void)state;
    cost_table table = example(2, 1);
    schedule s;
    build(&table, 2, SCHEDULE_RR, &s);
    assert_true(s.options.profile.signal_ns == 100);
    schedule_free(&s);
    build(&table, 3, SCHEDULE_RR, &s);
    assert_true(s.options.profile.signal_ns == 200);
    schedule_free(&s);
}

/* One worker that does all while the other has nothing runs as if alone. */
static void test_who_works_alone_is_faster(void **state)
{
    (void)state;
    double total[3];
    const double alone[] = {1, 0.75, 0.5};
    for (int i = 0; i < 3; i++) {
        cost_table table = example(2, alone[i]);
        schedule s;
        qp_error error;
        const schedule_options options = {.workers = 2,
                                          .assignment = SCHEDULE_POOL,
                                          .memory_fraction = 0.5, /* of two workers: one each */
                                          .costs = &table};
        assert_ok(schedule_build(&tiny.program, &options, &s, &error));
        double linear_ns = 0, others_ns = 0;
        for (int n = 0; n < s.length[0]; n++) {
            const instruction *in = schedule_queue(&s, 0) + n;
            *(in->opcode == OP_LINEAR ? &linear_ns : &others_ns) += in->cost_ns;
        }
        schedule_prediction p = predict(&s);
        total[i] = p.total;
        assert_true(p.busy[1] < p.busy[0] / 10);
        assert_true(p.busy[0] <= linear_ns * alone[i] * 1.1 + others_ns);
        prediction_free(&p);
        schedule_free(&s);
    }
    assert_true(total[0] > total[1] && total[1] > total[2]);
}

/* Passes of hours, at odd moments: what is left of an instruction may round to nothing. */
static void test_long_passes_end(void **state)
{
    (void)state;
    for (int workers = 2; workers <= 5; workers++) {
        cost_table table = example(workers, 0.7 + 0.01 * workers);
        for (int i = 0; i < table.curves[0].n_points; i++)
            table.curves[0].points[i].ns_per_byte *= 31415.9;
        for (int assignment = 0; schedule_assignment_name(assignment); assignment++) {
            schedule s;
            build(&table, workers, (schedule_assignment)assignment, &s);
            for (int n = 0; n < s.n_nodes; n++)
                s.costs[n].alone = 0.61F + 0.003F * (float)n;
            schedule_prediction p = predict(&s);
            assert_true(p.total > 1e9);
            prediction_free(&p);
            schedule_free(&s);
        }
    }
}

/* Instructions that take twice as long: so does the pass, but for its signals. */
static void check_replay(const schedule *s, double total)
{
    qp_error error;
    schedule_prediction p;
    size_t places = (size_t)s->options.workers * (size_t)s->longest;
    double *ns = calloc(places, sizeof *ns);
    assert_non_null(ns);
    for (size_t i = 0; i < places; i++)
        ns[i] = 2.0 * s->instructions[i].cost_ns;
    assert_ok(schedule_replay(s, ns, &p, &error));
    assert_true(p.total > 1.5 * total && p.total < 2 * total);
    prediction_free(&p);
    free(ns);
}

/* What shares nothing ends at the same times whichever way it is run. */
static void test_both_ways_agree(void **state)
{
    (void)state;
    for (int assignment = 0; schedule_assignment_name(assignment); assignment++) {
        cost_table table = example(3, 1);
        schedule s;
        build(&table, 3, (schedule_assignment)assignment, &s);
        schedule_prediction apart = predict(&s);
        for (int n = 0; n < s.n_nodes; n++)
            s.costs[n].alone = 1 - 1e-7F;
        schedule_prediction together = predict(&s);
        assert_true(fabs(apart.total - together.total) < 1e-5 * apart.total);
        for (int w = 0; w < 3; w++) {
            for (int i = 0; i < s.length[w]; i++) {
                size_t at = (size_t)w * (size_t)s.longest + (size_t)i;
                assert_true(fabs(apart.end[at] - together.end[at]) < 1e-5 * apart.total);
            }
        }
        prediction_free(&apart);
        check_replay(&s, together.total);
        prediction_free(&together);
        schedule_free(&s);
    }
}

static cost_table read_back(const strbuf *text)
{
    qp_error error;
    cost_table table;
    assert_ok(cost_parse(strbuf_text(text), text->length, "costs", &table, &error));
    return table;
}

static void test_a_table_is_read_as_it_was_written(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0}, again = {0};
    cost_table table = example(2, 0.71);
    table.n_reads = 2;
    table.reads[0] = (cost_read){1e7 / 3, 40e9};
    table.reads[1] = (cost_read){1e9, 2e10 / 7};
    table.curves[0].n_small = 1;
    table.curves[0].small_bytes = 1e8;
    table.curves[0].small[0] = (cost_point){1, 0.02 / 3, 0.9};
    table.curves[0].n_tiles = 1;
    table.curves[0].tiles[0] = (cost_point){100, 0.3 / 7, 0.5};
    table.curves[0].n_small_tiles = 1;
    table.curves[0].small_tiles[0] = (cost_point){100, 0.5 / 7, 0.5};
    table.rates = (cost_rates){3e10, 2e10};
    assert_ok(cost_print(&table, &text, &error));
    cost_table found = read_back(&text);
    assert_ok(cost_print(&found, &again, &error));
    assert_string_equal(strbuf_text(&text), strbuf_text(&again));
    assert_true(found.workers == 2 && found.n_curves == 1 && found.n_reads == 2);
    assert_true(found.reads[1].bytes_per_second == 2e10 / 7);
    assert_true(found.curves[0].points[1].alone == 0.71);
    assert_true(found.curves[0].n_small == 1 && found.curves[0].small_bytes == 1e8);
    assert_true(found.curves[0].small[0].ns_per_byte == 0.02 / 3);
    assert_true(found.rates.all == 3e10 && found.rates.one == 2e10 && found.now.all == 0);
    assert_true(found.curves[0].n_small_tiles == 1 &&
                found.curves[0].small_tiles[0].ns_per_byte == 0.5 / 7);
    assert_true(found.curves[0].n_tiles == 1 && found.curves[0].tiles[0].ns_per_byte == 0.3 / 7);
    assert_non_null(cost_find(&found, OP_LINEAR, DTYPE_BF16));
    assert_null(cost_find(&found, OP_LINEAR, DTYPE_F16));
    strbuf_free(&text);
    strbuf_free(&again);
}

static void test_a_damaged_table_is_refused(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0};
    cost_table table = example(2, 0.71), found;
    assert_ok(cost_print(&table, &text, &error));
    for (size_t i = 0; i < text.length; i++) {
        text.data[i] ^= 1;
        assert_int_equal(cost_parse(text.data, text.length, "costs", &found, &error), QP_FORMAT);
        text.data[i] ^= 1;
        assert_int_equal(cost_parse(text.data, i, "costs", &found, &error), QP_FORMAT);
    }
    strbuf_free(&text);
}

/* What is whole, but says what cannot be. */
static void test_an_impossible_table_is_refused(void **state)
{
    (void)state;
    cost_table bad[8];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        bad[i] = example(2, 0.71);
    bad[0].workers = 0;
    bad[1].workers = 1025;
    bad[2].limits.bytes_per_second = -1;
    bad[3].curves[0].points[2].intensity = 16;
    bad[4].curves[0].points[0].ns_per_byte = 0;
    bad[5].curves[0].n_points = 0;
    bad[6].curves[0].fixed_ns = NAN;
    bad[7].machine[0] = '\0';
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qp_error error = {0};
        strbuf text = {0};
        cost_table found;
        assert_ok(cost_print(&bad[i], &text, &error));
        assert_int_equal(cost_parse(text.data, text.length, "costs", &found, &error), QP_FORMAT);
        assert_non_null(strstr(error.message, "costs: "));
        strbuf_free(&text);
    }
}

/* Samples that lie on a curve give that curve back. */
static void test_samples_give_their_curve(void **state)
{
    (void)state;
    cost_samples samples = {0};
    cost_table table = {.workers = 2};
    cost_sample about = {.op = OP_LINEAR, .type = DTYPE_Q8_0, .pass_bytes = 1e9};
    for (int i = 1; i <= 4; i++) {
        op_cost work = {.flops = 2e6 * i, .bytes = 1e6 * i};
        assert_true(cost_add(&samples, &about, work, 500 + 0.1 * work.bytes));
        about.alone = true;
        assert_true(cost_add(&samples, &about, work, 500 + 0.08 * work.bytes));
        about.alone = false;
        work.flops *= 100;
        assert_true(cost_add(&samples, &about, work, 500 + 0.3 * work.bytes));
        about.small = true;
        work = (op_cost){.flops = 2e5 * i, .bytes = 1e5 * i};
        assert_true(cost_add(&samples, &about, work, 500 + 0.02 * work.bytes));
        about.small = false;
        about.tiled = true;
        work = (op_cost){.flops = 2e8 * i, .bytes = 1e6 * i};
        assert_true(cost_add(&samples, &about, work, 500 + 0.25 * work.bytes));
        about.tiled = false;
        about.tiny = true;
        work = (op_cost){.flops = 2e3 * i, .bytes = 1e3 * i};
        assert_true(cost_add(&samples, &about, work, 500 + 0.05 * work.bytes));
        about.tiny = false;
    }
    cost_fit(&samples, &table);
    const cost_curve *curve = cost_find(&table, OP_LINEAR, DTYPE_Q8_0);
    assert_non_null(curve);
    assert_int_equal(table.n_curves, 1);
    assert_int_equal(curve->n_points, 2);
    assert_true(curve->pass_bytes == 1e9);
    assert_near(curve->fixed_ns, 500);
    assert_near(curve->points[0].intensity, 2);
    assert_near(curve->points[0].ns_per_byte, 0.1);
    assert_near(curve->points[0].alone, 0.8);
    assert_near(curve->points[1].intensity, 200);
    assert_near(curve->points[1].ns_per_byte, 0.3);
    assert_near(curve->points[1].alone, 1);
    assert_int_equal(curve->n_small, 1);
    assert_near(curve->small[0].ns_per_byte, 0.02);
    assert_int_equal(curve->n_tiles, 1);
    assert_near(curve->tiles[0].ns_per_byte, 0.25);
    free(samples.of);
}

/* Instructions of one size: what they take beyond their bytes is their own. */
static void test_equal_samples_give_their_curve(void **state)
{
    (void)state;
    cost_samples samples = {0};
    cost_table table = {.workers = 2};
    cost_sample about = {.op = OP_RMS_NORM, .type = DTYPE_F32};
    for (int i = 0; i < 9; i++) {
        about.tiny = i % 3 == 0;
        op_cost work = {.flops = about.tiny ? 1e3 : 1e5, .bytes = about.tiny ? 1e3 : 1e5};
        assert_true(cost_add(&samples, &about, work, 200 + 0.04 * work.bytes));
    }
    cost_fit(&samples, &table);
    const cost_curve *curve = cost_find(&table, OP_RMS_NORM, DTYPE_F32);
    assert_non_null(curve);
    assert_near(curve->fixed_ns, 200);
    assert_near(curve->points[0].ns_per_byte, 0.04);
    free(samples.of);
}

/* Attention over two contexts: the line through them, whatever the tiny model's cost; at the mean
 * rate of memory. */
static void test_contexts_give_a_cost_of_their_own(void **state)
{
    (void)state;
    cost_samples samples = {0};
    cost_table table = {.workers = 2, .rates = {40e9, 40e9}};
    cost_sample about = {.op = OP_ATTENTION_PARTIAL, .type = DTYPE_F16, .tiny = true};
    assert_true(cost_add(&samples, &about, (op_cost){.flops = 1e4, .bytes = 1e4}, 500));
    for (int i = 0; i < 4; i++) {
        const op_cost work = {.flops = i % 2 ? 4e6 : 1e6, .bytes = i % 2 ? 4e6 : 1e6};
        about = (cost_sample){.op = OP_ATTENTION_PARTIAL,
                              .type = DTYPE_F16,
                              .alone = i > 1,
                              .rates = {i < 2 ? 20e9 : 0, i < 2 ? 0 : 40e9}};
        assert_true(cost_add(&samples, &about, work, 8000 + (i < 2 ? 0.1 : 0.03) * work.bytes));
    }
    cost_fit(&samples, &table);
    const cost_curve *curve = cost_find(&table, OP_ATTENTION_PARTIAL, DTYPE_F16);
    assert_non_null(curve);
    assert_near(curve->fixed_ns, 8000);
    assert_near(curve->points[0].ns_per_byte, 0.05);
    assert_near(curve->points[0].alone, 0.6);
    free(samples.of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs_follow_the_curve),
        cmocka_unit_test(test_what_was_not_measured_costs_by_the_limits),
        cmocka_unit_test(test_weights_in_a_cache_come_faster),
        cmocka_unit_test(test_costs_follow_the_rate_of_memory),
        cmocka_unit_test(test_small_models_have_points_of_their_own),
        cmocka_unit_test(test_tiles_have_points_of_their_own),
        cmocka_unit_test(test_a_table_for_other_workers_is_not_used),
        cmocka_unit_test(test_who_works_alone_is_faster),
        cmocka_unit_test(test_long_passes_end),
        cmocka_unit_test(test_both_ways_agree),
        cmocka_unit_test(test_samples_give_their_curve),
        cmocka_unit_test(test_equal_samples_give_their_curve),
        cmocka_unit_test(test_contexts_give_a_cost_of_their_own),
        cmocka_unit_test(test_a_table_is_read_as_it_was_written),
        cmocka_unit_test(test_a_damaged_table_is_refused),
        cmocka_unit_test(test_an_impossible_table_is_refused),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
