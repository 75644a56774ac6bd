/* How layers of a model differ, by config.json: which of them slide over a window of positions, and
 * which do not rotate q and k. */
#include "model/config_read.h"

#include <string.h>

/* Layers whose attention slides, by layer_types. False: there is no such key. */
static qp_status read_layer_types(const cJSON *json, const char *where, int64_t n_layers,
                                  bool *given, layer_set *out, qp_error *error)
{
    const cJSON *types = json_get(json, "layer_types"), *type;
    int64_t layer = 0;
    *given = types != NULL;
    if (!types) return QP_OK;
    if (!cJSON_IsArray(types))
        return error_set(error, QP_FORMAT, "%s: \"layer_types\" must be an array, found %s", where,
                         json_type_name(types));
    if (cJSON_GetArraySize(types) < n_layers)
        return error_set(error, QP_FORMAT,
                         "%s: \"layer_types\" has %d entries; expected one for each of %lld layers",
                         where, cJSON_GetArraySize(types), (long long)n_layers);
    cJSON_ArrayForEach(type, types)
    {
        const char *name = cJSON_IsString(type) ? type->valuestring : json_type_name(type);
        const bool slides = strcmp(name, "sliding_attention") == 0;
        char quoted[SLICE_QUOTE_SIZE];
        if (!slides && strcmp(name, "full_attention") != 0)
            return error_set(error, QP_UNSUPPORTED,
                             "%s: a layer of the type \"%s\" in \"layer_types\" is not supported; "
                             "expected full_attention or sliding_attention",
                             where, slice_quote(slice_of(name), quoted));
        if (slides && layer < n_layers) layer_set_add(out, layer);
        layer++;
    }
    return QP_OK;
}

/* The layers that slide where layer_types does not say so. */
static qp_status find_windowed(const cJSON *json, const char *where, const model_config *c,
                               layer_set *out, qp_error *error)
{
    int64_t first = 0;
    if (c->family->windowed == WINDOW_NO_ROPE) {
        *out = c->no_rope;
        return QP_OK;
    }
    if (c->family->windowed == WINDOW_LAST) {
        first = 28;
        TRY(json_get_i64(json, "max_window_layers", where, &first, error));
    }
    if (c->family->windowed == WINDOW_MOST) {
        int64_t interval = c->family->window_interval;
        TRY(json_get_i64(json, "sliding_window_pattern", where, &interval, error));
        if (interval < 1)
            return error_set(error, QP_FORMAT,
                             "%s: \"sliding_window_pattern\" must be at least 1, found %lld", where,
                             (long long)interval);
        *out = family_sliding(interval, c->n_layers);
        return QP_OK;
    }
    for (int64_t layer = first < 0 ? 0 : first; layer < c->n_layers; layer++)
        layer_set_add(out, layer);
    return QP_OK;
}

static qp_status read_window(const cJSON *json, const char *where, model_config *out,
                             qp_error *error)
{
    const model_family *family = out->family;
    bool used = !family->window_by_switch, given;
    int64_t window = family->window;
    layer_set by_types = {0};
    TRY(json_get_bool(json, "use_sliding_window", where, &used, error));
    if (cJSON_HasObjectItem(json, "sliding_window")) window = 0;
    TRY(json_get_i64(json, "sliding_window", where, &window, error));
    TRY(read_layer_types(json, where, out->n_layers, &given, &by_types, error));
    if (given && family->window_by_types)
        out->windowed = by_types;
    else
        TRY(find_windowed(json, where, out, &out->windowed, error));
    if (used && layer_set_count(&out->windowed, out->n_layers) > 0)
        out->window = window;
    else
        out->windowed = (layer_set){0};
    config_drop_local_rope(out);
    return QP_OK;
}

/* no_rope_layers has a 1 for each layer that rotates q and k, and a 0 for each that does not. */
static qp_status read_no_rope_layers(const cJSON *list, const char *where, model_config *out,
                                     qp_error *error)
{
    int64_t layer = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        const bool flag =
            cJSON_IsNumber(item) && (item->valuedouble == 0 || item->valuedouble == 1);
        if (!flag)
            return error_set(error, QP_FORMAT,
                             "%s: \"no_rope_layers\" must be an array of 0 and 1 for each layer",
                             where);
        if (layer < out->n_layers && item->valuedouble == 0) layer_set_add(&out->no_rope, layer);
        layer++;
    }
    if (cJSON_IsArray(list) && layer >= out->n_layers) return QP_OK;
    return error_set(
        error, QP_FORMAT,
        "%s: \"no_rope_layers\" must be an array with an entry for each of %lld layers, "
        "found %s of %lld",
        where, (long long)out->n_layers, json_type_name(list), (long long)layer);
}

static qp_status read_no_rope(const cJSON *json, const char *where, model_config *out,
                              qp_error *error)
{
    const cJSON *list = json_get(json, "no_rope_layers");
    model_family family = *out->family;
    if (family.no_rope_interval == 0 || family.no_rope_unless_sliding) return QP_OK;
    if (list) return read_no_rope_layers(list, where, out, error);
    TRY(json_get_i64(json, "no_rope_layer_interval", where, &family.no_rope_interval, error));
    if (family.no_rope_interval < 1)
        return error_set(error, QP_FORMAT,
                         "%s: \"no_rope_layer_interval\" must be at least 1, found %lld", where,
                         (long long)family.no_rope_interval);
    out->no_rope = family_no_rope(&family, out->n_layers);
    return QP_OK;
}

qp_status config_read_layers(const cJSON *json, const char *where, model_config *out,
                             qp_error *error)
{
    TRY(read_no_rope(json, where, out, error));
    TRY(read_window(json, where, out, error));
    for (int64_t layer = 0; out->family->no_rope_unless_sliding && layer < out->n_layers; layer++)
        if (!layer_set_has(&out->windowed, layer)) layer_set_add(&out->no_rope, layer);
    return QP_OK;
}
