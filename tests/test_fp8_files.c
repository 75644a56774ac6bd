/* Files of models with matrices in FP8: tensors that are left, scales that are not what a matrix
 * needs, and what config.json says of the quantisation. */
#include "fp8_model.h"
#include "model/config_read.h"

#include <cjson/cJSON.h>

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
        {"{\"quant_method\":\"aqlm\"}", QP_UNSUPPORTED, "\"aqlm\"", 0, 0},
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_of_inputs_are_left),
        cmocka_unit_test(wrong_files_are_named),
        cmocka_unit_test(configs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
