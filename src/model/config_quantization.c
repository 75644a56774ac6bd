/* config.json's "quantization_config": FP8 as model/fp8.h reads it, nothing else.
 *
 * Which tensors are in FP8, and the shapes of their scales, the file itself says; here are the ways
 * of storing that would otherwise be taken for it, and the size of a block.
 */
#include "model/config_read.h"

#include <string.h>

static qp_status refuse(const char *where, const char *found, qp_error *error)
{
    char quoted[SLICE_QUOTE_SIZE];
    return error_set(error, QP_UNSUPPORTED,
                     "%s: \"quantization_config\": weights quantised as \"%s\" are not read, only "
                     "FP8 (E4M3); use the model before quantisation, or a GGUF file of it",
                     where, slice_quote(slice_of(found), quoted));
}

static bool is_block_size(const cJSON *item)
{
    return cJSON_IsNumber(item) && item->valuedouble >= 1 && item->valuedouble <= 1 << 20 &&
           item->valuedouble == item->valueint;
}

/* [rows, columns] of the blocks that share a scale. */
static qp_status read_block(const cJSON *json, const char *key, const char *where,
                            model_config *out, qp_error *error)
{
    const cJSON *size = json_get(json, key);
    if (!size) return QP_OK;
    const cJSON *rows = cJSON_IsArray(size) ? size->child : NULL,
                *columns = rows ? rows->next : NULL;
    if (!columns || columns->next || !is_block_size(rows) || !is_block_size(columns))
        return error_set(error, QP_FORMAT,
                         "%s: \"quantization_config\": \"%s\" must be two whole numbers, the rows "
                         "and columns of a block",
                         where, key);
    out->fp8_block_rows = rows->valueint;
    out->fp8_block_columns = columns->valueint;
    return QP_OK;
}

/* A group of layers of compressed-tensors. */
static qp_status read_group(const cJSON *group, const char *where, model_config *out,
                            qp_error *error)
{
    const cJSON *weights = json_get(group, "weights");
    const char *type = "int";
    int64_t bits = 0, group_size = 0;
    if (!weights) return QP_OK; /* only inputs are rounded */
    TRY(json_get_string(weights, "type", where, &type, error));
    TRY(json_get_i64(weights, "num_bits", where, &bits, error));
    if (strcmp(type, "float") != 0 || bits != 8) return refuse(where, type, error);
    TRY(json_get_i64(weights, "group_size", where, &group_size, error));
    if (group_size > 0) out->fp8_block_rows = 1, out->fp8_block_columns = group_size;
    return read_block(weights, "block_structure", where, out, error);
}

static qp_status read_compressed(const cJSON *json, const char *where, model_config *out,
                                 qp_error *error)
{
    const cJSON *groups = json_get(json, "config_groups");
    const cJSON *transforms = json_get(json, "transform_config");
    if (cJSON_IsObject(transforms) && transforms->child)
        return refuse(where, "transform_config", error);
    if (!cJSON_IsObject(groups) || !groups->child)
        return error_set(error, QP_FORMAT,
                         "%s: \"quantization_config\": \"config_groups\" must be an object with "
                         "groups, found %s",
                         where, groups ? json_type_name(groups) : "nothing");
    for (const cJSON *group = groups->child; group; group = group->next)
        TRY(read_group(group, where, out, error));
    return QP_OK;
}

qp_status config_read_quantization(const cJSON *json, const char *where, model_config *out,
                                   qp_error *error)
{
    const char *method = "", *format = "e4m3", *algorithm = "FP8";
    if (!cJSON_IsObject(json)) return refuse(where, json_type_name(json), error);
    TRY(json_get_string(json, "quant_method", where, &method, error));
    TRY(json_get_string(json, "fmt", where, &format, error));
    TRY(json_get_string(json, "quant_algo", where, &algorithm, error));
    if (strcmp(method, "mxfp4") == 0 && out->family->experts) return QP_OK; /* by its tensors */
    if (strcmp(format, "e4m3") != 0) return refuse(where, format, error);
    if (strcmp(method, "compressed-tensors") == 0) return read_compressed(json, where, out, error);
    if (strcmp(method, "modelopt") == 0 && strcmp(algorithm, "FP8") != 0)
        return refuse(where, algorithm, error);
    if (strcmp(method, "fp8") != 0 && strcmp(method, "fbgemm_fp8") != 0 &&
        strcmp(method, "modelopt") != 0)
        return refuse(where, method, error);
    return read_block(json, "weight_block_size", where, out, error);
}
