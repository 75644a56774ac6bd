/* What `quipu plan` prints: the table of a plan as JSON and as text, its bytes, and its shapes. */
#include "inspect/kernels_print.h"
#include "lower/lower.h"

#include "plan/lifetime.h"
#include "vm/machine.h"

#include <cjson/cJSON.h>

#include "test.h"

static qp_error error;

static plan_print_options print_options(bool json)
{
    return (plan_print_options){.model = "synthetic:tiny",
                                .tokens = 7,
                                .sequences = 1,
                                .ranks = 1,
                                .page_size = 16,
                                .kv_type = "F16",
                                .available = (uint64_t)1 << 30,
                                .json = json};
}

static double number(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(object, key);
    if (!cJSON_IsNumber(item)) fail_msg("\"%s\" is not a number", key);
    return item->valuedouble;
}

static void the_printed_table_is_the_plan(void **state)
{
    (void)state;
    strbuf text = {0};
    plan_print_options o = print_options(true);
    assert_ok(plan_print_lifetimes(&o, &text, &error));
    cJSON *root = cJSON_Parse(strbuf_text(&text));
    assert_non_null(root);
    strbuf_free(&text);

    model *model;
    model_options sizes_only = {.sizes_only = true};
    assert_ok(model_open("synthetic:tiny", &sizes_only, &model, &error));
    plan_options options = plan_default_options(model_get_config(model));
    options.max_tokens = 7;
    program p;
    options.target = PLAN_FOR_CPU;
    assert_ok(lower_build(model_get_config(model), model, &options, &p, &error));
    plan_cell *cells;
    assert_ok(lifetime_compute(&p, &cells, &error));

    const cJSON *tensors = cJSON_GetObjectItem(root, "tensors"),
                *steps = cJSON_GetObjectItem(root, "steps"),
                *bytes = cJSON_GetObjectItem(root, "bytes");
    int n_tensors = 0;
    assert_int_equal(cJSON_GetArraySize(steps), p.n_steps);
    for (int id = 0; id < p.n_tensors; id++) {
        if (p.tensors[id].kind == PLAN_ABSENT) continue;
        const cJSON *t = cJSON_GetArrayItem(tensors, n_tensors++);
        assert_string_equal(cJSON_GetObjectItem(t, "name")->valuestring, p.tensors[id].name);
        double product = (double)dtype_block_bytes(p.tensors[id].type);
        const cJSON *size;
        cJSON_ArrayForEach(size, cJSON_GetObjectItem(t, "shape"))
        {
            product *= size->valuedouble;
        }
        assert_true(product == number(t, "bytes"));
        assert_true(product == (double)p.tensors[id].bytes);
        if (p.tensors[id].kind == PLAN_ACTIVATION || p.tensors[id].kind == PLAN_OUTPUT)
            assert_true(number(t, "offset") == (double)p.tensors[id].offset);
    }
    for (int s = 0; s < p.n_steps; s++) {
        const cJSON *item = cJSON_GetArrayItem(steps, s), *row = cJSON_GetObjectItem(item, "cells");
        assert_string_equal(cJSON_GetObjectItem(item, "step")->valuestring, p.steps[s].name);
        for (int id = 0; id < p.n_tensors; id++) {
            if (p.tensors[id].kind == PLAN_ABSENT) continue;
            char want[8];
            plan_cell_text(&cells[s * p.n_tensors + id], want);
            const cJSON *cell = cJSON_GetObjectItemCaseSensitive(row, p.tensors[id].name);
            assert_string_equal(cell ? cell->valuestring : "", want);
        }
    }
    program_bytes counted = program_count_bytes(&p, model_weight_bytes(model));
    assert_true(number(bytes, "total") == (double)counted.total);
    assert_true(number(bytes, "weights") == (double)counted.weights);
    assert_true(number(root, "context") == 2048);
    assert_true(number(root, "largest_context") == 2048);
    cJSON_Delete(root);
    free(cells);
    program_free(&p);
    model_close(model);
}

static cJSON *print_json(const plan_print_options *o)
{
    strbuf text = {0};
    assert_ok(plan_print_lifetimes(o, &text, &error));
    cJSON *root = cJSON_Parse(strbuf_text(&text));
    assert_non_null(root);
    strbuf_free(&text);
    return root;
}

static double printed_total(plan_print_options o, int64_t context)
{
    o.context = context;
    cJSON *root = print_json(&o);
    double total = number(cJSON_GetObjectItem(root, "bytes"), "total");
    cJSON_Delete(root);
    return total;
}

/* The largest context that is printed fits, and a page more does not, however many ranks. */
static void the_largest_context_of_ranks_fits(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= 8; ranks *= 2) {
        plan_print_options o = print_options(true);
        o.model = "synthetic:llama-3.2-1b";
        o.ranks = ranks;
        o.available = ranks == 1 ? 3000000000 : 2000000000 / (uint64_t)ranks + 600000000;
        cJSON *root = print_json(&o);
        int64_t largest = (int64_t)number(root, "largest_context");
        cJSON_Delete(root);
        assert_true(largest > 0 && largest < 131072);
        assert_true(printed_total(o, largest) <= (double)o.available);
        assert_true(printed_total(o, largest + o.page_size) > (double)o.available);
    }
}

static void expect_printed(strbuf *text, const char *const *parts)
{
    for (; *parts; parts++)
        if (!strstr(strbuf_text(text), *parts)) fail_msg("\"%s\" is not printed", *parts);
    strbuf_free(text);
}

/* The fourth of five layers has no step for RoPE. */
static void layers_that_differ_are_printed_apart(void **state)
{
    (void)state;
    strbuf text = {0};
    plan_print_options o = print_options(false);
    o.model = "golden/models/smollm3";
    assert_ok(plan_print_lifetimes(&o, &text, &error));
    expect_printed(&text, (const char *const[]){"--- layers 0 to 2, each\nattn_norm ",
                                                "--- layer 3\nattn_norm ",
                                                "--- layer 4\nattn_norm ", NULL});
    shapes_print_options shapes = {.model = o.model, .tokens = 7, .batch = 1};
    assert_ok(plan_print_shapes(&shapes, &text, &error));
    expect_printed(&text, (const char *const[]){"--- each of the layers 0 to 2, 4\nattn_norm ",
                                                "\nrope ", "--- layer 3\nattn_norm ", NULL});
    shapes = (shapes_print_options){
        .model = "synthetic:tiny", .tokens = 7, .batch = 1, .form = PLAN_FLASHINFER};
    assert_ok(plan_print_shapes(&shapes, &text, &error));
    expect_printed(&text,
                   (const char *const[]){"--- layer 0\nattn_norm       rms_norm ",
                                         "--- layer 1\nattn_norm       add_rms_norm ", NULL});
}

/* More tokens than the context has room for are refused, and the default gives way. */
static void tokens_fit_in_the_context(void **state)
{
    (void)state;
    strbuf text = {0};
    plan_print_options o = print_options(false);
    o.context = 100;
    o.tokens = 101;
    assert_int_equal(plan_print_lifetimes(&o, &text, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "101 tokens: 1 sequence of 100 positions holds 100"));
    strbuf_free(&text);
    o.sequences = 2;
    assert_ok(plan_print_lifetimes(&o, &text, &error));
    strbuf_free(&text);
    o.sequences = 1;
    o.tokens = 0;
    assert_ok(plan_print_lifetimes(&o, &text, &error));
    expect_printed(&text, (const char *const[]){"n_tokens                      100\n", NULL});
    shapes_print_options shapes = {
        .model = "synthetic:tiny", .tokens = 2049, .batch = 1, .form = PLAN_PADDED};
    assert_int_equal(plan_print_shapes(&shapes, &text, &error), QP_INVALID);
    strbuf_free(&text);
}

/* The modules of an engine made of FlashInfer's operators, and what runs for them. */
static void kernels_stand_beside_their_modules(void **state)
{
    (void)state;
    static const struct {
        const char *module, *theirs, *ours;
        int n_layers;
    } want[] = {
        {"embed_tokens", "F.embedding", "embedding", 0},
        {"input_layernorm", "rmsnorm", "rms_norm", 1},
        {"input_layernorm", "fused_add_rmsnorm", "add_rms_norm", 1},
        {"self_attn.qkv_proj", "F.linear", "linear", 2},
        {"self_attn.rotary_emb", "apply_rope_with_cos_sin_cache_inplace", "rope", 2},
        {"self_attn.attn", "append_paged_kv_cache", "kv_append", 2},
        {"self_attn.attn", "BatchPrefillWithRaggedKVCacheWrapper", "ragged_prefill", 2},
        {"self_attn.attn", "BatchPrefillWithPagedKVCacheWrapper", "paged_prefill", 2},
        {"self_attn.attn", "merge_state", "merge_state", 2},
        {"self_attn.attn", "BatchDecodeWithPagedKVCacheWrapper", "paged_decode", 2},
        {"self_attn.o_proj", "F.linear", "linear", 2},
        {"post_attention_layernorm", "fused_add_rmsnorm", "add_rms_norm", 2},
        {"mlp.gate_up_proj", "F.linear", "linear", 2},
        {"mlp.act_fn", "act_and_mul_kernel (silu_and_mul)", "silu_and_mul", 2},
        {"mlp.down_proj", "F.linear", "linear", 2},
        {"norm", "fused_add_rmsnorm", "add_rms_norm", 0},
        {NULL, "x[rows]", "embedding", 0},
        {"logits_processor", "torch.matmul", "linear", 0},
    };
    strbuf text = {0};
    plan_print_options o = print_options(true);
    o.form = PLAN_FLASHINFER;
    assert_ok(kernels_print(&o, &text, &error));
    cJSON *rows = cJSON_Parse(strbuf_text(&text));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const cJSON *row = cJSON_GetArrayItem(rows, (int)i);
        const cJSON *module = cJSON_GetObjectItem(row, "module");
        assert_string_equal(module ? module->valuestring : "",
                            want[i].module ? want[i].module : "");
        assert_string_equal(cJSON_GetObjectItem(row, "flashinfer")->valuestring, want[i].theirs);
        assert_string_equal(cJSON_GetObjectItem(row, "operator")->valuestring, want[i].ours);
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(row, "layers")), want[i].n_layers);
    }
    cJSON_Delete(rows);
    strbuf_free(&text);
    o.json = false;
    assert_ok(kernels_print(&o, &text, &error));
    expect_printed(&text, (const char *const[]){"rmsnorm, layer 0 ", "rms_norm, layer 0 ",
                                                "linear x 3: q_proj, k_proj, v_proj ", NULL});
}

static void the_table_in_text_has_every_part(void **state)
{
    (void)state;
    strbuf text = {0};
    plan_print_options o = print_options(false);
    assert_ok(plan_print_lifetimes(&o, &text, &error));
    static const char *const parts[] = {"attn_allreduce", "ffn_allreduce", "--- layer 1",
                                        "(n, 2 di)",      "KV cache",      "m mapped",
                                        "largest"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!strstr(strbuf_text(&text), parts[i])) fail_msg("\"%s\" is not printed", parts[i]);
    }
    strbuf_free(&text);
    o.ranks = 2;
    assert_ok(plan_print_lifetimes(&o, &text, &error));
    strbuf_free(&text);
    o.ranks = 5;
    assert_int_equal(plan_print_lifetimes(&o, &text, &error), QP_INVALID);
    strbuf_free(&text);
    o = print_options(true), o.kv_type = "F7";
    assert_int_equal(plan_print_lifetimes(&o, &text, &error), QP_INVALID);
    strbuf_free(&text);
    o = print_options(true), o.context = -1;
    assert_int_equal(plan_print_lifetimes(&o, &text, &error), QP_INVALID);
    strbuf_free(&text);
}

/* The row of a step's tensor, or of a part of it, in the JSON of shapes. */
static const cJSON *find_row(const cJSON *rows, const char *step, const char *tensor,
                             const char *part)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        if (strcmp(cJSON_GetObjectItem(row, "step")->valuestring, step) == 0 &&
            strcmp(cJSON_GetObjectItem(row, "tensor")->valuestring, tensor) == 0 &&
            strcmp(cJSON_GetObjectItem(row, "part")->valuestring, part) == 0)
            return row;
    }
    fail_msg("no shape of %s %s in step %s", tensor, part, step);
    return NULL;
}

/* The member `name` is an array of numbers and names, written as `expected`. */
static void assert_array(const cJSON *row, const char *name, const char *expected)
{
    const cJSON *found = cJSON_GetObjectItem(row, name);
    cJSON *wanted = cJSON_Parse(expected);
    assert_non_null(wanted);
    if (!cJSON_Compare(found, wanted, true)) fail_msg("%s: expected %s", name, expected);
    cJSON_Delete(wanted);
}

static void shapes_are_those_of_the_model(void **state)
{
    (void)state;
    strbuf text = {0};
    assert_ok(plan_print_shapes(
        &(shapes_print_options){
            .model = "synthetic:tiny", .tokens = 9, .batch = 5, .kv_partitions = 1, .json = true},
        &text, &error));
    cJSON *rows = cJSON_Parse(strbuf_text(&text));
    strbuf_free(&text);
    assert_true(cJSON_IsArray(rows));
    static const struct {
        const char *step, *tensor, *part, *symbols, *prefill, *decode;
    } want[] = {
        {"embedding", "x", "", "[\"n_tokens\", \"hidden_size\"]", "[9, 256]", "[5, 256]"},
        {"attn_qkv", "attn", "", "[\"n_tokens\", \"qkv_hidden_units\"]", "[9, 512]", "[5, 512]"},
        {"attn_qkv", "attn", "attn_k", "[\"n_tokens\", \"kv_hidden_units\"]", "[9, 128]",
         "[5, 128]"},
        {"rope", "attn", "q", "[\"n_tokens\", \"n_heads\", \"head_dim\"]", "[9, 4, 64]",
         "[5, 4, 64]"},
        {"rope", "attn", "k", "[\"n_tokens\", \"n_kv_heads\", \"head_dim\"]", "[9, 2, 64]",
         "[5, 2, 64]"},
        {"attention", "attn", "out", "[\"n_tokens\", \"n_heads\", \"head_dim\"]", "[9, 4, 64]",
         "[5, 4, 64]"},
        {"ffn_up", "ffn", "", "[\"n_tokens\", \"2 * intermediate_size\"]", "[9, 1024]",
         "[5, 1024]"},
        {"activation", "ffn", "out", "[\"n_tokens\", \"intermediate_size\"]", "[9, 512]",
         "[5, 512]"},
        {"lm_head", "logits", "", "[\"n_outputs\", \"vocab_size\"]", "[1, 512]", "[5, 512]"},
        {"sample", "next", "", "[\"n_outputs\"]", "[1]", "[5]"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const cJSON *row = find_row(rows, want[i].step, want[i].tensor, want[i].part);
        assert_array(row, "shape", want[i].symbols);
        assert_array(row, "prefill", want[i].prefill);
        assert_array(row, "decode", want[i].decode);
    }
    cJSON_Delete(rows);
    assert_ok(plan_print_shapes(
        &(shapes_print_options){
            .model = "synthetic:tiny", .tokens = 9, .batch = 5, .kv_partitions = 1},
        &text, &error));
    assert_non_null(strstr(strbuf_text(&text), "each of 2 layers"));
    strbuf_free(&text);
}

static void prompts_of_a_rectangle_are_as_many_as_sequences(void **state)
{
    (void)state;
    strbuf text = {0};
    assert_ok(plan_print_shapes(
        &(shapes_print_options){
            .model = "synthetic:tiny", .tokens = 9, .batch = 5, .form = PLAN_PADDED, .json = true},
        &text, &error));
    cJSON *rows = cJSON_Parse(strbuf_text(&text));
    assert_array(find_row(rows, "pad_rope", "padded_q", ""), "prefill", "[5, 4, 9, 64]");
    assert_array(find_row(rows, "pad_rope", "padded_q", ""), "decode", "[5, 4, 1, 64]");
    assert_array(find_row(rows, "embedding", "x", ""), "prefill", "[45, 256]");
    assert_array(find_row(rows, "lm_head", "logits", ""), "prefill", "[5, 512]");
    cJSON_Delete(rows);
    strbuf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_printed_table_is_the_plan),
        cmocka_unit_test(the_largest_context_of_ranks_fits),
        cmocka_unit_test(the_table_in_text_has_every_part),
        cmocka_unit_test(layers_that_differ_are_printed_apart),
        cmocka_unit_test(shapes_are_those_of_the_model),
        cmocka_unit_test(prompts_of_a_rectangle_are_as_many_as_sequences),
        cmocka_unit_test(tokens_fit_in_the_context),
        cmocka_unit_test(kernels_stand_beside_their_modules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
