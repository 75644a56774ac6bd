/* Matrices in FP8 of safetensors directories: every number, scales of every shape, and files whose
 * scales are not what the matrix needs. A model that is read as BF16 has the logits of its BF16
 * copy, to the bit; one that stays in FP8 has matrices that are not rounded to BF16.
 */
#include "engine_test.h"
#include "model/config_read.h"
#include "model/fp8.h"
#include "model/model.h"
#include "model_files.h"
#include "tensor/codec.h"
#include "tensor/float16.h"

#include <cjson/cJSON.h>
#include <math.h>

static qp_error error;

/* ---- files of tensors of any type ----------------------------------------------------------- */

enum { MAX_TENSORS = 40, MAX_BYTES = 1 << 19 };

typedef struct stored {
    char name[96], type[12], shape[32];
    size_t bytes;
    unsigned char *data;
} stored;

typedef struct folder_list {
    stored of[MAX_TENSORS];
    size_t count, used;
    unsigned char bytes[MAX_BYTES];
} folder_list;

static stored *add(folder_list *list, const char *name, const char *type, const char *shape,
                   size_t bytes)
{
    stored *s = &list->of[list->count++];
    assert_true(list->count <= MAX_TENSORS && list->used + bytes <= MAX_BYTES);
    snprintf(s->name, sizeof s->name, "%s", name);
    snprintf(s->type, sizeof s->type, "%s", type);
    snprintf(s->shape, sizeof s->shape, "%s", shape);
    s->bytes = bytes;
    s->data = list->bytes + list->used;
    list->used += bytes;
    return s;
}

static stored *named(folder_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->of[i].name, name) == 0) return &list->of[i];
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

static void write_folder(const char *folder, const char *config, const folder_list *list)
{
    char *header = malloc(256 * (list->count + 1));
    size_t at = 0, length = (size_t)sprintf(header, "{");
    for (size_t i = 0; i < list->count; at += list->of[i].bytes, i++)
        length += (size_t)sprintf(
            header + length, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
            i ? "," : "", list->of[i].name, list->of[i].type, list->of[i].shape, at,
            at + list->of[i].bytes);
    header[length++] = '}';
    char *file = malloc(8 + length + at);
    const uint64_t header_bytes = length;
    memcpy(file, &header_bytes, 8);
    memcpy(file + 8, header, length);
    size_t to = 8 + length;
    for (size_t i = 0; i < list->count; to += list->of[i].bytes, i++)
        memcpy(file + to, list->of[i].data, list->of[i].bytes);
    folder_write_text(folder, "config.json", config);
    folder_write(folder, "model.safetensors", file, to);
    free(file);
    free(header);
}

/* ---- a model ----------------------------------------------------------------------------------
 */

static const char config_head[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size\":32,"
    "\"intermediate_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"vocab_size\":11,\"max_position_embeddings\":64,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":5000";
static const char wide_head[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size\":128,"
    "\"intermediate_size\":256,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"vocab_size\":11,\"max_position_embeddings\":64,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":5000";
static const char blocks_of_16_by_20[] =
    ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[16,20]}}";

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* FP8 numbers between 2^-6 and 8 of both signs, and a zero. */
static void fill_fp8(stored *s, uint32_t seed)
{
    for (size_t i = 0; i < s->bytes; i++)
        s->data[i] = (unsigned char)(next_random(&seed) % 0x50 | (next_random(&seed) & 0x80));
    s->data[0] = 0;
}

static void fill_bf16(stored *s, uint32_t seed, float mean, float spread)
{
    for (size_t i = 0; i < s->bytes / 2; i++) {
        const float unit = (float)(next_random(&seed) % 2048) / 1024.0f - 1.0f;
        const uint16_t bits = f32_to_bf16(mean + spread * unit);
        memcpy(s->data + 2 * i, &bits, 2);
    }
}

static void fill_scales(stored *s, uint32_t seed)
{
    const bool wide = strcmp(s->type, "F32") == 0;
    for (size_t i = 0; i < s->bytes / (wide ? 4 : 2); i++) {
        const float scale = 0.02f + (float)(next_random(&seed) % 1000) * 1e-4f;
        const uint16_t narrow =
            strcmp(s->type, "F16") == 0 ? f32_to_f16(scale) : f32_to_bf16(scale);
        memcpy(s->data + i * (wide ? 4 : 2), wide ? (const void *)&scale : &narrow, wide ? 4 : 2);
    }
}

typedef struct matrix_case {
    const char *name, *shape;
    int rows, columns;
    const char *suffix, *scale_type, *scale_shape;
    int down, across; /* scales */
    int block_rows, block_columns;
} matrix_case;

/* Every matrix of a layer has scales of another form. */
static const matrix_case narrow_cases[] = {
    {"self_attn.q_proj", "[32,32]", 32, 32, "_scale", "BF16", "[]", 1, 1, 32, 32},
    {"self_attn.k_proj", "[16,32]", 16, 32, "_scale", "F32", "[1]", 1, 1, 16, 32},
    {"self_attn.v_proj", "[16,32]", 16, 32, "_scale", "F16", "[16,1]", 16, 1, 1, 32},
    {"self_attn.o_proj", "[32,32]", 32, 32, "_scale", "F32", "[32]", 32, 1, 1, 32},
    {"mlp.gate_proj", "[48,32]", 48, 32, "_scale_inv", "F32", "[3,2]", 3, 2, 16, 20},
    {"mlp.up_proj", "[48,32]", 48, 32, "_scale_inv", "BF16", "[3,2]", 3, 2, 16, 20},
    {"mlp.down_proj", "[32,48]", 32, 48, "_scale_inv", "F32", "[2,3]", 2, 3, 16, 20},
};
enum { N_CASES = sizeof narrow_cases / sizeof *narrow_cases };

/* The same with rows of whole blocks of F8_128; one matrix has scales for half of them. */
static const matrix_case wide_cases[] = {
    {"self_attn.q_proj", "[128,128]", 128, 128, "_scale", "BF16", "[]", 1, 1, 128, 128},
    {"self_attn.k_proj", "[64,128]", 64, 128, "_scale", "F32", "[1]", 1, 1, 64, 128},
    {"self_attn.v_proj", "[64,128]", 64, 128, "_scale", "F16", "[64,1]", 64, 1, 1, 128},
    {"self_attn.o_proj", "[128,128]", 128, 128, "_scale", "F32", "[128]", 128, 1, 1, 128},
    {"mlp.gate_proj", "[256,128]", 256, 128, "_scale_inv", "F32", "[3,1]", 3, 1, 100, 128},
    {"mlp.up_proj", "[256,128]", 256, 128, "_scale", "BF16", "[256]", 256, 1, 1, 128},
    {"mlp.down_proj", "[128,256]", 128, 256, "_scale_inv", "F32", "[2,2]", 2, 2, 100, 128},
};
static const char blocks_of_100_by_128[] =
    ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[100,128]}}";

/* Of the model that a test uses. */
static const matrix_case *cases = narrow_cases;

static const char *head_of_config(void)
{
    return cases == wide_cases ? wide_head : config_head;
}

static const weight_slot slots[N_CASES] = {WEIGHT_ATTN_Q,      WEIGHT_ATTN_K,   WEIGHT_ATTN_V,
                                           WEIGHT_ATTN_OUTPUT, WEIGHT_FFN_GATE, WEIGHT_FFN_UP,
                                           WEIGHT_FFN_DOWN};

static void matrix_name(int c, const char *suffix, char name[96])
{
    snprintf(name, 96, "model.layers.0.%s.weight%s", cases[c].name, suffix);
}

/* The model's tensors that are not in FP8. */
static void add_plain(folder_list *list)
{
    const size_t hidden = (size_t)cases[0].columns;
    char row[16], table[24];
    snprintf(row, sizeof row, "[%zu]", hidden);
    snprintf(table, sizeof table, "[11,%zu]", hidden);
    fill_bf16(add(list, "model.embed_tokens.weight", "BF16", table, 22 * hidden), 1, 0, 1);
    fill_bf16(add(list, "model.layers.0.input_layernorm.weight", "BF16", row, 2 * hidden), 2, 1,
              0.2f);
    fill_bf16(add(list, "model.layers.0.post_attention_layernorm.weight", "BF16", row, 2 * hidden),
              3, 1, 0.2f);
    fill_bf16(add(list, "model.norm.weight", "BF16", row, 2 * hidden), 4, 1, 0.2f);
    fill_bf16(add(list, "lm_head.weight", "BF16", table, 22 * hidden), 5, 0, 0.5f);
}

static folder_list *new_model(void)
{
    folder_list *list = calloc(1, sizeof *list);
    add_plain(list);
    for (int c = 0; c < N_CASES; c++) {
        const matrix_case *m = &cases[c];
        char name[96];
        matrix_name(c, "", name);
        fill_fp8(add(list, name, "F8_E4M3", m->shape, (size_t)(m->rows * m->columns)),
                 (uint32_t)c + 10);
        matrix_name(c, m->suffix, name);
        const size_t each = strcmp(m->scale_type, "F32") == 0 ? 4 : 2;
        fill_scales(
            add(list, name, m->scale_type, m->scale_shape, (size_t)(m->down * m->across) * each),
            (uint32_t)c + 30);
    }
    return list;
}

static qp_status open_list(const folder_list *list, const char *config_tail,
                           const model_options *options, model **out)
{
    char folder[64], config[1024];
    folder_make(folder);
    snprintf(config, sizeof config, "%s%s", head_of_config(), config_tail);
    write_folder(folder, config, list);
    *out = NULL;
    memset(&error, 0, sizeof error);
    qp_status status = model_open(folder, options, out, &error);
    if (status != QP_OK) assert_non_null(strstr(error.message, folder));
    folder_remove(folder);
    return status;
}

/* ---- what a matrix stands for, by the format's definition -------------------------------------
 */

static double fp8_number(unsigned char bits)
{
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 0x7f) == 0x7f) return NAN;
    const double magnitude =
        exponent ? ldexp(1 + mantissa / 8.0, exponent - 7) : ldexp(mantissa / 8.0, -6);
    return bits & 0x80 ? -magnitude : magnitude;
}

static float scale_number(const stored *s, int at)
{
    float wide;
    uint16_t narrow;
    memcpy(&narrow, s->data + 2 * at, 2);
    if (strcmp(s->type, "F16") == 0) return f16_to_f32(narrow);
    if (strcmp(s->type, "BF16") == 0) return bf16_to_f32(narrow);
    memcpy(&wide, s->data + 4 * at, 4);
    return wide;
}

/* A case's element. */
static float exact(folder_list *list, int c, int row, int column)
{
    const matrix_case *m = &cases[c];
    char name[96];
    matrix_name(c, "", name);
    const double number = fp8_number(named(list, name)->data[row * m->columns + column]);
    matrix_name(c, m->suffix, name);
    const int at = row / m->block_rows * m->across + column / m->block_columns;
    return (float)(number * (double)scale_number(named(list, name), at));
}

/* The same in BF16. */
static uint16_t expected(folder_list *list, int c, int row, int column)
{
    return f32_to_bf16(exact(list, c, row, column));
}

static void check_rows(folder_list *list, int c, const uint16_t *found)
{
    for (int row = 0; row < cases[c].rows; row++)
        for (int column = 0; column < cases[c].columns; column++, found++)
            if (*found != expected(list, c, row, column))
                fail_msg("%s, row %d, column %d: %04x, expected %04x", cases[c].name, row, column,
                         *found, expected(list, c, row, column));
}

/* ---- tests ------------------------------------------------------------------------------------
 */

static void every_number_is_decoded(void **state)
{
    (void)state;
    const float scale = 1;
    uint8_t bytes[256];
    uint16_t found[256];
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    const fp8_matrix m = {.data = bytes,
                          .rows = 4,
                          .columns = 64,
                          .scales = (const char *)&scale,
                          .scale_type = DTYPE_F32,
                          .block_rows = 4,
                          .block_columns = 64};
    fp8_decode(&m, 0, 4, found);
    for (int i = 0; i < 256; i++) {
        const double want = fp8_number((unsigned char)i), got = (double)bf16_to_f32(found[i]);
        if (isnan(want) ? !isnan(got) : got != want || signbit(got) != signbit(want))
            fail_msg("%02x is %g, expected %g", i, got, want);
    }
    uint16_t middle[64];
    fp8_decode(&m, 2, 1, middle);
    assert_memory_equal(middle, found + 128, sizeof middle);
}

static void scales_of_every_shape(void **state)
{
    (void)state;
    folder_list *list = new_model();
    model_options forms[] = {{0}, {.sizes_only = true}};
    for (int form = 0; form < 2; form++) {
        model *m;
        assert_ok(open_list(list, blocks_of_16_by_20, &forms[form], &m));
        assert_int_equal(model_fp8_matrices(m), N_CASES);
        assert_int_equal(model_has_weights(m), !forms[form].sizes_only);
        for (int c = 0; c < N_CASES; c++) {
            const tensor *view = &model_get_weight(m, slots[c], 0)->weight;
            static uint16_t rows[48 * 48];
            assert_int_equal(view->type, DTYPE_BF16);
            model_read_rows(m, slots[c], 0, false, 0, 5, rows);
            model_read_rows(m, slots[c], 0, false, 5, cases[c].rows - 5,
                            rows + 5 * cases[c].columns);
            check_rows(list, c, rows);
            if (view->data) check_rows(list, c, view->data);
        }
        model_close(m);
    }
    free(list);
}

/* Rows of whole blocks of F8_128 stay in FP8, with the scale of their rows or blocks in each,
 * unless BF16 is asked for. */
static void matrices_stay_in_fp8(void **state)
{
    (void)state;
    cases = wide_cases;
    folder_list *list = new_model();
    model_options forms[] = {{0}, {.sizes_only = true}, {.fp8_as_bf16 = true}};
    for (int form = 0; form < 3; form++) {
        model *m;
        assert_ok(open_list(list, blocks_of_100_by_128, &forms[form], &m));
        assert_int_equal(model_fp8_matrices(m), N_CASES);
        assert_int_equal(model_fp8_kept(m), forms[form].fp8_as_bf16 ? 0 : N_CASES);
        for (int c = 0; c < N_CASES; c++) {
            const tensor *view = &model_get_weight(m, slots[c], 0)->weight;
            const int columns = cases[c].columns;
            static uint8_t rows[256 * 256 * 2];
            static float values[256 * 256];
            model_read_rows(m, slots[c], 0, false, 0, 5, rows);
            model_read_rows(m, slots[c], 0, false, 5, cases[c].rows - 5,
                            rows + 5 * dtype_row_bytes(view->type, columns));
            if (view->data) assert_memory_equal(view->data, rows, tensor_bytes(view));
            if (forms[form].fp8_as_bf16) {
                assert_int_equal(view->type, DTYPE_BF16);
                check_rows(list, c, view->data);
                continue;
            }
            assert_int_equal(view->type, DTYPE_F8_128);
            dtype_decode(DTYPE_F8_128, rows, values, cases[c].rows * columns);
            for (int i = 0; i < cases[c].rows * columns; i++)
                assert_true(values[i] == exact(list, c, i / columns, i % columns));
        }
        model_close(m);
    }
    free(list);
    cases = narrow_cases;
}

/* q, k and v of InternLM2 are rows of one matrix. */
static void a_fused_matrix_is_split(void **state)
{
    (void)state;
    static const char tail[] = ",\"architectures\":[\"InternLM2ForCausalLM\"],\"bias\":false}";
    folder_list *list = calloc(1, sizeof *list);
    static const struct {
        const char *name, *shape;
        size_t elements;
    } plain[] = {{"model.tok_embeddings.weight", "[11,32]", 352},
                 {"model.layers.0.attention_norm.weight", "[32]", 32},
                 {"model.layers.0.attention.wo.weight", "[32,32]", 1024},
                 {"model.layers.0.ffn_norm.weight", "[32]", 32},
                 {"model.layers.0.feed_forward.w1.weight", "[48,32]", 1536},
                 {"model.layers.0.feed_forward.w3.weight", "[48,32]", 1536},
                 {"model.layers.0.feed_forward.w2.weight", "[32,48]", 1536},
                 {"model.norm.weight", "[32]", 32},
                 {"output.weight", "[11,32]", 352}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        fill_bf16(add(list, plain[i].name, "BF16", plain[i].shape, 2 * plain[i].elements), 7, 0, 1);
    stored *fused = add(list, "model.layers.0.attention.wqkv.weight", "F8_E4M3", "[64,32]", 2048);
    stored *scales = add(list, "model.layers.0.attention.wqkv.weight_scale", "F32", "[64,1]", 256);
    fill_fp8(fused, 8);
    fill_scales(scales, 9);
    model *m;
    assert_ok(open_list(list, tail, NULL, &m));
    /* Two groups of two query heads, a key and a value, of eight rows each. */
    static const int first[] = {0, 16, 24}, heads[] = {2, 1, 1};
    for (int s = 0; s < 3; s++) {
        const tensor *view = &model_get_weight(m, slots[s], 0)->weight;
        const uint16_t *found = view->data;
        for (int64_t row = 0; row < view->shape[0]; row++) {
            const int each = 8 * heads[s], from = (int)row / each * 32 + first[s] + (int)row % each;
            for (int i = 0; i < 32; i++, found++)
                assert_int_equal(*found,
                                 f32_to_bf16((float)(fp8_number(fused->data[from * 32 + i]) *
                                                     (double)scale_number(scales, from))));
        }
    }
    model_close(m);
    free(list);
}

/* Scales of inputs and of the cache are not used. */
static void scales_of_inputs_are_left(void **state)
{
    (void)state;
    static const char *const unused[] = {"self_attn.q_proj.input_scale",
                                         "mlp.down_proj.input_scale_ub", "self_attn.k_scale",
                                         "self_attn.v_proj.v_scale"};
    folder_list *list = new_model();
    char name[96];
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) {
        snprintf(name, sizeof name, "model.layers.0.%s", unused[i]);
        fill_scales(add(list, name, "F32", "[1]", 4), 3);
    }
    model *m;
    assert_ok(open_list(list, blocks_of_16_by_20, NULL, &m));
    model_close(m);
    add(list, "lm_head.input_scale", "F32", "[1]", 4); /* its matrix is not in FP8 */
    assert_int_equal(open_list(list, blocks_of_16_by_20, NULL, &m), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "lm_head.input_scale"));
    free(list);
}

/* Changes a tensor of the model, of which the message must then name `parts`. */
typedef struct wrong_file {
    const char *tensor, *new_name, *type, *shape;
    qp_status status;
    const char *parts[3];
} wrong_file;

static void wrong_files_are_named(void **state)
{
    (void)state;
    static const char gate[] = "model.layers.0.mlp.gate_proj.weight_scale_inv";
    static const char q[] = "model.layers.0.self_attn.q_proj.weight_scale";
    static const char o[] = "model.layers.0.self_attn.o_proj.weight_scale";
    static const wrong_file wrongs[] = {
        {gate, "model.norm.weight_scale", NULL, NULL, QP_FORMAT, {"missing", "gate_proj"}},
        {gate, NULL, NULL, "[2,3]", QP_FORMAT, {"16 x 20", "F32 [2, 3]", "48 x 32"}},
        {gate, NULL, NULL, "[3,1,2]", QP_FORMAT, {"found F32 [3, 1, 2]"}},
        {gate, NULL, "I32", NULL, QP_FORMAT, {"F32, F16 or BF16", "found I32"}},
        {gate,
         "model.layers.0.self_attn.q_proj.weight_scale_inv",
         NULL,
         NULL,
         QP_FORMAT,
         {"both", "q_proj.weight_scale\"", "_scale_inv"}},
        {"model.layers.0.mlp.gate_proj.weight",
         NULL,
         "F8_E5M2",
         NULL,
         QP_UNSUPPORTED,
         {"F8_E5M2", "gate_proj"}},
        {"model.layers.0.mlp.gate_proj.weight", NULL, NULL, "[32,48]", QP_FORMAT, {"gate_proj"}},
        {"model.layers.0.mlp.gate_proj.weight",
         NULL,
         NULL,
         "[1536]",
         QP_UNSUPPORTED,
         {"only matrices"}},
        {q, NULL, "F8_E4M3", "[2]", QP_FORMAT, {"F32, F16 or BF16", "F8_E4M3 [2]"}},
        {o,
         "model.layers.0.self_attn.o_proj.weight_zero_point",
         NULL,
         NULL,
         QP_FORMAT,
         {"missing", "o_proj"}},
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        const wrong_file *wrong = &wrongs[i];
        folder_list *list = new_model();
        stored *s = named(list, wrong->tensor);
        if (wrong->new_name) snprintf(s->name, sizeof s->name, "%s", wrong->new_name);
        if (wrong->type) snprintf(s->type, sizeof s->type, "%s", wrong->type);
        if (wrong->shape) snprintf(s->shape, sizeof s->shape, "%s", wrong->shape);
        model *m;
        const qp_status status = open_list(list, blocks_of_16_by_20, NULL, &m);
        bool told = status == wrong->status;
        for (int k = 0; k < 3 && wrong->parts[k]; k++)
            told = told && strstr(error.message, wrong->parts[k]);
        if (!told) fail_msg("case %zu: status %d, \"%s\"", i, status, error.message);
        free(list);
    }
    folder_list *list = new_model();
    const float infinite = INFINITY;
    memcpy(named(list, gate)->data + 4 * 3, &infinite, 4);
    model *m;
    assert_int_equal(open_list(list, blocks_of_16_by_20, NULL, &m), QP_FORMAT);
    assert_non_null(strstr(error.message, "row 16, column 20 is inf"));
    free(list);
}

static void configs(void **state)
{
    (void)state;
    static const struct {
        const char *quantization;
        qp_status status;
        const char *part; /* of the message */
        int64_t block_rows, block_columns;
    } all[] = {
        {"false", QP_OK, NULL, 0, 0},
        {"{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\"}", QP_OK, NULL, 0, 0},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,64]}", QP_OK, NULL,
         128, 64},
        {"{\"quant_method\":\"fbgemm_fp8\",\"activation_scale_ub\":1200}", QP_OK, NULL, 0, 0},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\"}", QP_OK, NULL, 0, 0},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"group_0\":{\"weights\":"
         "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":[64,32]}}}"
         "}",
         QP_OK, NULL, 64, 32},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"group_0\":{\"weights\":"
         "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32}}}}",
         QP_OK, NULL, 1, 32},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"group_0\":{\"weights\":"
         "{\"num_bits\":4,\"type\":\"int\"}}}}",
         QP_UNSUPPORTED, "\"int\"", 0, 0},
        {"{\"quant_method\":\"compressed-tensors\"}", QP_FORMAT, "config_groups", 0, 0},
        {"{\"quant_method\":\"compressed-tensors\",\"transform_config\":{\"config_groups\":{}}}",
         QP_UNSUPPORTED, "transform_config", 0, 0},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", QP_UNSUPPORTED, "\"e5m2\"", 0, 0},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", QP_FORMAT, "weight_block_size",
         0, 0},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,0]}", QP_FORMAT, "two whole", 0, 0},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[1.5,2]}", QP_FORMAT, "two whole", 0, 0},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}", QP_UNSUPPORTED, "NVFP4", 0, 0},
        {"{\"quant_method\":\"awq\"}", QP_UNSUPPORTED, "\"awq\"", 0, 0},
        {"{}", QP_UNSUPPORTED, "GGUF", 0, 0},
        {"7", QP_UNSUPPORTED, "a number", 0, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[1024];
        arena arena = {0};
        model_config config;
        snprintf(text, sizeof text, "%s,\"quantization_config\":%s}", config_head,
                 all[i].quantization);
        cJSON *json = cJSON_Parse(text);
        memset(&error, 0, sizeof error);
        const qp_status status = config_from_json(json, "c.json", &arena, &config, &error);
        const bool told = !all[i].part || strstr(error.message, all[i].part);
        if (status != all[i].status || !told)
            fail_msg("%s: status %d, \"%s\"", all[i].quantization, status, error.message);
        if (status == QP_OK) {
            assert_int_equal(config.fp8_block_rows, all[i].block_rows);
            assert_int_equal(config.fp8_block_columns, all[i].block_columns);
        }
        cJSON_Delete(json);
        arena_free(&arena);
    }
}

/* The model with its matrices in BF16. */
static folder_list *bf16_copy(folder_list *list)
{
    folder_list *copy = calloc(1, sizeof *copy);
    for (size_t i = 0; i < list->count; i++) {
        const stored *s = &list->of[i];
        if (strcmp(s->type, "BF16") == 0 && !strstr(s->name, "_scale"))
            memcpy(add(copy, s->name, s->type, s->shape, s->bytes)->data, s->data, s->bytes);
    }
    for (int c = 0; c < N_CASES; c++) {
        char name[96];
        matrix_name(c, "", name);
        const matrix_case *m = &cases[c];
        uint16_t *to = (uint16_t *)(void *)add(copy, name, "BF16", m->shape,
                                               (size_t)(2 * m->rows * m->columns))
                           ->data;
        for (int row = 0; row < m->rows; row++)
            for (int column = 0; column < m->columns; column++)
                *to++ = expected(list, c, row, column);
    }
    return copy;
}

static float *logits_of(const folder_list *list, const char *config_tail, const char *exec)
{
    static const int32_t ids[] = {1, 4, 9, 2, 2, 7};
    char folder[64], config[1024];
    folder_make(folder);
    snprintf(config, sizeof config, "%s%s", head_of_config(), config_tail);
    write_folder(folder, config, list);
    qp_engine *engine =
        open_engine((qp_engine_options){.model = folder, .exec = exec, .context = 32});
    float *rows = eval_fresh(engine, ids, sizeof ids / sizeof *ids);
    qp_engine_close(engine);
    folder_remove(folder);
    return rows;
}

static void logits_are_those_of_bf16(void **state)
{
    (void)state;
    static const char *const execs[] = {"reference", "threads"};
    folder_list *list = new_model(), *copy = bf16_copy(list);
    for (int i = 0; i < 2; i++) {
        float *of_fp8 = logits_of(list, blocks_of_16_by_20, execs[i]);
        float *of_bf16 = logits_of(copy, "}", execs[i]);
        for (int k = 0; k < 6 * 11; k++)
            assert_true(isfinite(of_fp8[k]) && of_fp8[k] != 0);
        assert_memory_equal(of_fp8, of_bf16, 6 * 11 * sizeof *of_fp8);
        free(of_fp8);
        free(of_bf16);
    }
    free(list);
    free(copy);
}

/* The largest difference of the logits, compared with the largest logit. */
static double distance(const float *a, const float *b)
{
    double most = 0, largest = 0;
    for (int k = 0; k < 6 * 11; k++) {
        assert_true(isfinite(a[k]) && isfinite(b[k]));
        most = fmax(most, fabs((double)a[k] - (double)b[k]));
        largest = fmax(largest, fabs((double)b[k]));
    }
    return most / largest;
}

/* Without the rounding to BF16: near the BF16 copy's, and the same for all machines. */
static void logits_of_matrices_that_stay(void **state)
{
    (void)state;
    cases = wide_cases;
    folder_list *list = new_model(), *copy = bf16_copy(list);
    float *reference = logits_of(list, blocks_of_100_by_128, "reference");
    float *threads = logits_of(list, blocks_of_100_by_128, "threads");
    float *of_bf16 = logits_of(copy, "}", "threads");
    const double own = distance(threads, reference), rounded = distance(threads, of_bf16);
    if (own > 1e-4 || rounded > 2e-2 || rounded <= own)
        fail_msg("%g from the reference, %g from the copy in BF16", own, rounded);
    free(reference);
    free(threads);
    free(of_bf16);
    free(list);
    free(copy);
    cases = narrow_cases;
}

/* quipu convert writes what the matrices stand for. */
static void a_converted_file_has_the_numbers(void **state)
{
    (void)state;
    char folder[64], config[1024], path[128];
    folder_list *list = new_model();
    folder_make(folder);
    snprintf(config, sizeof config, "%s%s", head_of_config(), blocks_of_16_by_20);
    write_folder(folder, config, list);
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    qp_convert_options options = {.size = sizeof options, .model = folder, .out = path};
    assert_ok(qp_convert(&options, &error));
    model *m;
    assert_ok(model_open(path, NULL, &m, &error));
    assert_int_equal(model_fp8_matrices(m), 0);
    for (int c = 2; c < N_CASES; c++) { /* rows of q and k are in another order in a GGUF file */
        const tensor *view = &model_get_weight(m, slots[c], 0)->weight;
        assert_int_equal(view->type, DTYPE_BF16);
        check_rows(list, c, view->data);
    }
    model_close(m);
    folder_remove(folder);
    free(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_is_decoded),
        cmocka_unit_test(scales_of_every_shape),
        cmocka_unit_test(matrices_stay_in_fp8),
        cmocka_unit_test(a_fused_matrix_is_split),
        cmocka_unit_test(scales_of_inputs_are_left),
        cmocka_unit_test(wrong_files_are_named),
        cmocka_unit_test(configs),
        cmocka_unit_test(logits_are_those_of_bf16),
        cmocka_unit_test(logits_of_matrices_that_stay),
        cmocka_unit_test(a_converted_file_has_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
