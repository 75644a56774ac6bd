/* Multipliers and caps of a model, which some families have: see model_scales in config.h. One
 * table has their keys in config.json and in GGUF. */
#include "model/config_read.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

/* What a key's value says. */
typedef enum scale_meaning { SCALE_IS, SCALE_DIVIDES, SCALE_ROOT_DIVIDES } scale_meaning;

static const struct scale_row {
    const char *json, *gguf; /* NULL: there is no such key */
    uint32_t of;             /* family_scales: of the families that have it */
    scale_meaning meaning;
    double neutral; /* a value without effect */
    size_t at;      /* in model_scales */
} rows[] = {
    {"attn_logit_softcapping", "attn_logit_softcapping", SCALES_CAPS, SCALE_IS, 0,
     offsetof(model_scales, attention_cap)},
    {"final_logit_softcapping", "final_logit_softcapping", SCALES_CAPS, SCALE_IS, 0,
     offsetof(model_scales, logits_cap)},
    {"query_pre_attn_scalar", NULL, SCALES_QUERY, SCALE_ROOT_DIVIDES, 0,
     offsetof(model_scales, attention)},
    {"embedding_multiplier", "embedding_scale", SCALES_MULTIPLIERS, SCALE_IS, 1,
     offsetof(model_scales, embedding)},
    {"residual_multiplier", "residual_scale", SCALES_MULTIPLIERS, SCALE_IS, 1,
     offsetof(model_scales, residual)},
    {"attention_multiplier", "attention.scale", SCALES_MULTIPLIERS, SCALE_IS, 0,
     offsetof(model_scales, attention)},
    {"logits_scaling", "logit_scale", SCALES_MULTIPLIERS, SCALE_DIVIDES, 1,
     offsetof(model_scales, logits)},
    {"logit_scale", "logit_scale", SCALES_LOGITS, SCALE_IS, 1, offsetof(model_scales, logits)},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static double *field_of(model_scales *scales, const struct scale_row *row)
{
    return (double *)((char *)scales + row->at);
}

/* The scale that a key's value says; the same function gives the value of a scale, but for roots.
 */
static double scale_of(const struct scale_row *row, double value)
{
    if (row->meaning == SCALE_DIVIDES) return 1 / value;
    return row->meaning == SCALE_ROOT_DIVIDES ? 1 / sqrt(value) : value;
}

model_scales config_usual_scales(const model_config *c)
{
    model_scales s = c->family->usual;
    if (c->family->scales_embedding) s.embedding = sqrt((double)c->hidden_size);
    return s;
}

/* A value that the file gives under `key`. */
static qp_status take(const struct scale_row *row, const char *where, const char *key, double value,
                      model_config *out, qp_error *error)
{
    const bool may_be_0 = row->neutral == 0;
    if (!(out->family->scales & row->of)) {
        if (value == row->neutral || value == 0) return QP_OK;
        return error_set(error, QP_UNSUPPORTED,
                         "%s: \"%s\" is %g, with which quipu does not compute models of %s; "
                         "expected %g or no such key",
                         where, key, value, out->family->name, row->neutral);
    }
    if (!(value >= 0 && (may_be_0 || value > 0) && value < 1e6))
        return error_set(error, QP_FORMAT, "%s: \"%s\" must be positive%s and below 1e6, found %g",
                         where, key, may_be_0 ? ", or 0," : "", value);
    *field_of(&out->scales, row) = value == row->neutral ? 0 : scale_of(row, value);
    return QP_OK;
}

/* Rows are multiplied before the projections that add to the residual, so these have no biases. */
static qp_status check_biases(const char *where, const model_config *c, qp_error *error)
{
    const uint32_t back = SLOT(ATTN_OUTPUT) | SLOT(FFN_DOWN);
    if (c->scales.residual == 0 || !(c->biases & back)) return QP_OK;
    return error_set(
        error, QP_UNSUPPORTED,
        "%s: a multiplier of residuals with biases of the projections that add to them "
        "is not supported; expected one of the two",
        where);
}

qp_status config_scales_of_json(const cJSON *json, const char *where, model_config *out,
                                qp_error *error)
{
    out->scales = config_usual_scales(out);
    for (int i = 0; i < N_ROWS; i++) {
        double value = rows[i].neutral;
        if (!cJSON_HasObjectItem(json, rows[i].json)) continue;
        if (json_get(json, rows[i].json) && cJSON_IsFalse(json_get(json, rows[i].json))) continue;
        TRY(json_get_double(json, rows[i].json, where, &value, error));
        TRY(take(&rows[i], where, rows[i].json, value, out, error));
    }
    return check_biases(where, out, error);
}

/* Whether another row of the family's reads the same key. */
static bool is_read_otherwise(const struct scale_row *row, uint32_t scales)
{
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].gguf && &rows[i] != row && rows[i].of & scales && rows[i].at == row->at &&
            !(row->of & scales))
            return true;
    return false;
}

void config_imply_scales(model_config *c)
{
    c->scales = config_usual_scales(c);
    c->scales.attention = 0;
    if (c->n_layers == c->family->scores_by_hidden)
        c->scales.attention = sqrt((double)c->n_heads / (double)c->hidden_size);
}

qp_status config_scales_of_gguf(const gguf *file, model_config *out, qp_error *error)
{
    config_imply_scales(out);
    for (int i = 0; i < N_ROWS; i++) {
        char key[128];
        double value = rows[i].neutral;
        if (!rows[i].gguf || is_read_otherwise(&rows[i], out->family->scales)) continue;
        snprintf(key, sizeof key, "%s.%s", out->family->gguf, rows[i].gguf);
        if (!gguf_find(file, key)) continue;
        TRY(gguf_get_double(file, key, &value, error));
        TRY(take(&rows[i], gguf_path(file), key, value, out, error));
    }
    if (out->scales.residual != 0)
        out->biases_if_any &= ~(uint32_t)(SLOT(ATTN_OUTPUT) | SLOT(FFN_DOWN));
    return QP_OK;
}

int config_scale_keys(const model_config *c, scale_key keys[CONFIG_MAX_SCALES])
{
    model_scales scales = c->scales;
    int n = 0;
    for (int i = 0; i < N_ROWS; i++) {
        if (!rows[i].gguf || !(c->family->scales & rows[i].of)) continue;
        const double scale = *field_of(&scales, &rows[i]);
        if (scale != 0) keys[n++] = (scale_key){rows[i].gguf, scale_of(&rows[i], scale)};
    }
    return n;
}
