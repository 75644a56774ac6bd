/* config.json's "quantization_config": FP8 as model/fp8.h reads it, and whole numbers in groups as
 * model/int_weights.h does.
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
                     "FP8 (E4M3), GPTQ, AWQ and packed whole numbers; use the model before "
                     "quantisation, or a GGUF file of it",
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

static qp_status check_bits(const char *where, const char *method, int64_t bits, qp_error *error)
{
    if (bits == 4 || bits == 8) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "%s: \"quantization_config\": weights of %lld bits in \"%s\" are not read, "
                     "only those of 4 and 8; use the model before quantisation, or a GGUF file of "
                     "it",
                     where, (long long)bits, method);
}

static qp_status read_gptq(const cJSON *json, const char *where, model_config *out, qp_error *error)
{
    const char *format = "gptq";
    TRY(json_get_i64(json, "bits", where, &out->int_bits, error));
    TRY(json_get_i64(json, "group_size", where, &out->int_group, error));
    TRY(json_get_string(json, "checkpoint_format", where, &format, error));
    if (strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0)
        return refuse(where, format, error);
    out->int_layout = strcmp(format, "gptq") == 0 ? INT_GPTQ : INT_GPTQ_V2;
    return check_bits(where, "gptq", out->int_bits, error);
}

static qp_status read_awq(const cJSON *json, const char *where, model_config *out, qp_error *error)
{
    const char *version = "gemm";
    out->int_bits = 4;
    TRY(json_get_i64(json, "bits", where, &out->int_bits, error));
    TRY(json_get_i64(json, "w_bit", where, &out->int_bits, error));
    TRY(json_get_i64(json, "group_size", where, &out->int_group, error));
    TRY(json_get_i64(json, "q_group_size", where, &out->int_group, error));
    TRY(json_get_string(json, "version", where, &version, error));
    if (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return refuse(where, version, error);
    if (out->int_bits != 4) return check_bits(where, "awq of other than 4 bits", 0, error);
    out->int_layout = INT_AWQ;
    return QP_OK;
}

/* Whole numbers of compressed-tensors: what all groups of layers must have in common. */
static qp_status read_integers(const cJSON *weights, int64_t bits, const char *where,
                               model_config *out, qp_error *error)
{
    const char *strategy = "group";
    bool symmetric = true;
    int64_t group_size = 0;
    TRY(check_bits(where, "compressed-tensors", bits, error));
    TRY(json_get_bool(weights, "symmetric", where, &symmetric, error));
    TRY(json_get_string(weights, "strategy", where, &strategy, error));
    TRY(json_get_i64(weights, "group_size", where, &group_size, error));
    if (strcmp(strategy, "group") != 0 && strcmp(strategy, "channel") != 0)
        return refuse(where, strategy, error);
    if (out->int_layout != INT_NONE &&
        (out->int_bits != bits || out->int_group != group_size || out->int_zeros == symmetric))
        return refuse(where, "groups of layers that differ", error);
    out->int_layout = INT_COMPRESSED;
    out->int_bits = bits;
    out->int_group = group_size;
    out->int_zeros = !symmetric;
    return QP_OK;
}

/* A group of layers of compressed-tensors. */
static qp_status read_group(const cJSON *group, bool packed, const char *where, model_config *out,
                            qp_error *error)
{
    const cJSON *weights = json_get(group, "weights");
    const char *type = "int";
    int64_t bits = 0, group_size = 0;
    if (!weights) return QP_OK; /* only inputs are rounded */
    TRY(json_get_string(weights, "type", where, &type, error));
    TRY(json_get_i64(weights, "num_bits", where, &bits, error));
    if (strcmp(type, "int") == 0 && packed) return read_integers(weights, bits, where, out, error);
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
    const char *format = "";
    TRY(json_get_string(json, "format", where, &format, error));
    if (cJSON_IsObject(transforms) && transforms->child)
        return refuse(where, "transform_config", error);
    if (!cJSON_IsObject(groups) || !groups->child)
        return error_set(error, QP_FORMAT,
                         "%s: \"quantization_config\": \"config_groups\" must be an object with "
                         "groups, found %s",
                         where, groups ? json_type_name(groups) : "nothing");
    for (const cJSON *group = groups->child; group; group = group->next)
        TRY(read_group(group, strcmp(format, "pack-quantized") == 0, where, out, error));
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
    if (strcmp(method, "gptq") == 0) return read_gptq(json, where, out, error);
    if (strcmp(method, "awq") == 0) return read_awq(json, where, out, error);
    if (strcmp(format, "e4m3") != 0) return refuse(where, format, error);
    if (strcmp(method, "compressed-tensors") == 0) return read_compressed(json, where, out, error);
    if (strcmp(method, "modelopt") == 0 && strcmp(algorithm, "FP8") != 0)
        return refuse(where, algorithm, error);
    if (strcmp(method, "fp8") != 0 && strcmp(method, "fbgemm_fp8") != 0 &&
        strcmp(method, "modelopt") != 0)
        return refuse(where, method, error);
    return read_block(json, "weight_block_size", where, out, error);
}
