/* Logits of models with matrices in FP8: a model that is read as BF16 has those of its BF16 copy,
 * to the bit; one that stays in FP8 has matrices that are not rounded to BF16. */
#include "fp8_model.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_bf16),
        cmocka_unit_test(logits_of_matrices_that_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
