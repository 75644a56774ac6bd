/* Writing the operators as a FlashInfer-Bench data set: definitions/OP_TYPE/NAME.json,
 * workloads/OP_TYPE/NAME.jsonl, and the index tensors of workloads as safetensors files. */
#include "workbench/exchange.h"
#include "base/files.h"
#include "base/output.h"
#include "workbench/workbench.h"
#include "workbench/workload.h"

#include <stdio.h>
#include <string.h>

/* A safetensors file of the int32 tensors that are named in `fixed`: eight bytes of length, a JSON
 * header, the values. */
static qp_status index_file(const definition *definition, const op_call *call, const op_info *op,
                            strbuf *out, qp_error *error)
{
    cJSON *header = cJSON_CreateObject();
    strbuf values = {0}, text = {0};
    for (int t = 0; t < op_n_tensors(op); t++) {
        const tensor *view = &call->tensors[t];
        const char *name = op->tensors[t].name;
        if (view->type != DTYPE_I32 || view->rank != 1) continue;
        const char *named = strstr(definition->fixed, name);
        if (!named || (named[strlen(name)] != ' ' && named[strlen(name)] != '\0')) continue;
        cJSON *entry = cJSON_AddObjectToObject(header, name);
        cJSON_AddStringToObject(entry, "dtype", "I32");
        cJSON_AddItemToArray(cJSON_AddArrayToObject(entry, "shape"),
                             cJSON_CreateNumber((double)view->shape[0]));
        cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)values.length));
        strbuf_append(&values, view->data, tensor_bytes(view));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)values.length));
    }
    qp_status status = output_json_line(header, &text, error);
    while (status == QP_OK && text.length % 8 != 0)
        strbuf_putc(&text, ' ');
    for (int byte = 0; byte < 8; byte++)
        strbuf_putc(out, (char)((uint64_t)text.length >> 8 * byte & 0xff));
    strbuf_append(out, text.data, text.length);
    strbuf_append(out, strbuf_text(&values), values.length);
    out->failed = out->failed || values.failed;
    strbuf_free(&values);
    strbuf_free(&text);
    return status == QP_OK ? output_done(out, error) : status;
}

static qp_status write_index_file(const char *folder, const definition *definition, int n,
                                  qp_error *error)
{
    char text[1024], uuid[40], path[4096];
    workload load;
    const op_info *op = op_find(definition->op);
    definition_case(definition, definition->workloads[n], text, sizeof text);
    TRY(workload_create(op, text, 1, &load, error));
    strbuf bytes = {0};
    qp_status status = index_file(definition, &load.call, op, &bytes, error);
    workload_free(&load);
    workload_uuid(definition->name, n, uuid);
    snprintf(path, sizeof path, "%s/blob/workloads/%s/%s/%s.safetensors", folder,
             definition->op_type, definition->name, uuid);
    if (status == QP_OK) status = files_write(path, bytes.data, bytes.length, error);
    strbuf_free(&bytes);
    return status;
}

static qp_status export_workloads(const char *folder, const definition *definition, qp_error *error)
{
    strbuf lines = {0};
    qp_status status = QP_OK;
    for (int n = 0; definition->workloads[n] && status == QP_OK; n++) {
        status = output_json_line(workload_line(definition, n), &lines, error);
        if (status == QP_OK && definition->fixed)
            status = write_index_file(folder, definition, n, error);
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/workloads/%s/%s.jsonl", folder, definition->op_type,
             definition->name);
    if (status == QP_OK) status = files_write(path, lines.data, lines.length, error);
    strbuf_free(&lines);
    return status;
}

qp_status workbench_export(const char *folder, strbuf *out, qp_error *error)
{
    for (const definition *d = definitions; d->name; d++) {
        char path[4096];
        strbuf text = {0};
        snprintf(path, sizeof path, "%.3000s/definitions/%s/%s.json", folder, d->op_type, d->name);
        qp_status status = output_json(definition_json(d), &text, error);
        if (status == QP_OK) status = files_write(path, text.data, text.length, error);
        strbuf_free(&text);
        if (status == QP_OK) status = export_workloads(folder, d, error);
        if (status != QP_OK) return status;
        strbuf_printf(out, "%s\n", path);
    }
    return output_done(out, error);
}
