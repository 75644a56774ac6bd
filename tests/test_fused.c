/* The fused plans, compared with the plan that they fuse: with one part the same bits, kernel for
 * kernel; with several parts, or with sums in fixed point, the same up to rounding, however a
 * prompt is cut and whatever other sequences are in the batch.
 */
#include "schedule_test.h"

#include "base/cpu.h"

#include <math.h>

enum { CONTEXT = 300 };

static qp_error error;

/* A model's plan in one form, on its own memory; the two sequences are each other's neighbours. */
static void open_form(bench *b, const char *path, int64_t parts, uint32_t features)
{
    bench_open_features(b, path, parts, CONTEXT, features);
}

/* New tokens of each sequence in a batch; the logits are those of its last token(s). */
static void run(bench *b, int64_t first, int64_t second)
{
    bench_fill(b, first, second);
    bench_run(b);
}

static size_t logits_bytes(const bench *b)
{
    return (size_t)(batch_outputs(&b->batch) * b->program.config.vocab_size) * sizeof(float);
}

static void assert_same(const bench *a, const bench *b)
{
    assert_memory_equal(machine_logits(&a->machine), machine_logits(&b->machine), logits_bytes(a));
    const size_t bytes = a->program.tensors[PLAN_K_CACHE].bytes;
    for (int64_t layer = 0; layer < a->program.config.n_layers; layer++) {
        for (int id = PLAN_K_CACHE; id <= PLAN_V_CACHE; id++) {
            void *cache = bench_read(a, (plan_tensor_id)id, layer, bytes);
            assert_true(bench_has(b, (plan_tensor_id)id, layer, cache, bytes));
            free(cache);
        }
    }
}

static void check_same_bits(const char *path, uint32_t features)
{
    static const int64_t counts[][2] = {{1, 0}, {1, 3}, {70, 0}, {1, 1}, {0, 40}, {13, 1}, {1, 1}};
    bench apart, fused;
    open_form(&apart, path, 0, features);
    open_form(&fused, path, 1, features);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        run(&apart, counts[i][0], counts[i][1]);
        run(&fused, counts[i][0], counts[i][1]);
        assert_same(&apart, &fused);
    }
    bench_close(&apart);
    bench_close(&fused);
}

static void one_part_gives_the_same_bits(void **state)
{
    (void)state;
    static const char *const types[] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char path[64];
        snprintf(path, sizeof path, "synthetic:tiny:%s", types[i]);
        if (cpu_features(0) & CPU_AVX2) check_same_bits(path, cpu_features(0));
    }
}

static void at_every_level(void **state)
{
    (void)state;
    static const char *const off[] = {"amx_tile", "amx_tile,avx512_vnni", "avx512f"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        uint32_t mask;
        assert_ok(cpu_features_parse(off[i], &mask, &error));
        if (!(cpu_features(mask) & CPU_AVX2)) continue;
        check_same_bits("synthetic:tiny:BF16", cpu_features(mask));
        check_same_bits("synthetic:tiny:Q8_0", cpu_features(mask));
    }
}

static double distance(const float *a, const float *b, size_t n)
{
    double sum = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(sum / norm);
}

/* References and fast kernels, one part and several. */
static void check_forms(const char *path, double most)
{
    static const int64_t counts[][2] = {{150, 0}, {1, 60}, {1, 1}};
    bench apart, split, fast, sums, fast_sums;
    open_form(&apart, path, 0, 0);
    open_form(&split, path, 3, 0);
    open_form(&fast, path, 5, cpu_features(0));
    open_form(&sums, path, BENCH_SUMS + 1, 0);
    open_form(&fast_sums, path, BENCH_SUMS + 4, cpu_features(0));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        run(&apart, counts[i][0], counts[i][1]);
        run(&split, counts[i][0], counts[i][1]);
        run(&fast, counts[i][0], counts[i][1]);
        run(&sums, counts[i][0], counts[i][1]);
        run(&fast_sums, counts[i][0], counts[i][1]);
        const float *expected = machine_logits(&apart.machine);
        size_t n = logits_bytes(&apart) / sizeof(float);
        assert_true(distance(machine_logits(&split.machine), expected, n) < most);
        assert_true(distance(machine_logits(&fast.machine), expected, n) < most);
        assert_true(distance(machine_logits(&sums.machine), expected, n) < most);
        assert_true(distance(machine_logits(&fast_sums.machine), expected, n) < most);
    }
    bench_close(&sums);
    bench_close(&fast_sums);
    bench_close(&apart);
    bench_close(&split);
    bench_close(&fast);
}

static void forms_agree(void **state)
{
    (void)state;
    check_forms("synthetic:tiny:F32", 1e-5);
}

/* Biases, norms of q and k, layers without RoPE, and windows shorter than the context. */
static void forms_of_families_agree(void **state)
{
    (void)state;
    static const char *const families[] = {"qwen2",
                                           "qwen3",
                                           "qwen3-bias",
                                           "smollm3",
                                           "mistral",
                                           "qwen2-window-last",
                                           "llama-attention-bias",
                                           "llama-mlp-bias"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char path[64];
        snprintf(path, sizeof path, "golden/models/%s", families[i]);
        check_forms(path, 1e-5);
    }
}

/* Logits of a prompt's last token: whole, in chunks, beside a neighbour. */
static void chunks_and_neighbours_are_not_seen(void **state)
{
    (void)state;
    enum { PROMPT = 147 };
    static const int64_t steps[][2] = {{1, 7}, {64, 1}, {81, 100}, {1, 1}};
    static const int64_t forms[] = {1, 4, BENCH_SUMS + 1, BENCH_SUMS + 4};
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        bench whole, cut;
        open_form(&whole, "synthetic:tiny:Q8_0", forms[f], cpu_features(0));
        open_form(&cut, "synthetic:tiny:Q8_0", forms[f], cpu_features(0));
        run(&whole, PROMPT, 0);
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
            run(&cut, steps[i][0], steps[i][1]);
        assert_memory_equal(machine_logits(&whole.machine), machine_logits(&cut.machine),
                            (size_t)whole.program.config.vocab_size * sizeof(float));
        bench_close(&whole);
        bench_close(&cut);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_part_gives_the_same_bits),
        cmocka_unit_test(at_every_level),
        cmocka_unit_test(forms_agree),
        cmocka_unit_test(forms_of_families_agree),
        cmocka_unit_test(chunks_and_neighbours_are_not_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
