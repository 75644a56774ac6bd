/* Packed weights: what packing keeps in memory, and what it releases. */
#include "test.h"

#include "base/cpu.h"
#include "lower/lower.h"
#include "vm/pack.h"

#include <string.h>
#include <unistd.h>

static qp_error error;

static program plan_of(const model *m, bool fuse)
{
    program p;
    plan_options options = plan_default_options(model_get_config(m));
    options.fuse = fuse;
    options.context = 64;
    options.max_tokens = 16;
    assert_ok(lower_build(model_get_config(m), m, &options, &p, &error));
    return p;
}

/* Whether an address can be read: the system says so without a fault. */
static bool can_read(const void *address)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    bool can = write(ends[1], address, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return can;
}

static const char *const models[] = {"synthetic:tiny",
                                     "synthetic:tiny:Q8_0",
                                     "synthetic:tiny:Q4_K",
                                     "golden/models/llama-tied-gqa3",
                                     "golden/models/llama-tied-gqa3.gguf",
                                     "golden/models/internlm2"};
enum { N_MODELS = sizeof models / sizeof *models };

/* The bytes predicted before any weight is read are those that are allocated. */
static void bytes_are_known_before(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        model *sizes, *whole;
        model_options sizes_only = {.sizes_only = true};
        assert_ok(model_open(models[i], &sizes_only, &sizes, &error));
        assert_ok(model_open(models[i], NULL, &whole, &error));
        assert_true(model_has_weights(whole));
        for (int way = 0; way < 4; way++) {
            const bool vectors = way % 2;
            program p = plan_of(sizes, way / 2);
            executor before, x;
            progress silent = {0};
            uint32_t features = vectors ? cpu_features(0) : 0;
            assert_ok(executor_choose(&before, &p, features, NULL, &error));
            program_attach(&p, whole);
            assert_ok(executor_init(&x, &p, NULL, features, NULL, NULL, &silent, &error));
            uint64_t told = executor_weight_bytes(&before);
            assert_int_equal(told, executor_weight_bytes(&x));
            assert_true(told >= x.packed.bytes);
            /* References read everything as it is stored, a tied table for its two uses. */
            if (!vectors) assert_true(told >= model_weight_bytes(whole) && !x.packed.data);
            executor_free(&before);
            executor_free(&x);
            program_free(&p);
        }
        model_close(sizes);
        model_close(whole);
    }
}

/* Whether the first layer's node of a weight keeps it in a form of its own. */
static bool is_packed(const executor *x, weight_slot slot)
{
    for (int n = 0; n < x->program->n_nodes; n++)
        for (int i = 0; i < op_n_tensors(op_get(x->program->nodes[n].op)); i++) {
            const program_weight *weight = program_weight_of(x->program, n, i);
            if (weight && !weight->bias && weight->slot == slot) return x->nodes[n].packed != NULL;
        }
    return false;
}

/* Weights that were made are given back when they are packed, those still read are not; and nothing
 * is without leave, since two may read one model. */
static void made_weights_are_given_back(void **state)
{
    (void)state;
    int n_given_back[2] = {0, 0};
    for (int way = 0; way < 4; way++) {
        const bool leave = way % 2, fuse = way / 2;
        for (int i = 0; i < N_MODELS; i++) {
            model *m;
            model_options options = {.discardable = leave};
            assert_ok(model_open(models[i], &options, &m, &error));
            program p = plan_of(m, fuse);
            executor x;
            progress silent = {0};
            assert_ok(executor_init(&x, &p, NULL, cpu_features(0), NULL, NULL, &silent, &error));
            bool synthetic = strncmp(models[i], "synthetic:", 10) == 0;
            bool made = synthetic || strcmp(models[i], "golden/models/internlm2") == 0;
            const void *q = model_get_weight(m, WEIGHT_ATTN_Q, 0)->weight.data;
            const void *norm = model_get_weight(m, WEIGHT_ATTN_NORM, 0)->weight.data;
            const void *table = model_get_weight(m, WEIGHT_TOKEN_EMBD, 0)->weight.data;
            bool given_back = leave && made && is_packed(&x, WEIGHT_ATTN_Q);
            assert_int_equal(can_read(q), !given_back);
            n_given_back[fuse] += given_back;
            assert_true(can_read(norm) && can_read(table));
            executor_free(&x);
            program_free(&p);
            model_close(m);
        }
    }
    assert_true(cpu_features(0) == 0 || (n_given_back[0] && n_given_back[1]));
}

static program rank_of(const model *m, plan_cut cut, int rank)
{
    program p;
    plan_options options = plan_default_options(model_get_config(m));
    options.context = 64;
    options.max_tokens = 16;
    options.ranks = 2;
    options.rank = rank;
    options.cut = cut;
    assert_ok(lower_build(model_get_config(m), m, &options, &p, &error));
    return p;
}

/* Rank `rank` of two has the same weights, as stored and packed, whether the model has made all of
 * them or none. */
static void compare_own(const model *sizes, const model *whole, plan_cut cut, int rank)
{
    for (int vectors = 0; vectors < 2; vectors++) {
        program parts = rank_of(sizes, cut, rank), cuts = rank_of(whole, cut, rank);
        const uint32_t features = vectors ? cpu_features(0) : 0;
        executor made, x;
        assert_ok(executor_init(&made, &parts, NULL, features, NULL, NULL, NULL, &error));
        assert_ok(executor_init(&x, &cuts, NULL, features, NULL, NULL, NULL, &error));
        assert_int_equal(made.packed.bytes, x.packed.bytes);
        if (x.packed.bytes) assert_memory_equal(made.packed.data, x.packed.data, x.packed.bytes);
        for (int i = 0; i < parts.n_weights && !x.packed.bytes; i++) {
            const tensor part = program_weight_part(&parts.weights[i]);
            assert_memory_equal(made.weights[i], x.weights[i], tensor_bytes(&part));
        }
        executor_free(&made);
        executor_free(&x);
        program_free(&parts);
        program_free(&cuts);
    }
}

static void ranks_make_their_own_part(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        model *sizes, *whole;
        model_options sizes_only = {.sizes_only = true};
        assert_ok(model_open(models[i], &sizes_only, &sizes, &error));
        assert_ok(model_open(models[i], NULL, &whole, &error));
        for (int rank = 0; rank < 2; rank++) {
            compare_own(sizes, whole, PLAN_GATHER, rank);
            if (!strstr(models[i], "Q4_K")) compare_own(sizes, whole, PLAN_REDUCE, rank);
        }
        model_close(sizes);
        model_close(whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_known_before),
        cmocka_unit_test(made_weights_are_given_back),
        cmocka_unit_test(ranks_make_their_own_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
