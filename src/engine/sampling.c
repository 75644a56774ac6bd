/* Sampling settings: names, ranges, precedence. See quipu.h and sampling.h. */
#include "engine/sampling.h"

#include "base/sized.h"
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
    [QP_TYPICAL_P] = {"typical_p", 1, 0, 1, false},
    [QP_TOP_N_SIGMA] = {"top_n_sigma", 0, -1, 1e3, false},
    [QP_MIN_KEEP] = {"min_keep", 0, 0, 1 << 20, true},
    [QP_XTC_PROBABILITY] = {"xtc_probability", 0, 0, 1, false},
    [QP_XTC_THRESHOLD] = {"xtc_threshold", 0.1, 0, 1, false},
    [QP_DRY_MULTIPLIER] = {"dry_multiplier", 0, 0, 1e3, false},
    [QP_DRY_BASE] = {"dry_base", 1.75, 0, 1e3, false},
    [QP_DRY_ALLOWED_LENGTH] = {"dry_allowed_length", 2, 0, 1 << 20, true},
    [QP_DRY_PENALTY_LAST_N] = {"dry_penalty_last_n", -1, -1, 1 << 30, true},
    [QP_MIROSTAT] = {"mirostat", 0, 0, 2, true},
    [QP_MIROSTAT_TAU] = {"mirostat_tau", 5, 0, 100, false},
    [QP_MIROSTAT_ETA] = {"mirostat_eta", 0.1, 0, 1, false},
};

static bool is_known(qp_setting setting)
{
    return (unsigned)setting < QP_SETTING_COUNT;
}

const char *qp_setting_name(qp_setting setting)
{
    return is_known(setting) ? settings[setting].name : NULL;
}

qp_status qp_sampling_set(qp_sampling *sampling, qp_setting setting, double value, qp_source source,
                          qp_error *error)
{
    qp_sampling known;
    TRY(SIZED_READ(qp_sampling, sampling, &known, error));
    if (!is_known(setting))
        return error_set(error, QP_INVALID, "quipu %s has no setting %d of sampling", qp_version(),
                         (int)setting);
    double low = settings[setting].lowest, high = settings[setting].highest;
    bool whole = settings[setting].whole;
    if (!(value >= low && value <= high) || (whole && value != (double)(int64_t)value))
        return error_set(error, QP_INVALID, "%s must be %s%.17g to %.17g, found %.17g",
                         settings[setting].name, whole ? "a whole number " : "", low, high, value);
    if (source < known.source[setting]) return QP_OK;
    known.value[setting] = value;
    known.source[setting] = source;
    return SIZED_WRITE(qp_sampling, &known, sampling, error);
}

qp_status qp_sampling_defaults(const qp_engine *engine, qp_sampling *out, qp_error *error)
{
    qp_sampling s = {.stop_tokens_source = QP_FROM_MODEL};
    const generation_config *model = &engine->defaults;
    for (int i = 0; i < QP_SETTING_COUNT; i++) {
        s.value[i] = model->set[i] ? model->value[i] : settings[i].neutral;
        s.source[i] = model->set[i] ? QP_FROM_MODEL : QP_FROM_NEUTRAL;
    }
    memcpy(s.stop_tokens, model->stop_tokens, sizeof s.stop_tokens);
    s.n_stop_tokens = model->n_stop_tokens;
    return SIZED_WRITE(qp_sampling, &s, out, error);
}

/* Whether the model's files say how tokens are drawn: "the likeliest" does not. */
static bool says_how_to_draw(const generation_config *model)
{
    return (model->set[QP_TEMPERATURE] && model->value[QP_TEMPERATURE] != 0) ||
           model->set[QP_TOP_K] || model->set[QP_TOP_P] || model->set[QP_MIN_P];
}

void sampling_exclude_unlikely(const qp_engine *engine, qp_sampling *sampling)
{
    static const struct {
        qp_setting setting;
        double value;
    } likely[] = {{QP_TEMPERATURE, SAMPLING_LIKELY_TEMPERATURE},
                  {QP_TOP_K, SAMPLING_LIKELY_TOP_K},
                  {QP_TOP_P, SAMPLING_LIKELY_TOP_P},
                  {QP_MIN_P, SAMPLING_LIKELY_MIN_P}};
    if (says_how_to_draw(&engine->defaults)) return;
    for (size_t i = 0; i < sizeof likely / sizeof *likely; i++)
        if (sampling->source[likely[i].setting] == QP_FROM_NEUTRAL)
            sampling->value[likely[i].setting] = likely[i].value;
}
