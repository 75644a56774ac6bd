/* Sampling settings: names, ranges, precedence. See quipu.h. */
#include "base/status.h"
#include "engine/engine.h"

#include <float.h>
#include <string.h>

static const struct {
    const char *name;
    double neutral, lowest, highest;
    bool whole;
} settings[QP_SETTING_COUNT] = {
    [QP_TEMPERATURE] = {"temperature", 1, 0, 100, false},
    [QP_TOP_K] = {"top_k", 0, 0, 1 << 30, true},
    [QP_TOP_P] = {"top_p", 1, 0, 1, false},
    [QP_MIN_P] = {"min_p", 0, 0, 1, false},
    [QP_REPETITION_PENALTY] = {"repetition_penalty", 1, 1e-3, 1e3, false},
    [QP_PRESENCE_PENALTY] = {"presence_penalty", 0, -100, 100, false},
    [QP_FREQUENCY_PENALTY] = {"frequency_penalty", 0, -100, 100, false},
    [QP_SEED] = {"seed", 0, 0, 0x1p53, true},
};

const char *qp_setting_name(qp_setting setting)
{
    return settings[setting].name;
}

qp_status qp_sampling_set(qp_sampling *sampling, qp_setting setting, double value, qp_source source,
                          qp_error *error)
{
    double low = settings[setting].lowest, high = settings[setting].highest;
    bool whole = settings[setting].whole;
    if (!(value >= low && value <= high) || (whole && value != (double)(int64_t)value))
        return error_set(error, QP_INVALID, "%s must be %s%.17g to %.17g, found %.17g",
                         settings[setting].name, whole ? "a whole number " : "", low, high, value);
    if (source < sampling->source[setting]) return QP_OK;
    sampling->value[setting] = value;
    sampling->source[setting] = source;
    return QP_OK;
}

void qp_sampling_defaults(const qp_engine *engine, qp_sampling *out)
{
    *out = (qp_sampling){0};
    const generation_config *model = &engine->defaults;
    for (int s = 0; s < QP_SETTING_COUNT; s++) {
        out->value[s] = model->set[s] ? model->value[s] : settings[s].neutral;
        out->source[s] = model->set[s] ? QP_FROM_MODEL : QP_FROM_NEUTRAL;
    }
    memcpy(out->stop_tokens, model->stop_tokens, sizeof out->stop_tokens);
    out->n_stop_tokens = model->n_stop_tokens;
    out->stop_tokens_source = QP_FROM_MODEL;
}
