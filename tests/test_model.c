/* Models: weights checked against config.json and the keys of GGUF. Errors name the file, the key
 * or tensor, expected and found.
 */
#include "model/model.h"

#include "file/gguf_write.h"
#include "model/family/family.h"
#include "config_test.h"
#include "model_files.h"

#include <math.h>

static qp_error error;

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

/* Kernels read biases in F32, whatever the file has and whether weights are made. */
static void biases_are_widened(void **state)
{
    (void)state;
    static const char *const paths[] = {"golden/models/qwen2",
                                        "golden/models/internlm2-bias-dynamic"};
    for (int i = 0; i < 4; i++) {
        model *m;
        assert_ok(model_open(paths[i / 2], &(model_options){.sizes_only = i % 2}, &m, &error));
        const model_weight *k = model_get_weight(m, WEIGHT_ATTN_K, 1);
        float first;
        assert_int_equal(k->weight.type, DTYPE_BF16);
        if (k->bias.rank == 0) fail_msg("%s has no biases", paths[i / 2]);
        assert_int_equal(k->bias.type, DTYPE_F32);
        model_read_rows(m, WEIGHT_ATTN_K, 1, true, 0, 1, &first);
        assert_true(first == *(float *)k->bias.data);
        model_close(m);
    }
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
    char file[128];
    snprintf(file, sizeof file, "%s/config.json", folder);
    assert_int_equal(model_open(file, NULL, &m, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "a JSON file has no weights"));
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
                                         "rope_factors_short.weight"};
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
static void put_xpos(gguf_writer *w)
{
    gguf_put_string(w, "llama.rope.scaling.type", (text_slice){"xpos", 4});
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
        {put_experts, QP_FORMAT, {"1 to 8 of 8", "found 0"}},
        {put_xpos, QP_UNSUPPORTED, {"xpos", "rope_freqs"}},
        {put_yarn, QP_FORMAT, {"rope.scaling.factor", "missing"}},
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
        cmocka_unit_test(weights_are_bound),
        cmocka_unit_test(tied_heads_are_the_embedding),
        cmocka_unit_test(unread_tensors_are_named),
        cmocka_unit_test(unread_tensors_of_gguf_are_named),
        cmocka_unit_test(missing_weights_are_named),
        cmocka_unit_test(wrong_shapes_are_named),
        cmocka_unit_test(biases_are_widened),
        cmocka_unit_test(promised_biases_are_required),
        cmocka_unit_test(internlm2_rows_are_taken_apart),
        cmocka_unit_test(broken_directories_are_named),
        cmocka_unit_test(gguf_keys_are_required),
        cmocka_unit_test(gguf_keys_that_cannot_be_run_are_refused),
        cmocka_unit_test(synthetic_weights_do_not_depend_on_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
