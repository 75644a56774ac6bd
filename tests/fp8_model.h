/* A model with matrices in FP8 as tests write it: a directory in safetensors, and what its numbers
 * stand for. */
#pragma once

#include "engine_test.h"
#include "model/model.h"
#include "model_files.h"
#include "tensor/float16.h"

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

static inline stored *add(folder_list *list, const char *name, const char *type, const char *shape,
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

static inline stored *named(folder_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->of[i].name, name) == 0) return &list->of[i];
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

static inline void write_folder(const char *folder, const char *config, const folder_list *list)
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

static inline void fill_scales(stored *s, uint32_t seed)
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

static inline void matrix_name(int c, const char *suffix, char name[96])
{
    snprintf(name, 96, "model.layers.0.%s.weight%s", cases[c].name, suffix);
}

/* The model's tensors that are not in FP8. */
static inline void add_plain(folder_list *list)
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

static inline folder_list *new_model(void)
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

static inline qp_status open_list(const folder_list *list, const char *config_tail,
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

static inline float scale_number(const stored *s, int at)
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
static inline float exact(folder_list *list, int c, int row, int column)
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

static inline void check_rows(folder_list *list, int c, const uint16_t *found)
{
    for (int row = 0; row < cases[c].rows; row++)
        for (int column = 0; column < cases[c].columns; column++, found++)
            if (*found != expected(list, c, row, column))
                fail_msg("%s, row %d, column %d: %04x, expected %04x", cases[c].name, row, column,
                         *found, expected(list, c, row, column));
}
