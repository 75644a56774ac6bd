/* config.json: whatever is accepted has sizes within bounds that agree with each other, makes a
 * plan that its verifier accepts or an error, and RoPE angles that are numbers. */
#include "model/config_read.h"
#include "lower/lower.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void use(const model_config *config)
{
    if (config->rope.dim > config->head_dim || config->n_heads % config->n_kv_heads) abort();
    float *frequencies = malloc((size_t)config->rope.dim * 3 * sizeof *frequencies);
    if (!frequencies) abort();
    float *row = frequencies + config->rope.dim;
    static const int64_t lengths[] = {0, 5, 1 << 20};
    for (int i = 0; i < 3; i++) {
        rope_inverse_frequencies(&config->rope, lengths[i], frequencies);
        rope_table_row(&config->rope, frequencies, lengths[i], row);
        for (int64_t k = 0; k < config->rope.dim; k++) {
            if (!(fabsf(row[k]) <= 1000)) abort();
        }
    }
    free(frequencies);
    if (config->n_layers > 3) return; /* a plan for each would take the fuzzer's time */
    plan_options options = plan_default_options(config);
    qp_error error;
    program p;
    if (lower_build(config, NULL, &options, &p, &error) == QP_OK) {
        program_bytes bytes = program_count_bytes(&p, 0);
        if (bytes.total < bytes.kv_cache || bytes.total < bytes.arena) abort();
    } else if (strncmp(error.message, "plan:", 5) == 0) {
        abort(); /* the verifier's */
    }
    program_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char where[] = "fuzz/config.json";
    qp_error error = {0};
    cJSON *json = NULL;
    arena arena = {0};
    model_config config;
    qp_status status = json_parse((const char *)data, size, where, &json, &error);
    if (status == QP_OK) status = config_from_json(json, where, &arena, &config, &error);
    if (status == QP_OK)
        use(&config);
    else if (status != error.status || !strstr(error.message, where))
        abort(); /* failures say what they are, and where */
    arena_free(&arena);
    cJSON_Delete(json);
    return 0;
}
