/* Matrices in FP8 of safetensors directories: every number, scales of every shape, and which
 * matrices stay in FP8. */
#include "fp8_model.h"
#include "model/fp8.h"
#include "tensor/codec.h"

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
        cmocka_unit_test(a_converted_file_has_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
