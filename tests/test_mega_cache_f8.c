/* The megakernel over a KV cache in FP8: it stores the bits of the serial machine, has its logits
 * and makes its tokens. */
#include "engine_test.h"
#include "gpu_test.h"
#include "likeliest.h"
#include "machines_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 40, MANY = 700 /* beyond what a block attends to by itself */ };

typedef struct read_tokens {
    float *logits; /* of the last token */
    size_t vocab;
    uint8_t *cache; /* keys, then values, of all layers */
    size_t cache_bytes, layer_bytes;
} read_tokens;

static qp_engine_options f8_options(const char *model, const char *device, const char *exec)
{
    return (qp_engine_options){.size = sizeof(qp_engine_options),
                               .model = model,
                               .device = device,
                               .exec = exec,
                               .kv_type = "F8",
                               .context = 1024};
}

/* Reads n tokens one by one. */
static read_tokens read_by(qp_engine_options options, int n)
{
    qp_engine *engine = open_engine(options);
    qp_session *session = open_session(engine);
    const size_t layer_bytes = engine->program.tensors[PLAN_K_CACHE].bytes;
    const int64_t layers = engine->program.config.n_layers;
    read_tokens r = {.vocab = (size_t)qp_engine_get_info(engine)->vocab_size,
                     .layer_bytes = layer_bytes,
                     .cache_bytes = 2 * (size_t)layers * layer_bytes};
    qp_error error;
    for (int i = 0; i < n; i++) {
        const int32_t id = (i * 97 + 5) % 500;
        free(r.logits);
        r.logits = eval_rows(engine, session, &id, 1);
    }
    r.cache = calloc(1, r.cache_bytes);
    assert_non_null(r.cache);
    for (int64_t i = 0; i < 2 * layers; i++)
        assert_ok(machine_read(engine_memory(engine), i < layers ? PLAN_K_CACHE : PLAN_V_CACHE,
                               i % layers, r.cache + (size_t)i * layer_bytes, layer_bytes, &error));
    qp_session_close(session);
    qp_engine_close(engine);
    return r;
}

static double logit_difference(const read_tokens *a, const read_tokens *b)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a->vocab; i++) {
        const double d = (double)b->logits[i] - (double)a->logits[i];
        difference += d * d;
        norm += (double)a->logits[i] * (double)a->logits[i];
    }
    return sqrt(difference / norm);
}

/* How many numbers of the first layer's cache, of keys or of values, differ: where a sum is nearly
 * between two numbers of FP8, one machine may take the one and the other its neighbour. A neighbour
 * makes others in the layers after it. */
static size_t count_other_numbers(const read_tokens *a, const read_tokens *b, bool values)
{
    const size_t first = values ? a->cache_bytes / 2 : 0;
    size_t others = 0;
    for (size_t i = first; i < first + a->layer_bytes; i++)
        others += a->cache[i] != b->cache[i];
    return others;
}

/* Heads of 64 and of 128; all kinds of weights. The machine `cuda` rounds x to BF16 for weights in
 * BF16, so its cache differs: a neighbour in one layer makes others in those after it. */
static void it_reads_and_writes_what_other_machines_do(void **state)
{
    (void)state;
    require_gpu();
    static const struct {
        const char *model, *device, *exec;
        int tokens;
        double most;   /* of the logits' difference, in their norm */
        size_t one_of; /* of so many numbers of a cache one may differ; 0: all may */
    } cases[] = {{"synthetic:tiny:BF16", "cpu", "serial", FEW, 1e-4, 10000},
                 {"synthetic:tiny:BF16", "cpu", "serial", MANY, 1e-4, 10000},
                 {"synthetic:tiny:F16", "cpu", "serial", FEW, 1e-4, 10000},
                 {"synthetic:tiny:Q8_0", "cpu", "serial", FEW, 1e-4, 10000},
                 {"synthetic:tiny:Q4_K+Q6_K", "cpu", "serial", MANY, 1e-4, 10000},
                 {"synthetic:tiny:F8", "cpu", "serial", FEW, 1e-4, 10000},
                 {"synthetic:tiny-qwen2:BF16", "cpu", "serial", MANY, 1e-3, 10000},
                 {"synthetic:tiny-qwen3:BF16", "cpu", "serial", MANY, 1e-3, 10000},
                 {"synthetic:tiny-smollm3:Q8_0", "cpu", "serial", FEW, 1e-4, 10000},
                 {"synthetic:tiny-mistral:BF16", "cpu", "serial", MANY, 1e-3, 10000},
                 {"synthetic:internlm2-1.8b:BF16", "cuda", "cuda", MANY, 2e-2, 0},
                 {"synthetic:internlm2-1.8b:Q8_0", "cuda", "cuda", MANY, 2e-3, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        qp_engine_options options = f8_options(cases[c].model, cases[c].device, cases[c].exec);
        if (strcmp(cases[c].device, "cpu") == 0) options.activations = "float";
        read_tokens a = read_by(options, cases[c].tokens);
        read_tokens b = read_by(f8_options(cases[c].model, "cuda", "megakernel"), cases[c].tokens);
        assert_int_equal(a.cache_bytes, b.cache_bytes);
        const double difference = logit_difference(&a, &b);
        const size_t keys = count_other_numbers(&a, &b, false);
        const size_t values = count_other_numbers(&a, &b, true);
        print_message("%s, %d tokens: %.2g of the logits' norm, %zu keys and %zu values of %zu\n",
                      cases[c].model, cases[c].tokens, difference, keys, values, a.layer_bytes);
        assert_true(difference < cases[c].most); /* not NaN */
        assert_true(keys * cases[c].one_of < a.layer_bytes);
        assert_true(values * cases[c].one_of < a.layer_bytes);
        free(a.logits);
        free(a.cache);
        free(b.logits);
        free(b.cache);
    }
}

static void it_makes_the_tokens_of_the_serial_machine(void **state)
{
    (void)state;
    require_gpu();
    token_list expected, found;
    qp_error error;
    qp_engine *engine = open_engine(f8_options("synthetic:tiny:BF16", "cpu", "serial"));
    assert_ok(generate(engine, MANY, 1, &expected, &error));
    qp_engine_close(engine);
    static const int64_t intervals[] = {1, 50, 128};
    for (int i = 0; i < 3; i++) {
        engine = open_engine(f8_options("synthetic:tiny:BF16", "cuda", "megakernel"));
        assert_ok(generate(engine, MANY, intervals[i], &found, &error));
        for (int j = 0; j < MANY; j++)
            if (expected.of[j] != found.of[j])
                fail_msg("token %d of %d: expected %d, found %d", j, MANY, expected.of[j],
                         found.of[j]);
        qp_engine_close(engine);
    }
}

static void one_sequence_takes_it(void **state)
{
    (void)state;
    require_gpu();
    static const struct {
        const char *model;
        bool takes;
    } cases[] = {{"synthetic:tiny:BF16", true},
                 {"synthetic:tiny:Q4_0", true},
                 {"synthetic:tiny:F8", true},
                 {"synthetic:tiny:F16", true},
                 {"synthetic:tiny:F32", false}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        qp_engine *engine = open_engine(f8_options(cases[c].model, "cuda", NULL));
        assert_int_equal(mega_of(engine) != NULL, cases[c].takes);
        qp_engine_close(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_reads_and_writes_what_other_machines_do),
        cmocka_unit_test(it_makes_the_tokens_of_the_serial_machine),
        cmocka_unit_test(one_sequence_takes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
