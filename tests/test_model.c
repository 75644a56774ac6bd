/* Models: all spellings of config.json, weights checked against it, RoPE frequencies compared with
 * their closed forms. Errors name the file, the key or tensor, expected and found.
 */
#include "model/model.h"

#include "file/gguf_write.h"
#include "model/config_read.h"
#include "model_files.h"

#include <float.h>
#include <math.h>

static qp_error error;

/* --- config.json ----------------------------------------------------------------------------- */

static const char base_config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size\":32,"
    "\"intermediate_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"vocab_size\":11,\"max_position_embeddings\":64,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":5000}";

/* The base config with `changes` (an object) laid over it; a null removes the key. */
static cJSON *config_with(const char *changes)
{
    cJSON *json = cJSON_Parse(base_config), *over = cJSON_Parse(changes), *item = over->child;
    if (!item && strcmp(changes, "{}") != 0) fail_msg("not an object: %s", changes);
    while (item) {
        cJSON *next = item->next;
        cJSON_DetachItemViaPointer(over, item);
        cJSON_DeleteItemFromObjectCaseSensitive(json, item->string);
        if (cJSON_IsNull(item))
            cJSON_Delete(item);
        else
            cJSON_AddItemToObject(json, item->string, item);
        item = next;
    }
    cJSON_Delete(over);
    return json;
}

static qp_status read_config(const char *changes, arena *arena, model_config *out)
{
    cJSON *json = config_with(changes);
    qp_status status = config_from_json(json, "here/config.json", arena, out, &error);
    cJSON_Delete(json);
    return status;
}

static model_config good_config(const char *changes)
{
    arena arena = {0};
    model_config config;
    if (read_config(changes, &arena, &config) != QP_OK) fail_msg("%s: %s", changes, error.message);
    config.name = NULL;
    arena_free(&arena);
    return config;
}

static void config_json_is_read(void **state)
{
    (void)state;
    model_config c = good_config("{}");
    assert_ptr_equal(c.family, &family_llama);
    assert_int_equal(c.hidden_size, 32);
    assert_int_equal(c.intermediate_size, 48);
    assert_int_equal(c.n_layers, 1);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.vocab_size, 11);
    assert_int_equal(c.context_length, 64);
    assert_true(c.rms_norm_eps == 1e-5 && c.rope.theta == 5000);
    assert_false(c.tied);
    assert_false(c.rope.interleaved);
    assert_int_equal(c.rope.scaling, ROPE_DEFAULT);
    assert_int_equal(c.rope.dim, 8);
}

static void keys_may_be_absent_or_null(void **state)
{
    (void)state;
    model_config c = good_config("{\"num_key_value_heads\":null,\"rope_theta\":null,"
                                 "\"rms_norm_eps\":null,\"max_position_embeddings\":null,"
                                 "\"hidden_act\":null}");
    assert_int_equal(c.n_kv_heads, 4);
    assert_true(c.rope.theta == 10000);
    assert_true(c.rms_norm_eps == 1e-6);
    assert_int_equal(c.context_length, 2048);
    cJSON *json = cJSON_Parse(base_config);
    cJSON_AddNullToObject(json, "rope_scaling");
    cJSON_AddNullToObject(json, "head_dim");
    cJSON_AddNullToObject(json, "sliding_window");
    arena arena = {0};
    assert_ok(config_from_json(json, "x", &arena, &c, &error));
    arena_free(&arena);
    cJSON_Delete(json);
}

static void families_have_several_names(void **state)
{
    (void)state;
    static const struct {
        const char *changes;
        const model_family *family;
    } names[] = {
        {"{\"architectures\":[\"MistralForCausalLM\"]}", &family_mistral},
        {"{\"architectures\":[\"InternLM2ForCausalLM\"]}", &family_internlm2},
        {"{\"architectures\":null,\"model_type\":\"internlm2\"}", &family_internlm2},
        {"{\"architectures\":[],\"model_type\":\"mistral\"}", &family_mistral},
        {"{\"architectures\":null,\"model_type\":\"llama\"}", &family_llama},
        {"{\"architectures\":[\"Qwen2ForCausalLM\"]}", &family_qwen2},
        {"{\"architectures\":null,\"model_type\":\"qwen3\"}", &family_qwen3},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_ptr_equal(good_config(names[i].changes).family, names[i].family);
}

/* Every family names every weight but the norms of q and k, which come together, and is found by
 * each of its names. */
static void families_are_whole(void **state)
{
    (void)state;
    static const model_family *const families[] = {
#define FAMILY(NAME) &family_##NAME,
#include "model/family/families.def"
#include "model/family/family.h"
#undef FAMILY
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const model_family *f = families[i];
        for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
            bool norm = slot == WEIGHT_ATTN_Q_NORM || slot == WEIGHT_ATTN_K_NORM;
            if (!family_has(f, (weight_slot)slot) && !norm)
                fail_msg("%s has no %s", f->name, weight_get_info((weight_slot)slot)->name);
        }
        assert_int_equal(family_has(f, WEIGHT_ATTN_Q_NORM), family_has(f, WEIGHT_ATTN_K_NORM));
        assert_ptr_equal(family_by_name(f->name), f);
        assert_non_null(f->json[0]);
        for (int k = 0; f->json[k]; k++)
            assert_ptr_equal(family_by_json(f->json[k]), f);
        const model_family *file = family_by_gguf(slice_of(f->gguf)); /* mistral's are llama's */
        assert_true(file && file->gguf_pairs == f->gguf_pairs);
        assert_true(f->context_length > 0);
    }
    assert_null(family_by_name("gemma"));
    assert_null(family_by_gguf(slice_of("qwen2moe")));
}

/* What holds without a key, or with null in its place, is the family's. */
static void families_have_their_usual_values(void **state)
{
    (void)state;
    static const char without[] = "{\"architectures\":[\"MistralForCausalLM\"],"
                                  "\"num_attention_heads\":16,\"num_key_value_heads\":null,"
                                  "\"max_position_embeddings\":null}";
    model_config c = good_config(without);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.window, 4096);
    assert_int_equal(c.context_length, 131072);
    assert_int_equal(config_usual_context(&c), 4096);
    assert_int_equal(c.biases, 0);
    c = good_config("{\"architectures\":[\"InternLM2ForCausalLM\"]}");
    assert_int_equal(c.biases, SLOTS_ATTENTION);
    c = good_config("{\"architectures\":[\"InternLM2ForCausalLM\"],\"bias\":false}");
    assert_int_equal(c.biases, 0);
    c = good_config("{\"attention_bias\":true}");
    assert_int_equal(c.biases, SLOTS_ATTENTION);
    c = good_config("{\"architectures\":[\"Qwen2ForCausalLM\"],\"attention_bias\":true}");
    assert_int_equal(c.biases, SLOTS_QKV);
    assert_int_equal(c.head_dim, 8);
    c = good_config("{\"architectures\":[\"Qwen3ForCausalLM\"]}");
    assert_int_equal(c.biases, 0);
    assert_int_equal(c.head_dim, 128);
}

/* The first 64 layers of a set as bits. */
static uint64_t bits_of(const layer_set *set)
{
    return set->bits[0];
}

/* Each family has its own rule of which layers slide, and without which all layers see everything.
 */
static void windows_are_used_where_the_family_does(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *changes;
        int64_t window;
        uint64_t layers;
    } cases[] = {
        {"Qwen2", "\"use_sliding_window\":false", 0, 0},
        {"Qwen2", "\"use_sliding_window\":true", 0, 0}, /* from layer 28 on */
        {"Qwen2", "\"use_sliding_window\":true,\"max_window_layers\":0", 40, 1},
        {"Qwen2", "\"use_sliding_window\":true,\"max_window_layers\":1", 0, 0},
        {"Qwen2", "\"use_sliding_window\":true,\"max_window_layers\":2,\"num_hidden_layers\":5", 40,
         0x1c},
        {"Qwen3",
         "\"use_sliding_window\":true,\"num_hidden_layers\":3,\"layer_types\":"
         "[\"full_attention\",\"sliding_attention\",\"full_attention\"]",
         40, 2},
        {"Qwen2", "\"use_sliding_window\":true,\"layer_types\":[\"sliding_attention\"]", 40, 1},
        {"Qwen2",
         "\"use_sliding_window\":true,\"max_window_layers\":0,\"layer_types\":"
         "[\"full_attention\"]",
         0, 0},
        {"Mistral", "\"num_hidden_layers\":3", 40, 7},
        {"Ministral", "\"num_hidden_layers\":3", 40, 7},
        {"Ministral",
         "\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\",\"sliding_attention\"]", 40,
         2},
        {"SmolLM3", "\"num_hidden_layers\":9", 0, 0},
        {"SmolLM3", "\"num_hidden_layers\":9,\"use_sliding_window\":true", 40, 0x88},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char changes[256];
        snprintf(changes, sizeof changes,
                 "{\"architectures\":[\"%sForCausalLM\"],\"sliding_window\":40,%s}",
                 cases[i].architecture, cases[i].changes);
        model_config c = good_config(changes);
        assert_int_equal(c.window, cases[i].window);
        assert_int_equal(bits_of(&c.windowed), cases[i].layers);
        assert_int_equal(config_usual_context(&c), cases[i].window ? cases[i].window : 64);
    }
}

static void layers_without_rope_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *changes;
        uint64_t layers;
    } cases[] = {
        {"\"num_hidden_layers\":9", 0x88},
        {"\"num_hidden_layers\":9,\"no_rope_layer_interval\":3", 0x124},
        {"\"num_hidden_layers\":3,\"no_rope_layers\":[1,0,1]", 2},
        {"\"num_hidden_layers\":2,\"no_rope_layers\":[1,1,0]", 0},
        {"\"num_hidden_layers\":4,\"no_rope_layers\":null", 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char changes[256];
        snprintf(changes, sizeof changes, "{\"architectures\":[\"SmolLM3ForCausalLM\"],%s}",
                 cases[i].changes);
        model_config c = good_config(changes);
        assert_int_equal(bits_of(&c.no_rope), cases[i].layers);
        assert_true(c.tied);
        assert_true(c.rope.theta == 5000);
    }
    const model_config llama = good_config("{\"num_hidden_layers\":9}");
    assert_int_equal(bits_of(&llama.no_rope), 0);
}

static void sizes_have_their_rules(void **state)
{
    (void)state;
    assert_int_equal(good_config("{\"head_dim\":16}").head_dim, 16);
    assert_true(good_config("{\"tie_word_embeddings\":true}").tied);
    model_config sliding = good_config("{\"sliding_window\":40}");
    assert_int_equal(sliding.window, 40);
    assert_int_equal(sliding.context_length, 64);
    assert_int_equal(config_usual_context(&sliding), 40);
    sliding = good_config("{\"sliding_window\":400}");
    assert_int_equal(config_usual_context(&sliding), 64);
    assert_int_equal(good_config("{\"sliding_window\":40,\"use_sliding_window\":false}").window, 0);
    assert_int_equal(good_config("{\"partial_rotary_factor\":1.0}").rope.dim, 8);
}

static void rope_scaling_has_two_spellings(void **state)
{
    (void)state;
    static const char *const linear[] = {
        "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}",
        "{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4}}",
        ("{\"rope_theta\":null,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4,"
         "\"rope_theta\":5000}}")};
    for (size_t i = 0; i < 3; i++) {
        rope_config rope = good_config(linear[i]).rope;
        assert_int_equal(rope.scaling, ROPE_LINEAR);
        assert_true(rope.factor == 4 && rope.theta == 5000);
    }
    rope_config rope =
        good_config("{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2,"
                    "\"original_max_position_embeddings\":16},\"sliding_window\":32}")
            .rope;
    assert_int_equal(rope.scaling, ROPE_DYNAMIC);
    assert_int_equal(rope.original_context, 64); /* max_position_embeddings, as transformers */
    rope = good_config("{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32.0,"
                       "\"low_freq_factor\":1.5,\"high_freq_factor\":3.5,"
                       "\"original_max_position_embeddings\":48}}")
               .rope;
    assert_int_equal(rope.scaling, ROPE_LLAMA3);
    assert_true(rope.factor == 32 && rope.low_freq_factor == 1.5 && rope.high_freq_factor == 3.5);
    assert_int_equal(rope.original_context, 48);
    assert_int_equal(good_config("{\"rope_scaling\":{\"rope_type\":\"default\"}}").rope.scaling,
                     ROPE_DEFAULT);
}

static const struct wrong_config {
    const char *changes;
    qp_status status;
    const char *parts[3];
} wrong_configs[] = {
    {"{\"hidden_size\":null}", QP_FORMAT, {"\"hidden_size\"", "missing"}},
    {"{\"intermediate_size\":null}", QP_FORMAT, {"\"intermediate_size\"", "missing"}},
    {"{\"num_hidden_layers\":null}", QP_FORMAT, {"\"num_hidden_layers\"", "missing"}},
    {"{\"num_attention_heads\":null}", QP_FORMAT, {"\"num_attention_heads\"", "missing"}},
    {"{\"vocab_size\":null}", QP_FORMAT, {"\"vocab_size\"", "missing"}},
    {"{\"hidden_size\":\"32\"}", QP_FORMAT, {"\"hidden_size\"", "whole number", "a string"}},
    {"{\"hidden_size\":[32]}", QP_FORMAT, {"\"hidden_size\"", "whole number", "an array"}},
    {"{\"hidden_size\":32.5}", QP_FORMAT, {"\"hidden_size\"", "whole number", "32.5"}},
    {"{\"hidden_size\":1e300}", QP_FORMAT, {"\"hidden_size\"", "whole number"}},
    {"{\"hidden_size\":0}", QP_FORMAT, {"hidden_size", "found 0"}},
    {"{\"hidden_size\":-32}", QP_FORMAT, {"hidden_size", "found -32"}},
    {"{\"hidden_size\":3}", QP_FORMAT, {"head_dim", "found 0"}},
    {"{\"num_attention_heads\":0}", QP_FORMAT, {"heads", "found 0"}},
    {"{\"num_key_value_heads\":3}", QP_FORMAT, {"multiple", "4", "3"}},
    {"{\"num_key_value_heads\":8}", QP_FORMAT, {"KV heads", "found 8"}},
    {"{\"num_key_value_heads\":0}", QP_FORMAT, {"KV heads", "found 0"}},
    {"{\"num_hidden_layers\":99999999}", QP_FORMAT, {"layers", "99999999"}},
    {"{\"vocab_size\":1e12}", QP_FORMAT, {"vocab_size", "1000000000000"}},
    {"{\"head_dim\":7}", QP_FORMAT, {"even", "found 7"}},
    {"{\"head_dim\":1048576}", QP_FORMAT, {"head_dim", "1048576"}},
    {"{\"rms_norm_eps\":-1}", QP_FORMAT, {"rms_norm_eps", "found -1"}},
    {"{\"rms_norm_eps\":true}", QP_FORMAT, {"rms_norm_eps", "a number", "a boolean"}},
    {"{\"tie_word_embeddings\":1}", QP_FORMAT, {"tie_word_embeddings", "true or false"}},
    {"{\"max_position_embeddings\":0}", QP_FORMAT, {"context length", "found 0"}},
    {"{\"rope_theta\":0}", QP_FORMAT, {"rope_theta", "at least 1", "found 0"}},
    {"{\"rope_theta\":1e-300}", QP_FORMAT, {"rope_theta", "found 1e-300"}},
    {"{\"rope_theta\":\"1e4\"}", QP_FORMAT, {"rope_theta", "a number", "a string"}},
    {"{\"architectures\":[\"SmolLM3ForCausalLM\"],\"no_rope_layers\":[]}",
     QP_FORMAT,
     {"\"no_rope_layers\"", "of 1 layers", "of 0"}},
    {"{\"architectures\":[\"SmolLM3ForCausalLM\"],\"no_rope_layers\":[2]}",
     QP_FORMAT,
     {"\"no_rope_layers\"", "0 and 1"}},
    {"{\"architectures\":[\"SmolLM3ForCausalLM\"],\"no_rope_layers\":{\"a\":1}}",
     QP_FORMAT,
     {"\"no_rope_layers\"", "an array", "an object"}},
    {"{\"architectures\":[\"SmolLM3ForCausalLM\"],\"no_rope_layer_interval\":0}",
     QP_FORMAT,
     {"\"no_rope_layer_interval\"", "at least 1", "found 0"}},
    {"{\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\"]}",
     QP_FORMAT,
     {"\"layer_types\"", "1 entries", "2 layers"}},
    {"{\"rope_scaling\":7}", QP_FORMAT, {"rope_scaling", "an object", "a number"}},
    {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}",
     QP_UNSUPPORTED,
     {"\"yarn\"", "expected", "llama3"}},
    {"{\"rope_parameters\":{\"rope_type\":\"longrope\"}}", QP_UNSUPPORTED, {"\"longrope\""}},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}",
     QP_FORMAT,
     {"factor", "at least 1", "found 0"}},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"2\"}}",
     QP_FORMAT,
     {"\"factor\"", "a number", "a string"}},
    {"{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
     "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
     QP_FORMAT,
     {"low_freq_factor < high_freq_factor", "4 and 4"}},
    {"{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
     "\"high_freq_factor\":4,\"original_max_position_embeddings\":0}}",
     QP_FORMAT,
     {"original_max_position_embeddings", "found 0"}},
    {"{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2},\"head_dim\":2}",
     QP_FORMAT,
     {"dynamic", "above 2"}},
    {"{\"rope_scaling\":{\"type\":null,\"rope_type\":3}}", QP_FORMAT, {"\"rope_type\""}},
    {"{\"partial_rotary_factor\":0.5}",
     QP_UNSUPPORTED,
     {"\"partial_rotary_factor\"", "0.5", "expected 1"}},
    {"{\"rope_parameters\":{\"partial_rotary_factor\":0.25}}",
     QP_UNSUPPORTED,
     {"\"partial_rotary_factor\"", "0.25"}},
    {"{\"rope_scaling\":{\"type\":\"linear\"}}", QP_FORMAT, {"linear", "\"factor\"", "missing"}},
    {"{\"rope_scaling\":{\"type\":\"dynamic\"}}", QP_FORMAT, {"dynamic", "\"factor\"", "missing"}},
    {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"low_freq_factor\":1,\"high_freq_factor\":4,"
     "\"original_max_position_embeddings\":64}}",
     QP_FORMAT,
     {"llama3", "\"factor\"", "missing"}},
    {"{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
     QP_UNSUPPORTED,
     {"rope_parameters", "equal layers"}},
    {"{\"num_local_experts\":8}", QP_UNSUPPORTED, {"\"num_local_experts\"", "dense"}},
    {"{\"quantization_config\":{\"quant_method\":\"gptq\"}}",
     QP_UNSUPPORTED,
     {"\"quantization_config\"", "GGUF"}},
    {"{\"rope_interleaved\":true}", QP_UNSUPPORTED, {"\"rope_interleaved\"", "halves"}},
    {"{\"layer_types\":[\"chunked_attention\"]}",
     QP_UNSUPPORTED,
     {"\"chunked_attention\"", "full_attention"}},
    {"{\"sliding_window\":-1}", QP_FORMAT, {"sliding window", "found -1"}},
    {"{\"layer_types\":\"full_attention\"}",
     QP_FORMAT,
     {"\"layer_types\"", "an array", "a string"}},
    {"{\"hidden_act\":\"gelu\"}", QP_UNSUPPORTED, {"\"gelu\"", "silu"}},
    {"{\"hidden_act\":5}", QP_FORMAT, {"hidden_act", "a string", "a number"}},
    {"{\"architectures\":[\"GPT2LMHeadModel\"]}",
     QP_UNSUPPORTED,
     {"\"GPT2LMHeadModel\"", "LlamaForCausalLM"}},
    {"{\"architectures\":null}", QP_UNSUPPORTED, {"none given"}},
    {"{\"architectures\":[7],\"model_type\":\"bert\"}", QP_UNSUPPORTED, {"\"bert\""}},
    {"{\"architectures\":null,\"model_type\":{}}", QP_FORMAT, {"model_type", "an object"}},
    {"{\"sliding_window\":\"all\"}", QP_FORMAT, {"sliding_window", "a string"}},
    {"{\"_name_or_path\":1}", QP_FORMAT, {"_name_or_path"}},
};

/* Every message names the file, and the key or what it is about, and what was found. */
static void wrong_configs_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong_configs / sizeof *wrong_configs; i++) {
        const struct wrong_config *wrong = &wrong_configs[i];
        arena arena = {0};
        model_config config;
        memset(&error, 0, sizeof error);
        qp_status status = read_config(wrong->changes, &arena, &config);
        bool told = strstr(error.message, "here/config.json") != NULL;
        for (int k = 0; k < 3 && wrong->parts[k]; k++)
            told = told && strstr(error.message, wrong->parts[k]);
        if (status != wrong->status || !told)
            fail_msg("%s: status %d, \"%s\"", wrong->changes, status, error.message);
        arena_free(&arena);
    }
    cJSON *array = cJSON_Parse("[]");
    model_config config;
    assert_int_equal(config_from_json(array, "x", NULL, &config, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "an array"));
    cJSON_Delete(array);
}

/* --- Weights --------------------------------------------------------------------------------- */

enum { MAX_TENSORS = 32 };

typedef struct tensor_list {
    file_tensor of[MAX_TENSORS];
    size_t count;
} tensor_list;

static void add(tensor_list *list, const char *name, int64_t rows, int64_t columns, float fill,
                float step)
{
    file_tensor *t = &list->of[list->count++];
    *t = (file_tensor){.rank = columns ? 2 : 1, .shape = {rows, columns}};
    t->fill = fill, t->step = step;
    snprintf(t->name, sizeof t->name, "%s", name);
}

static file_tensor *named(tensor_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->of[i].name, name) == 0) return &list->of[i];
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

static void drop(tensor_list *list, const char *name)
{
    file_tensor *t = named(list, name);
    *t = list->of[--list->count];
}

/* The weights of base_config. */
static tensor_list llama_tensors(void)
{
    tensor_list list = {.count = 0};
    add(&list, "model.embed_tokens.weight", 11, 32, 0, 1);
    add(&list, "model.layers.0.input_layernorm.weight", 32, 0, 1, 0);
    add(&list, "model.layers.0.self_attn.q_proj.weight", 32, 32, 0, 0);
    add(&list, "model.layers.0.self_attn.k_proj.weight", 16, 32, 0, 0);
    add(&list, "model.layers.0.self_attn.v_proj.weight", 16, 32, 0, 0);
    add(&list, "model.layers.0.self_attn.o_proj.weight", 32, 32, 0, 0);
    add(&list, "model.layers.0.post_attention_layernorm.weight", 32, 0, 1, 0);
    add(&list, "model.layers.0.mlp.gate_proj.weight", 48, 32, 0, 0);
    add(&list, "model.layers.0.mlp.up_proj.weight", 48, 32, 0, 0);
    add(&list, "model.layers.0.mlp.down_proj.weight", 32, 48, 0, 0);
    add(&list, "model.norm.weight", 32, 0, 1, 0);
    add(&list, "lm_head.weight", 11, 32, 5, 1);
    return list;
}

static tensor_list internlm2_tensors(void)
{
    tensor_list list = {.count = 0};
    add(&list, "model.tok_embeddings.weight", 11, 32, 0, 0);
    add(&list, "model.layers.0.attention_norm.weight", 32, 0, 1, 0);
    add(&list, "model.layers.0.attention.wqkv.weight", 64, 32, 0, 1);
    add(&list, "model.layers.0.attention.wqkv.bias", 64, 0, 0, 1);
    add(&list, "model.layers.0.attention.wo.weight", 32, 32, 0, 0);
    add(&list, "model.layers.0.attention.wo.bias", 32, 0, 0, 0);
    add(&list, "model.layers.0.ffn_norm.weight", 32, 0, 1, 0);
    add(&list, "model.layers.0.feed_forward.w1.weight", 48, 32, 1, 0);
    add(&list, "model.layers.0.feed_forward.w3.weight", 48, 32, 3, 0);
    add(&list, "model.layers.0.feed_forward.w2.weight", 32, 48, 2, 0);
    add(&list, "model.norm.weight", 32, 0, 1, 0);
    add(&list, "output.weight", 11, 32, 0, 0);
    return list;
}

static qp_status open_list(const tensor_list *list, const char *changes, model **out)
{
    char folder[64];
    folder_make(folder);
    cJSON *json = config_with(changes);
    char *text = cJSON_PrintUnformatted(json);
    folder_write_text(folder, "config.json", text);
    folder_write_safetensors(folder, list->of, list->count);
    cJSON_free(text);
    cJSON_Delete(json);
    *out = NULL;
    memset(&error, 0, sizeof error);
    qp_status status = model_open(folder, NULL, out, &error);
    if (status == QP_OK) /* mapped files outlive their names */
        assert_string_equal(model_get_config(*out)->name, folder + strlen("/tmp/"));
    folder_remove(folder);
    return status;
}

static void weights_are_bound(void **state)
{
    (void)state;
    tensor_list list = llama_tensors();
    model *m;
    assert_ok(open_list(&list, "{}", &m));
    const tensor *head = &model_get_weight(m, WEIGHT_OUTPUT, 0)->weight;
    assert_true(((const float *)head->data)[1] == 6);
    const model_weight *q = model_get_weight(m, WEIGHT_ATTN_Q, 0);
    assert_int_equal(q->weight.shape[0], 32);
    assert_int_equal(q->bias.rank, 0);
    size_t elements = 0;
    for (size_t i = 0; i < list.count; i++)
        elements += file_tensor_elements(&list.of[i]);
    assert_int_equal(model_weight_bytes(m), elements * 4);
    const tensor *embedding = &model_get_weight(m, WEIGHT_TOKEN_EMBD, 0)->weight;
    size_t rows_that_are_not_read = (size_t)embedding->shape[0] - 1;
    assert_int_equal(model_read_bytes(m),
                     (elements - rows_that_are_not_read * (size_t)embedding->shape[1]) * 4);
    model_close(m);
}

/* A tied model's head is its embedding; a stored head must be the same. */
static void tied_heads_are_the_embedding(void **state)
{
    (void)state;
    model *m;
    for (int stored = 0; stored < 2; stored++) {
        tensor_list list = llama_tensors();
        named(&list, "lm_head.weight")->fill = 0; /* as the embedding's */
        if (!stored) drop(&list, "lm_head.weight");
        assert_ok(open_list(&list, "{\"tie_word_embeddings\":true}", &m));
        assert_ptr_equal(model_get_weight(m, WEIGHT_OUTPUT, 0)->weight.data,
                         model_get_weight(m, WEIGHT_TOKEN_EMBD, 0)->weight.data);
        assert_int_equal(model_read_bytes(m), model_weight_bytes(m));
        model_close(m);
    }
    tensor_list list = llama_tensors();
    assert_int_equal(open_list(&list, "{\"tie_word_embeddings\":true}", &m), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "lm_head.weight"));
    assert_non_null(strstr(error.message, "differs"));
    drop(&list, "lm_head.weight");
    assert_int_equal(open_list(&list, "{}", &m), QP_FORMAT);
    assert_non_null(strstr(error.message, "\"lm_head.weight\" is missing"));
}

/* A tensor that nothing would read is an error that names it; some are known to be of no use. */
static void unread_tensors_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *name, *why;
    } unread[] = {
        {"model.layers.0.self_attn.q_norm.weight", "not one that a llama model"},
        {"model.layers.0.self_attn.k_norm.weight", "not one that"},
        {"model.layers.1.self_attn.q_proj.weight", "belongs to layer 1"},
        {"model.layers.0.self_attn.q_proj.bias", "not one that"},
        {"model.layers.0.mlp.down_proj.bias", "not one that"},
        {"model.layers.0.input_layernorm.bias", "not one that"},
        {"model.layers.self_attn.q_proj.weight", "not one that"},
        {"model.layers.0.self_attn.q_proj.weight_scale", "not one that"},
        {"model.layers.0.self_attn.q_proj.lora_A.weight", "not one that"},
        {"model.layers.0", "not one that"},
        {"layers.0.attention.wq.weight", "not one that"},
        {"lm_head.bias", "not one that"},
        {"v_head.summary.weight", "not one that"},
    };
    model *m;
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++) {
        tensor_list list = llama_tensors();
        add(&list, unread[i].name, 32, 0, 0, 0);
        qp_status status = open_list(&list, "{}", &m);
        char quoted[128];
        snprintf(quoted, sizeof quoted, "\"%s\"", unread[i].name);
        if (status != QP_UNSUPPORTED || !strstr(error.message, quoted) ||
            !strstr(error.message, unread[i].why))
            fail_msg("%s: status %d, %s", unread[i].name, status, error.message);
    }
    static const char *const useless[] = {"model.layers.0.self_attn.rotary_emb.inv_freq",
                                          "model.rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof useless / sizeof *useless; i++) {
        tensor_list list = llama_tensors();
        add(&list, useless[i], 4, 0, 0, 0);
        assert_ok(open_list(&list, "{}", &m));
        model_close(m);
    }
}

static void missing_weights_are_named(void **state)
{
    (void)state;
    tensor_list whole = llama_tensors();
    for (size_t i = 0; i < whole.count; i++) {
        tensor_list list = whole;
        drop(&list, whole.of[i].name);
        model *m;
        assert_int_equal(open_list(&list, "{}", &m), QP_FORMAT);
        assert_null(m);
        assert_non_null(strstr(error.message, whole.of[i].name));
        assert_non_null(strstr(error.message, "missing"));
    }
}

static void wrong_shapes_are_named(void **state)
{
    (void)state;
    tensor_list whole = llama_tensors();
    for (size_t i = 0; i < whole.count; i++) {
        for (int way = 0; way < 3; way++) {
            tensor_list list = whole;
            file_tensor *t = &list.of[i];
            if (way == 2)
                t->rank = 3 - t->rank, t->shape[1] = 1; /* a vector for a matrix, or n x 1 */
            else if (way < t->rank)
                t->shape[way]++;
            else
                continue;
            model *m;
            if (open_list(&list, "{}", &m) != QP_FORMAT || !strstr(error.message, t->name) ||
                !strstr(error.message, "must be") || !strstr(error.message, "found"))
                fail_msg("%s: %s", t->name, error.message);
        }
    }
    tensor_list list = whole;
    add(&list, "model.layers.0.self_attn.q_proj.bias", 31, 0, 0, 0);
    model *m;
    assert_int_equal(open_list(&list, "{\"attention_bias\":true}", &m), QP_FORMAT);
    assert_non_null(strstr(error.message, "q_proj.bias"));
    static const char *const names[] = {"k", "v", "o"};
    for (int i = 0; i < 3; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.0.self_attn.%s_proj.bias", names[i]);
        add(&list, name, i == 2 ? 32 : 16, 0, 0, 0);
    }
    named(&list, "model.layers.0.self_attn.q_proj.bias")->shape[0] = 32;
    assert_ok(open_list(&list, "{\"attention_bias\":true}", &m));
    assert_int_equal(model_get_weight(m, WEIGHT_ATTN_Q, 0)->bias.shape[0], 32);
    model_close(m);
}

/* A config that promises biases which the file lacks is not silently run without them. */
static void promised_biases_are_required(void **state)
{
    (void)state;
    tensor_list list = llama_tensors();
    model *m;
    assert_int_equal(open_list(&list, "{\"attention_bias\":true}", &m), QP_FORMAT);
    assert_non_null(strstr(error.message, "self_attn.q_proj.bias"));
    assert_int_equal(open_list(&list, "{\"mlp_bias\":true}", &m), QP_FORMAT);
    assert_non_null(strstr(error.message, "mlp.gate_proj.bias"));
    assert_int_equal(open_list(&list, "{\"mlp_bias\":\"no\"}", &m), QP_FORMAT);
    assert_non_null(strstr(error.message, "true or false"));
    tensor_list other = internlm2_tensors();
    drop(&other, "model.layers.0.attention.wo.bias");
    assert_int_equal(
        open_list(&other, "{\"architectures\":[\"InternLM2ForCausalLM\"],\"bias\":true}", &m),
        QP_FORMAT);
    assert_non_null(strstr(error.message, "attention.wo.bias"));
    assert_ok(open_list(&list, "{\"attention_bias\":false,\"mlp_bias\":false}", &m));
    model_close(m);
}

/* Rows of wqkv: for each KV head its query heads, its key, its value, head_dim rows each. */
static void internlm2_rows_are_taken_apart(void **state)
{
    (void)state;
    tensor_list list = internlm2_tensors();
    model *m;
    assert_ok(open_list(&list, "{\"architectures\":[\"InternLM2ForCausalLM\"]}", &m));
    static const struct {
        weight_slot slot;
        int heads, first; /* rows of wqkv's group of 4 heads: q q k v */
    } parts[] = {{WEIGHT_ATTN_Q, 2, 0}, {WEIGHT_ATTN_K, 1, 2}, {WEIGHT_ATTN_V, 1, 3}};
    for (int p = 0; p < 3; p++) {
        const model_weight *w = model_get_weight(m, parts[p].slot, 0);
        assert_int_equal(w->weight.shape[0], parts[p].heads * 2 * 8);
        assert_int_equal(w->weight.shape[1], 32);
        assert_int_equal(w->bias.shape[0], parts[p].heads * 2 * 8);
        for (int row = 0; row < parts[p].heads * 2 * 8; row++) {
            int group = row / (parts[p].heads * 8), inside = row % (parts[p].heads * 8);
            int from = (group * 4 + parts[p].first) * 8 + inside;
            const float *values = tensor_row(&w->weight, row);
            assert_true(values[0] == (float)(from * 32) && values[31] == (float)(from * 32 + 31));
            assert_true(*(const float *)tensor_row(&w->bias, row) == (float)from);
        }
    }
    assert_true(*(float *)model_get_weight(m, WEIGHT_FFN_GATE, 0)->weight.data == 1);
    assert_true(*(float *)model_get_weight(m, WEIGHT_FFN_UP, 0)->weight.data == 3);
    assert_true(*(float *)model_get_weight(m, WEIGHT_FFN_DOWN, 0)->weight.data == 2);
    model_close(m);
    static const struct {
        const char *name;
        int64_t rows, columns;
    } wrong[] = {{"model.layers.0.attention.wqkv.weight", 63, 32},
                 {"model.layers.0.attention.wqkv.weight", 64, 31},
                 {"model.layers.0.attention.wqkv.weight", 64, 0},
                 {"model.layers.0.attention.wqkv.bias", 65, 0},
                 {"model.layers.0.attention.wqkv.bias", 64, 2}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tensor_list broken = internlm2_tensors();
        file_tensor *t = named(&broken, wrong[i].name);
        t->rank = wrong[i].columns ? 2 : 1, t->shape[0] = wrong[i].rows;
        t->shape[1] = wrong[i].columns;
        assert_int_equal(open_list(&broken, "{\"architectures\":[\"InternLM2ForCausalLM\"]}", &m),
                         QP_FORMAT);
        assert_non_null(strstr(error.message, "wqkv"));
    }
    drop(&list, "model.layers.0.attention.wqkv.weight");
    assert_int_equal(open_list(&list, "{\"architectures\":[\"InternLM2ForCausalLM\"]}", &m),
                     QP_FORMAT);
    assert_non_null(strstr(error.message, "wqkv.weight\" is missing"));
}

static void broken_directories_are_named(void **state)
{
    (void)state;
    char folder[64];
    folder_make(folder);
    model *m = NULL;
    assert_int_equal(model_open(folder, NULL, &m, &error), QP_IO);
    assert_non_null(strstr(error.message, "config.json"));
    folder_write_text(folder, "config.json", "{\"hidden_size\": 3,\n  oops}");
    assert_int_equal(model_open(folder, NULL, &m, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "line 2"));
    folder_write_text(folder, "config.json", base_config);
    assert_int_equal(model_open(folder, NULL, &m, &error), QP_IO);
    assert_non_null(strstr(error.message, "safetensors"));
    char *large = malloc(2 << 20);
    memset(large, ' ', 2 << 20);
    folder_write(folder, "config.json", large, 2 << 20);
    free(large);
    assert_int_not_equal(model_open(folder, NULL, &m, &error), QP_OK);
    assert_non_null(strstr(error.message, "config.json"));
    folder_remove(folder);
    assert_null(m);
}

/* --- GGUF keys ------------------------------------------------------------------------------- */

/* Writes a file with the usual keys but `without`, and lets `change` add to it; `more` is the name
 * of one more tensor, a vector, or NULL. */
static qp_status open_gguf_of(const char *without, void (*change)(gguf_writer *writer),
                              const char *more, model **m)
{
    char folder[64], path[128];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    gguf_writer *w;
    assert_ok(gguf_writer_create(path, 0, &w, &error));
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = {{"llama.context_length", 64},
                {"llama.embedding_length", 4},
                {"llama.block_count", 1},
                {"llama.feed_forward_length", 4},
                {"llama.attention.head_count", 2}};
    static const char eps[] = "llama.attention.layer_norm_rms_epsilon";
    if (strcmp(without, "general.architecture") != 0)
        gguf_put_string(w, "general.architecture", (text_slice){"llama", 5});
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(without, keys[i].key) != 0) gguf_put_u32(w, keys[i].key, keys[i].value);
    }
    if (strcmp(without, eps) != 0) gguf_put_f32(w, eps, 1e-5f);
    if (change) change(w);
    const struct {
        const char *name;
        int rank;
    } tensors[] = {{"token_embd.weight", 2},     {"blk.0.attn_norm.weight", 1},
                   {"blk.0.attn_q.weight", 2},   {"blk.0.attn_k.weight", 2},
                   {"blk.0.attn_v.weight", 2},   {"blk.0.attn_output.weight", 2},
                   {"blk.0.ffn_norm.weight", 1}, {"blk.0.ffn_gate.weight", 2},
                   {"blk.0.ffn_up.weight", 2},   {"blk.0.ffn_down.weight", 2},
                   {"output_norm.weight", 1},    {more, 1}};
    const int N = (int)(sizeof tensors / sizeof *tensors) - !more;
    static const int64_t shape[2] = {4, 4};
    static const float zeros[16];
    for (int i = 0; i < N; i++) {
        if (strcmp(without, tensors[i].name) != 0)
            gguf_put_tensor(w, (text_slice){tensors[i].name, strlen(tensors[i].name)}, DTYPE_F32,
                            tensors[i].rank, shape);
    }
    assert_ok(gguf_writer_begin(w, &error));
    for (int i = 0; i < N; i++) {
        size_t bytes = (tensors[i].rank == 2 ? 16 : 4) * sizeof(float);
        if (strcmp(without, tensors[i].name) != 0)
            assert_ok(gguf_writer_data(w, zeros, bytes, &error));
    }
    assert_ok(gguf_writer_finish(w, &error));
    gguf_writer_destroy(w);
    *m = NULL;
    memset(&error, 0, sizeof error);
    qp_status status = model_open(path, NULL, m, &error);
    folder_remove(folder);
    return status;
}

static qp_status open_gguf_with(const char *without, void (*change)(gguf_writer *writer), model **m)
{
    return open_gguf_of(without, change, NULL, m);
}

static void unread_tensors_of_gguf_are_named(void **state)
{
    (void)state;
    static const char *const unread[] = {"blk.0.attn_q_norm.weight", "blk.1.attn_q.weight",
                                         "blk.0.ffn_gate_exps.weight", "output.bias",
                                         "rope_factors_long.weight"};
    model *m;
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++) {
        assert_int_equal(open_gguf_of("", NULL, unread[i], &m), QP_UNSUPPORTED);
        if (!strstr(error.message, unread[i])) fail_msg("%s: %s", unread[i], error.message);
    }
    assert_ok(open_gguf_of("", NULL, "blk.0.attn_q.bias", &m));
    assert_int_equal(model_get_weight(m, WEIGHT_ATTN_Q, 0)->bias.rank, 1);
    model_close(m);
    assert_int_equal(open_gguf_of("", NULL, "rope_freqs.weight", &m), QP_FORMAT); /* is read */
}

static void gguf_keys_are_required(void **state)
{
    (void)state;
    model *m;
    assert_ok(open_gguf_with("", NULL, &m));
    assert_true(model_get_config(m)->tied);
    assert_true(model_get_config(m)->rope.interleaved);
    assert_int_equal(model_get_config(m)->n_kv_heads, 2);
    assert_int_equal(model_get_config(m)->vocab_size, 4);
    model_close(m);
    static const char *const keys[] = {
        "general.architecture",       "llama.context_length",
        "llama.embedding_length",     "llama.block_count",
        "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon",
        "token_embd.weight",          "blk.0.attn_k.weight",
        "output_norm.weight"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        assert_int_equal(open_gguf_with(keys[i], NULL, &m), QP_FORMAT);
        if (!strstr(error.message, keys[i]) || !strstr(error.message, "missing"))
            fail_msg("%s: %s", keys[i], error.message);
    }
}

static void put_experts(gguf_writer *w)
{
    gguf_put_u32(w, "llama.expert_count", 8);
}
static void put_yarn(gguf_writer *w)
{
    gguf_put_string(w, "llama.rope.scaling.type", (text_slice){"yarn", 4});
}
static void put_value_length(gguf_writer *w)
{
    gguf_put_u32(w, "llama.attention.key_length", 2);
    gguf_put_u32(w, "llama.attention.value_length", 4);
}
static void put_text_heads(gguf_writer *w)
{
    gguf_put_string(w, "llama.attention.head_count_kv", (text_slice){"2", 1});
}
static void put_unequal_heads(gguf_writer *w)
{
    gguf_put_array(w, "llama.attention.head_count_kv", GGUF_U32, (uint32_t[]){2, 1}, 2);
}
static void put_no_heads(gguf_writer *w)
{
    gguf_put_array(w, "llama.attention.head_count_kv", GGUF_U32, (uint32_t[]){0}, 0);
}
static void put_odd_rope(gguf_writer *w)
{
    gguf_put_u32(w, "llama.rope.dimension_count", 3);
}
static void put_linear(gguf_writer *w)
{
    gguf_put_string(w, "llama.rope.scaling.type", (text_slice){"linear", 6});
}
static void put_scale(gguf_writer *w)
{
    gguf_put_f32(w, "llama.logit_scale", 0.25f);
}
static void put_window(gguf_writer *w)
{
    gguf_put_u32(w, "llama.attention.sliding_window", 16);
}
static void put_nan_theta(gguf_writer *w)
{
    gguf_put_f32(w, "llama.rope.freq_base", NAN);
}

static void gguf_keys_that_cannot_be_run_are_refused(void **state)
{
    (void)state;
    static const struct {
        void (*change)(gguf_writer *writer);
        qp_status status;
        const char *parts[2];
    } cases[] = {
        {put_experts, QP_UNSUPPORTED, {"8 experts"}},
        {put_yarn, QP_UNSUPPORTED, {"yarn", "rope_freqs"}},
        {put_value_length, QP_UNSUPPORTED, {"keys of 2", "values of 4"}},
        {put_text_heads, QP_FORMAT, {"head_count_kv"}},
        {put_unequal_heads, QP_UNSUPPORTED, {"head_count_kv", "differs"}},
        {put_odd_rope, QP_FORMAT, {"even", "found 3"}},
        {put_nan_theta, QP_FORMAT, {"rope_theta", "nan"}},
        {put_linear, QP_FORMAT, {"rope.scaling.factor", "missing"}},
        {put_scale, QP_UNSUPPORTED, {"llama.logit_scale", "0.25"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model *m;
        qp_status status = open_gguf_with("", cases[i].change, &m);
        if (status != cases[i].status || !strstr(error.message, cases[i].parts[0]) ||
            (cases[i].parts[1] && !strstr(error.message, cases[i].parts[1])))
            fail_msg("case %zu: status %d, %s", i, status, error.message);
        assert_null(m);
    }
    model *m;
    assert_ok(open_gguf_with("", put_window, &m));
    assert_int_equal(model_get_config(m)->window, 16);
    assert_int_equal(config_usual_context(model_get_config(m)), 16);
    model_close(m);
    /* An empty list says nothing. */
    qp_status status = open_gguf_with("", put_no_heads, &m);
    if (status == QP_OK) assert_int_equal(model_get_config(m)->n_kv_heads, 2);
    model_close(m);
}

/* --- RoPE ------------------------------------------------------------------------------------ */

static bool near(double a, double b)
{
    return fabs(a - b) <= 2 * (double)FLT_EPSILON * fabs(b);
}

/* theta^(-2i/D), divided by the factor when linear; position times it for the table. */
static void plain_and_linear_frequencies(void **state)
{
    (void)state;
    rope_config rope = {.dim = 64, .theta = 1e5, .factor = 1};
    float frequencies[32], row[64];
    rope_inverse_frequencies(&rope, 5, frequencies);
    for (int i = 0; i < 32; i++)
        assert_true(near((double)frequencies[i], exp(-2.0 * i / 64 * log(1e5))));
    for (int64_t position = 0; position < 9000; position += 811) {
        rope_table_row(&rope, frequencies, position, row);
        for (int i = 0; i < 32; i++) {
            float angle = (float)position * frequencies[i];
            assert_true(fabs((double)row[i] - cos((double)angle)) < 1e-7);
            assert_true(fabs((double)row[32 + i] - sin((double)angle)) < 1e-7);
        }
    }
    rope.scaling = ROPE_LINEAR, rope.factor = 3.5;
    rope_inverse_frequencies(&rope, 5, frequencies);
    for (int i = 0; i < 32; i++)
        assert_true(near((double)frequencies[i], pow(1e5, -2.0 * i / 64) / 3.5));
    float divisors[32];
    for (int i = 0; i < 32; i++)
        divisors[i] = (float)(1 + i);
    rope.scaling = ROPE_DEFAULT, rope.divisors = divisors;
    rope_inverse_frequencies(&rope, 5, frequencies);
    for (int i = 0; i < 32; i++)
        assert_true(near((double)frequencies[i], pow(1e5, -2.0 * i / 64) / (1 + i)));
}

/* base (f L / max - (f - 1))^(D / (D - 2)) beyond max. */
static void dynamic_frequencies(void **state)
{
    (void)state;
    rope_config rope = {
        .scaling = ROPE_DYNAMIC, .dim = 128, .theta = 1e6, .factor = 2, .original_context = 4096};
    float frequencies[64];
    static const int64_t lengths[] = {0, 1, 4096, 4097, 8192, 100000};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        rope_inverse_frequencies(&rope, lengths[k], frequencies);
        double length = lengths[k] > 4096 ? (double)lengths[k] : 4096;
        double base = 1e6 * pow(2 * length / 4096 - 1, 128.0 / 126);
        for (int i = 0; i < 64; i++)
            assert_true(near((double)frequencies[i], pow(base, -2.0 * i / 128)));
    }
}

static void llama3_frequencies(void **state)
{
    (void)state;
    rope_config rope = {.scaling = ROPE_LLAMA3,
                        .dim = 128,
                        .theta = 500000,
                        .factor = 8,
                        .low_freq_factor = 1,
                        .high_freq_factor = 4,
                        .original_context = 8192};
    float frequencies[64];
    rope_inverse_frequencies(&rope, 99999, frequencies);
    int kept = 0, divided = 0, blended = 0;
    for (int i = 0; i < 64; i++) {
        double plain = pow(500000, -2.0 * i / 128), wavelength = 2 * acos(-1.0) / plain;
        double want;
        if (wavelength < 8192 / 4.0)
            want = plain, kept++;
        else if (wavelength > 8192 / 1.0)
            want = plain / 8, divided++;
        else {
            double s = (8192 / wavelength - 1) / 3;
            want = (1 - s) * plain / 8 + s * plain, blended++;
        }
        assert_true(near((double)frequencies[i], want));
    }
    assert_true(kept > 20 && divided > 20 && blended > 3);
}

static void scalings_have_names(void **state)
{
    (void)state;
    assert_string_equal(rope_scaling_name(ROPE_DEFAULT), "default");
    assert_string_equal(rope_scaling_name(ROPE_LLAMA3), "llama3");
}

/* --- Synthetic weights ----------------------------------------------------------------------- */

/* The same bits for any number of threads; none at all where only sizes are asked for. */
static void synthetic_weights_do_not_depend_on_threads(void **state)
{
    (void)state;
    thread_pool *pool;
    assert_ok(thread_pool_create(3, &pool, &error));
    model *one, *three, *none;
    model_options with_pool = {.pool = pool}, sizes_only = {.sizes_only = true};
    assert_ok(model_open("synthetic:tiny:Q4_K:5", NULL, &one, &error));
    assert_ok(model_open("synthetic:tiny:Q4_K:5", &with_pool, &three, &error));
    assert_ok(model_open("synthetic:tiny:Q4_K:5", &sizes_only, &none, &error));
    assert_int_equal(model_weight_bytes(one), model_weight_bytes(none));
    assert_int_equal(model_read_bytes(one), model_read_bytes(none));
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        if (!family_has(&family_llama, (weight_slot)slot)) continue;
        const tensor *a = &model_get_weight(one, (weight_slot)slot, 1)->weight;
        const tensor *b = &model_get_weight(three, (weight_slot)slot, 1)->weight;
        const tensor *c = &model_get_weight(none, (weight_slot)slot, 1)->weight;
        assert_int_equal(tensor_bytes(a), tensor_bytes(b));
        assert_memory_equal(a->data, b->data, tensor_bytes(a));
        assert_null(c->data);
        assert_int_equal(tensor_bytes(a), tensor_bytes(c));
    }
    model_close(one);
    model_close(three);
    model_close(none);
    model_close(NULL);
    thread_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_json_is_read),
        cmocka_unit_test(keys_may_be_absent_or_null),
        cmocka_unit_test(families_have_several_names),
        cmocka_unit_test(families_are_whole),
        cmocka_unit_test(families_have_their_usual_values),
        cmocka_unit_test(windows_are_used_where_the_family_does),
        cmocka_unit_test(layers_without_rope_are_read),
        cmocka_unit_test(sizes_have_their_rules),
        cmocka_unit_test(rope_scaling_has_two_spellings),
        cmocka_unit_test(wrong_configs_are_named),
        cmocka_unit_test(weights_are_bound),
        cmocka_unit_test(tied_heads_are_the_embedding),
        cmocka_unit_test(unread_tensors_are_named),
        cmocka_unit_test(unread_tensors_of_gguf_are_named),
        cmocka_unit_test(missing_weights_are_named),
        cmocka_unit_test(wrong_shapes_are_named),
        cmocka_unit_test(promised_biases_are_required),
        cmocka_unit_test(internlm2_rows_are_taken_apart),
        cmocka_unit_test(broken_directories_are_named),
        cmocka_unit_test(gguf_keys_are_required),
        cmocka_unit_test(gguf_keys_that_cannot_be_run_are_refused),
        cmocka_unit_test(plain_and_linear_frequencies),
        cmocka_unit_test(dynamic_frequencies),
        cmocka_unit_test(llama3_frequencies),
        cmocka_unit_test(scalings_have_names),
        cmocka_unit_test(synthetic_weights_do_not_depend_on_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
