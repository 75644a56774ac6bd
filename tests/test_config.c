/* Sizes of models: all spellings of config.json, and RoPE frequencies compared with their closed
 * forms. Errors name the file, the key, expected and found.
 */
#include "model/model.h"

#include "config_test.h"
#include "model/config_read.h"

#include <float.h>
#include <math.h>

static qp_error error;

/* --- config.json ----------------------------------------------------------------------------- */

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

/* What is refused with a reason is nowhere read. */
static void refused_families_are_not_read(void **state)
{
    (void)state;
    static const struct {
        const char *json, *gguf;
    } refused[] = {
#define REFUSED(JSON, GGUF, WHY) {JSON, GGUF},
#include "model/family/refused.def"
#undef REFUSED
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_null(family_by_json(refused[i].json));
        assert_true(*family_refusal_json(refused[i].json) == ':');
        if (!refused[i].gguf) continue;
        assert_null(family_by_gguf(slice_of(refused[i].gguf), false));
        assert_null(family_by_gguf(slice_of(refused[i].gguf), true));
        assert_true(*family_refusal_gguf(slice_of(refused[i].gguf)) == ':');
    }
    assert_string_equal(family_refusal_gguf(slice_of("llama")), "");
}

/* Whether a family may lack a weight: norms, and the FFN or the experts. */
static bool may_lack(const model_family *f, int slot)
{
    if (weight_get_info((weight_slot)slot)->is_norm) return true;
    return (f->experts ? SLOTS_FFN : SLOTS_EXPERTS | SLOT(ROUTER)) >> slot & 1;
}

/* Every family names every matrix that it needs. Norms of q and k come together, and so do those
 * after attention and the MLP. A family is found by each of its names. */
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
            if (!family_has(f, (weight_slot)slot) && !may_lack(f, slot))
                fail_msg("%s has no %s", f->name, weight_get_info((weight_slot)slot)->name);
        }
        assert_int_equal(family_has(f, WEIGHT_ATTN_Q_NORM), family_has(f, WEIGHT_ATTN_K_NORM));
        assert_int_equal(family_has(f, WEIGHT_ATTN_POST_NORM), family_has(f, WEIGHT_FFN_POST_NORM));
        assert_true(family_has(f, WEIGHT_OUTPUT_NORM));
        assert_ptr_equal(family_by_name(f->name), f);
        assert_non_null(f->json[0]);
        for (int k = 0; f->json[k]; k++)
            assert_ptr_equal(family_by_json(f->json[k]), f);
        const model_family *file = family_by_gguf(slice_of(f->gguf), f->experts);
        /* mistral's are llama's */
        assert_true(file && file->gguf_pairs == f->gguf_pairs);
        assert_true(f->context_length > 0);
    }
    assert_null(family_by_name("gemma"));
    assert_null(family_by_gguf(slice_of("qwen2moe"), true));
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

#define GEMMA3 "{\"architectures\":[\"Gemma3ForCausalLM\"],\"hidden_act\":null,"

/* Multipliers, caps, layers that slide and their RoPE, with and without keys. */
static void gemma_is_read(void **state)
{
    (void)state;
    model_config c = good_config(GEMMA3 "\"num_hidden_layers\":7,\"rope_local_base_freq\":77}");
    assert_true(c.scales.embedding == sqrt(32) && c.scales.attention == 1.0 / 16);
    assert_true(c.scales.residual == 0 && c.scales.logits == 0 && c.scales.logits_cap == 0);
    assert_true(c.rope.theta == 5000 && c.rope_local.theta == 77 && c.tied);
    assert_int_equal(bits_of(&c.windowed), 0x5f);
    c = good_config(GEMMA3 "\"query_pre_attn_scalar\":64,\"final_logit_softcapping\":20,"
                           "\"rope_parameters\":{\"sliding_attention\":{\"rope_theta\":55},"
                           "\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8}}}");
    assert_true(c.scales.attention == 1.0 / 8 && c.scales.logits_cap == 20);
    assert_true(c.rope_local.theta == 55 && c.rope_local.scaling == ROPE_DEFAULT);
    assert_true(c.rope.scaling == ROPE_LINEAR && c.rope.factor == 8);
    c = good_config("{\"model_type\":\"gemma2\",\"architectures\":null,\"hidden_act\":null,"
                    "\"num_hidden_layers\":4,\"final_logit_softcapping\":0}");
    assert_int_equal(bits_of(&c.windowed), 5);
    assert_true(c.scales.attention_cap == 50 && c.scales.logits_cap == 0 && !c.rope_local.dim);
}

static const struct wrong_config {
    const char *changes;
    qp_status status;
    const char *parts[3];
} wrong_configs[] = {
    {"{\"architectures\":[\"Exaone4ForCausalLM\"]}",
     QP_UNSUPPORTED,
     {"\"Exaone4ForCausalLM\"", "its norms come after", "expected one of LlamaForCausalLM"}},
    {"{\"architectures\":[\"GraniteForCausalLM\"],\"residual_multiplier\":0.2,\"mlp_bias\":true}",
     QP_UNSUPPORTED,
     {"multiplier of residuals with biases"}},
    {"{\"architectures\":[\"GraniteForCausalLM\"],\"logits_scaling\":0}",
     QP_FORMAT,
     {"\"logits_scaling\" must be positive", "found 0"}},
    {"{\"architectures\":[\"Glm4ForCausalLM\"],\"head_dim\":8,\"partial_rotary_factor\":0}",
     QP_FORMAT,
     {"\"partial_rotary_factor\"", "above 0", "found 0"}},
    {"{\"architectures\":[\"Phi3ForCausalLM\"],\"partial_rotary_factor\":0.4}",
     QP_FORMAT,
     {"rotary dimension", "even", "found 3"}},
    {"{\"architectures\":[\"NobodysForCausalLM\"]}",
     QP_UNSUPPORTED,
     {"\"NobodysForCausalLM\" is not supported; expected"}},
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
    {"{\"rope_scaling\":{\"type\":\"xpos\",\"factor\":2}}",
     QP_UNSUPPORTED,
     {"\"xpos\"", "expected", "longrope"}},
    {"{\"rope_scaling\":{\"type\":\"yarn\"}}", QP_FORMAT, {"\"yarn\"", "\"factor\"", "missing"}},
    {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"beta_fast\":1,\"beta_slow\":2}}",
     QP_FORMAT,
     {"yarn", "beta_slow <= beta_fast", "found 5000, 2 and 1"}},
    {"{\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}",
     QP_FORMAT,
     {"yarn", "rope_theta > 1", "found 1, "}},
    {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"attention_factor\":-1}}",
     QP_FORMAT,
     {"attention factor", "positive", "found -1"}},
    {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,"
     "\"original_max_position_embeddings\":1}}",
     QP_FORMAT,
     {"\"original_max_position_embeddings\"", "at least 2", "found 1"}},
    {"{\"rope_parameters\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1]}}",
     QP_FORMAT,
     {"\"longrope\"", "\"long_factor\"", "missing"}},
    {"{\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,1]}}",
     QP_FORMAT,
     {"\"long_factor\"", "4 pairs", "an array of 2"}},
    {"{\"rope_scaling\":{\"type\":\"yarn\",\"short_factor\":[1,1,0,1],\"long_factor\":[1]}}",
     QP_FORMAT,
     {"\"short_factor\"", "positive numbers"}},
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
    {"{\"logits_scaling\":8}",
     QP_UNSUPPORTED,
     {"\"logits_scaling\" is 8", "of llama", "expected 1"}},
    {"{\"final_logit_softcapping\":30}", QP_UNSUPPORTED, {"\"final_logit_softcapping\"", "30"}},
    {GEMMA3 "\"final_logit_softcapping\":-3}", QP_FORMAT, {"must be positive, or 0", "found -3"}},
    {GEMMA3 "\"hidden_act\":\"silu\"}", QP_UNSUPPORTED, {"\"silu\"", "gelu_pytorch_tanh"}},
    {GEMMA3 "\"sliding_window_pattern\":0}", QP_FORMAT, {"\"sliding_window_pattern\"", "found 0"}},
    {GEMMA3 "\"use_bidirectional_attention\":true}", QP_UNSUPPORTED, {"earlier positions only"}},
    {GEMMA3 "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}",
     QP_UNSUPPORTED,
     {"layers that slide", "not be dynamic"}},
    {"{\"num_local_experts\":8}", QP_UNSUPPORTED, {"\"num_local_experts\"", "dense"}},
    {"{\"quantization_config\":{\"quant_method\":\"aqlm\"}}",
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

/* Pairs that turn more than 32 times in the original context keep their frequency, those that turn
 * less than once are divided, and between them the share of both changes by equal steps. */
static void yarn_frequencies(void **state)
{
    (void)state;
    rope_config rope = {.scaling = ROPE_YARN,
                        .dim = 128,
                        .theta = 1e6,
                        .factor = 4,
                        .beta_fast = 32,
                        .beta_slow = 1,
                        .original_context = 32768};
    float frequencies[64];
    rope_inverse_frequencies(&rope, 99999, frequencies);
    int kept = 0, divided = 0;
    double last = 0, step = 0;
    for (int i = 0; i < 64; i++) {
        const double plain = pow(1e6, -2.0 * i / 128), turns = 32768 * plain / (2 * acos(-1.0));
        const double share = (1 - (double)frequencies[i] / plain) / (1 - 1 / 4.0);
        if (turns > 32 * 1.3) assert_true(near((double)frequencies[i], plain));
        if (turns < 1 / 1.3) assert_true(near((double)frequencies[i], plain / 4));
        kept += share<1e-6, divided += share> 1 - 1e-6;
        if (step > 0 && share < 1 - 1e-6) assert_true(fabs(share - last - step) < 1e-5);
        if (share > 1e-6 && share < 1 - 1e-6 && last > 1e-6) step = share - last;
        last = share;
    }
    assert_true(kept > 15 && divided > 15 && step > 0.04 && step < 0.08);
    assert_true(fabs(rope_yarn_attention(4) - 1.1386294361) < 1e-9 && rope_yarn_attention(1) == 1);
    rope.attention_factor = 1.5;
    float row[128];
    rope_table_row(&rope, frequencies, 0, row);
    assert_true(row[0] == 1.5f && row[64] == 0);
}

/* Divisors of long texts beyond the original context, and of short ones up to it. */
static void longrope_frequencies(void **state)
{
    (void)state;
    static const char scaling[] =
        "{\"partial_rotary_factor\":null,\"original_max_position_embeddings\":16,\"rope_scaling\":{"
        "\"type\":\"su\",\"short_factor\":[1,2,3,4],\"long_factor\":[5,6,7,8]}}";
    arena arena = {0};
    model_config config;
    assert_ok(read_config(scaling, &arena, &config));
    const rope_config rope = config.rope;
    float frequencies[4];
    assert_int_equal(rope.scaling, ROPE_LONGROPE);
    assert_true(near(rope.attention_factor, sqrt(1 + log(4) / log(16))));
    for (int64_t length = 16; length <= 17; length++) {
        rope_inverse_frequencies(&rope, length, frequencies);
        for (int i = 0; i < 4; i++)
            assert_true(near((double)frequencies[i],
                             pow(5000, -i / 4.0) / (double)(i + (length > 16 ? 5 : 1))));
    }
    arena_free(&arena);
}

static void scalings_have_names(void **state)
{
    (void)state;
    assert_string_equal(rope_scaling_name(ROPE_DEFAULT), "default");
    assert_string_equal(rope_scaling_name(ROPE_LLAMA3), "llama3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_json_is_read),
        cmocka_unit_test(keys_may_be_absent_or_null),
        cmocka_unit_test(families_have_several_names),
        cmocka_unit_test(refused_families_are_not_read),
        cmocka_unit_test(families_are_whole),
        cmocka_unit_test(families_have_their_usual_values),
        cmocka_unit_test(windows_are_used_where_the_family_does),
        cmocka_unit_test(layers_without_rope_are_read),
        cmocka_unit_test(sizes_have_their_rules),
        cmocka_unit_test(rope_scaling_has_two_spellings),
        cmocka_unit_test(gemma_is_read),
        cmocka_unit_test(wrong_configs_are_named),
        cmocka_unit_test(plain_and_linear_frequencies),
        cmocka_unit_test(dynamic_frequencies),
        cmocka_unit_test(llama3_frequencies),
        cmocka_unit_test(yarn_frequencies),
        cmocka_unit_test(longrope_frequencies),
        cmocka_unit_test(scalings_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
