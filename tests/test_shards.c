/* Cutting a model into ranks: the parts of all ranks are the whole model, read as they are stored;
 * heads go with the KV heads that they read; sizes that ranks cannot share are refused.
 */
#include "test.h"

#include "lower/lower.h"
#include "plan/weights.h"

static qp_error error;

static program plan_rank(const model *m, int ranks, int rank, plan_cut cut)
{
    program p;
    plan_options options = plan_default_options(model_get_config(m));
    options.ranks = ranks, options.rank = rank, options.cut = cut;
    options.context = 64;
    options.max_tokens = 16;
    assert_ok(lower_build(model_get_config(m), m, &options, &p, &error));
    return p;
}

static const char *const models[] = {"synthetic:tiny",
                                     "synthetic:tiny:Q8_0",
                                     "synthetic:tiny:Q4_K",
                                     "golden/models/llama-tied-gqa3",
                                     "golden/models/llama-gqa4-sharded",
                                     "golden/models/llama-gqa8-f16.gguf",
                                     "golden/models/llama-attention-bias",
                                     "golden/models/llama-mlp-bias",
                                     "golden/models/internlm2",
                                     "golden/models/qwen3"};
enum { N_MODELS = sizeof models / sizeof *models };

/* Whether a rank's part of a weight begins where the parts of the ranks before it end. Copies of
 * KV heads, and what is whole on every rank, are not cut. */
static void check_spans(const program *ranks, int n, int weight)
{
    const program_weight *first = &ranks[0].weights[weight];
    const int64_t columns = first->whole.rank == 2 ? first->whole.shape[1] : 1;
    const bool by_columns = first->whole.rank == 2 && first->columns.count < columns;
    const int64_t all = by_columns ? columns : first->whole.shape[0];
    int64_t end = 0;
    if (first->whole.rank == 1 && !first->bias) return;
    for (int r = 0; r < n; r++) {
        const program_weight *w = &ranks[r].weights[weight];
        const program_span own = by_columns ? w->columns : w->rows;
        assert_true(own.count > 0 && own.first >= 0 && own.first + own.count <= all);
        assert_true(own.first <= end);
        assert_true(own.first == end || own.first + own.count <= end || own.first == 0 ||
                    ranks->whole.n_kv_heads < n);
        if (own.first + own.count > end) end = own.first + own.count;
    }
    assert_true(end == all);
}

static size_t stored(dtype type, int64_t elements)
{
    return (size_t)(elements / (int64_t)dtype_block_elements(type)) * dtype_block_bytes(type);
}

/* The part's bytes are those of its rows and columns of the whole. */
static void check_bytes(const program *p, int weight)
{
    const program_weight *w = &p->weights[weight];
    const tensor part = program_weight_part(w);
    const bool norm = w->whole.rank == 1 && !w->bias;
    const int64_t columns = w->whole.rank == 2 ? w->whole.shape[1] : norm ? w->whole.shape[0] : 1;
    const size_t row = stored(w->whole.type, w->columns.count);
    char *found = malloc(tensor_bytes(&part));
    assert_true(tensor_bytes(&part) == row * (size_t)w->rows.count);
    assert_ok(program_read_weight(p, weight, 0, w->rows.count, found, &error));
    for (int64_t i = 0; i < w->rows.count; i++) {
        const char *from = (const char *)w->whole.data +
                           stored(w->whole.type, (w->rows.first + i) * columns + w->columns.first);
        assert_memory_equal(found + (size_t)i * row, from, row);
    }
    if (part.data) assert_memory_equal(found, part.data, tensor_bytes(&part));
    assert_true(part.data || program_weight_has_columns(w));
    free(found);
}

static void check_cut(const model *m, int n, plan_cut cut)
{
    program ranks[4];
    for (int r = 0; r < n; r++)
        ranks[r] = plan_rank(m, n, r, cut);
    for (int i = 0; i < ranks[0].n_weights; i++) {
        const program_weight *w = &ranks[0].weights[i];
        for (int r = 0; r < n; r++) {
            const int at = program_find_weight(&ranks[r], w->slot, w->layer, w->bias);
            if (at >= 0) check_bytes(&ranks[r], at); /* rank 0 alone has biases of partial sums */
        }
        if (cut == PLAN_GATHER) check_spans(ranks, n, i);
    }
    for (int r = 0; r < n; r++)
        program_free(&ranks[r]);
}

static void parts_of_all_ranks_are_the_model(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        model *m;
        assert_ok(model_open(models[i], NULL, &m, &error));
        for (int n = 1; n <= 4; n++) {
            if (n > model_get_config(m)->n_heads) continue;
            check_cut(m, n, PLAN_GATHER);
            if (n == 2 && strcmp(models[i], "synthetic:tiny:Q4_K") != 0) /* blocks are too large */
                check_cut(m, n, PLAN_REDUCE);
        }
        model_close(m);
    }
}

static model_config sizes(int64_t heads, int64_t kv_heads)
{
    model *m;
    assert_ok(model_open("synthetic:tiny", &(model_options){.sizes_only = true}, &m, &error));
    model_config c = *model_get_config(m);
    c.n_heads = heads, c.n_kv_heads = kv_heads;
    c.name = "";
    model_close(m);
    return c;
}

/* Every query head is computed by one rank, which has the KV head that it reads, at the place where
 * its kernels look for it. */
static void heads_go_with_their_kv_heads(void **state)
{
    (void)state;
    static const int64_t heads[][2] = {{9, 3}, {8, 8}, {8, 1}, {32, 8}, {12, 4}, {6, 2}, {14, 2}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        const model_config c = sizes(heads[i][0], heads[i][1]);
        const int64_t group = c.n_heads / c.n_kv_heads;
        for (int n = 1; n <= 8 && n <= c.n_heads; n++) {
            int64_t next = 0;
            for (int r = 0; r < n; r++) {
                plan_options o = plan_default_options(&c);
                program p;
                o.ranks = n, o.rank = r;
                if (lower_build(&c, NULL, &o, &p, &error) != QP_OK) {
                    assert_non_null(strstr(error.message, "heads")); /* 5 ranks of 3 groups of 2 */
                    program_free(&p);
                    next = c.n_heads;
                    break;
                }
                const int64_t own = p.config.n_heads / p.config.n_kv_heads;
                assert_true(p.shard.heads.first == next && p.config.n_heads > 0);
                assert_true(own * p.config.n_kv_heads == p.config.n_heads);
                for (int64_t h = 0; h < p.config.n_heads; h++)
                    assert_true((next + h) / group == p.shard.kv_heads.first + h / own);
                next += p.config.n_heads;
                program_free(&p);
            }
            assert_true(next == c.n_heads);
        }
    }
}

/* Both cuts have the steps of one rank, in the same order, and the exchanges that they promise. */
static void steps_are_those_of_one_rank(void **state)
{
    (void)state;
    model *m;
    assert_ok(model_open("synthetic:tiny", NULL, &m, &error));
    program one = plan_rank(m, 1, 0, PLAN_GATHER);
    for (int cut = 0; cut < 2; cut++) {
        program p = plan_rank(m, 2, 1, (plan_cut)cut);
        int n_gathers = 0, n_sums = 0;
        assert_int_equal(p.n_steps, one.n_steps);
        for (int s = 0; s < p.n_steps; s++) {
            assert_string_equal(p.steps[s].name, one.steps[s].name);
            for (int i = 0; i < one.steps[s].n_nodes && cut == PLAN_REDUCE; i++)
                assert_int_equal(p.nodes[p.steps[s].first_node + i].op,
                                 one.nodes[one.steps[s].first_node + i].op);
        }
        for (int n = 0; n < p.n_nodes; n++) {
            n_gathers += p.nodes[n].op == OP_ALL_GATHER;
            n_sums += p.nodes[n].op == OP_ALL_REDUCE;
        }
        const int layers = (int)p.config.n_layers;
        assert_int_equal(n_gathers, cut == PLAN_GATHER ? 4 * layers + 1 : 1);
        assert_int_equal(n_sums, cut == PLAN_GATHER ? 0 : 2 * layers);
        program_free(&p);
    }
    program_free(&one);
    model_close(m);
}

static void what_cannot_be_shared_is_refused(void **state)
{
    (void)state;
    const model_config c = sizes(4, 2);
    plan_options o = plan_default_options(&c);
    program p;
    o.ranks = 5;
    assert_int_equal(lower_build(&c, NULL, &o, &p, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "5 ranks cannot share 4 heads"));
    program_free(&p);
    model *m; /* heads of 64 columns, blocks of 256 */
    assert_ok(model_open("synthetic:tiny:Q4_K", NULL, &m, &error));
    o = plan_default_options(model_get_config(m));
    o.ranks = 2, o.cut = PLAN_REDUCE;
    for (o.rank = 0; o.rank < 2; o.rank++) { /* none of the ranks begins what another refuses */
        assert_int_equal(lower_build(model_get_config(m), m, &o, &p, &error), QP_UNSUPPORTED);
        assert_non_null(strstr(error.message, "rank 1 of 2"));
        assert_non_null(strstr(error.message, "inside a block of 256"));
        program_free(&p);
    }
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_all_ranks_are_the_model),
        cmocka_unit_test(heads_go_with_their_kv_heads),
        cmocka_unit_test(steps_are_those_of_one_rank),
        cmocka_unit_test(what_cannot_be_shared_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
