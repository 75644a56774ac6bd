/* Prints an operator's description as JSON, and the list of all operators. */
#include "base/cpu.h"
#include "workbench/describe.h"
#include "base/output.h"
#include "workbench/sources.h"
#include "workbench/workbench.h"

#include <stdlib.h>
#include <string.h>

static cJSON *types_json(uint64_t types)
{
    cJSON *list = cJSON_CreateArray();
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (types >> type & 1)
            cJSON_AddItemToArray(list, cJSON_CreateString(dtype_name((dtype)type)));
    }
    return list;
}

static cJSON *axes_json(const op_info *op)
{
    static const char *const kinds[] = {
        [AXIS_CONSTANT] = "constant", [AXIS_VARIABLE] = "variable", [AXIS_DERIVED] = "derived"};
    cJSON *list = cJSON_CreateArray();
    for (int a = 0; a < op_n_axes(op); a++) {
        cJSON *axis = cJSON_CreateObject();
        cJSON_AddStringToObject(axis, "name", op->axes[a].name);
        cJSON_AddStringToObject(axis, "kind", kinds[op->axes[a].kind]);
        cJSON_AddStringToObject(axis, "help", op->axes[a].help);
        cJSON_AddItemToArray(list, axis);
    }
    return list;
}

static cJSON *tensors_json(const op_info *op)
{
    static const char *const directions[] = {
        [OP_IN] = "in", [OP_OUT] = "out", [OP_INOUT] = "inout", [OP_ACCUMULATE] = "accumulate"};
    cJSON *list = cJSON_CreateArray();
    for (int t = 0; t < op_n_tensors(op); t++) {
        const op_tensor *about = &op->tensors[t];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", about->name);
        cJSON_AddStringToObject(item, "direction", directions[about->direction]);
        cJSON_AddStringToObject(item, "shape", about->shape);
        cJSON_AddItemToObject(item, "types", types_json(about->types));
        cJSON_AddBoolToObject(item, "optional", about->optional);
        cJSON_AddStringToObject(item, "help", about->help);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static cJSON *params_json(const op_info *op)
{
    static const char *const kinds[] = {
        [PARAM_FLOAT] = "float", [PARAM_INT] = "int", [PARAM_BOOL] = "bool"};
    cJSON *list = cJSON_CreateArray();
    for (int p = 0; p < op_n_params(op); p++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", op->params[p].name);
        cJSON_AddStringToObject(item, "kind", kinds[op->params[p].kind]);
        cJSON_AddNumberToObject(item, "value", op->params[p].value);
        cJSON_AddStringToObject(item, "help", op->params[p].help);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static cJSON *tolerances_json(const op_info *op)
{
    cJSON *list = cJSON_CreateArray();
    for (const op_tolerance *t = op->tolerances; t && t->relative > 0; t++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "type", dtype_name(t->type));
        cJSON_AddNumberToObject(item, "relative", t->relative);
        cJSON_AddNumberToObject(item, "absolute", t->absolute);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static cJSON *texts_json(const char *const *texts)
{
    cJSON *list = cJSON_CreateArray();
    for (; texts && *texts; texts++)
        cJSON_AddItemToArray(list, cJSON_CreateString(*texts));
    return list;
}

static cJSON *variant_json(const char *name, uint32_t needs)
{
    strbuf features = {0};
    cpu_features_print(needs, &features);
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "name", name);
    cJSON_AddStringToObject(item, "needs", strbuf_text(&features));
    strbuf_free(&features);
    return item;
}

static cJSON *variants_json(const op_info *op)
{
    cJSON *list = cJSON_CreateArray();
    cJSON_AddItemToArray(list, variant_json("reference", 0));
    for (const op_variant *v = op->variants; v && v->name; v++)
        cJSON_AddItemToArray(list, variant_json(v->name, v->needs));
    return list;
}

/* Adds a text; null if it is absent. */
static void add_text(cJSON *object, const char *key, const char *text)
{
    cJSON_AddItemToObject(object, key, text ? cJSON_CreateString(text) : cJSON_CreateNull());
}

static void add_reference(cJSON *object, const op_info *op)
{
    size_t length;
    const char *text = sources_reference(op->name, &length);
    strbuf code = {0};
    strbuf_append(&code, text, length);
    cJSON_AddStringToObject(object, "reference", strbuf_text(&code));
    const char *called[SOURCES_MAX];
    int n = sources_called(op->name, called);
    cJSON *sources = cJSON_AddObjectToObject(object, "sources");
    for (int i = 0; i < n; i++) {
        const embedded_text *source = embedded_find(called[i]);
        strbuf_clear(&code);
        strbuf_append(&code, source->text, sources_code_length(source));
        cJSON_AddStringToObject(sources, called[i], strbuf_text(&code));
    }
    strbuf_free(&code);
}

cJSON *describe_op_json(const op_info *op)
{
    cJSON *object = cJSON_CreateObject();
    add_text(object, "name", op->name);
    add_text(object, "summary", op->summary);
    add_text(object, "place", op->place);
    add_text(object, "formula", op->formula);
    add_text(object, "precision", op->precision);
    add_text(object, "edge_cases", op->edge_cases);
    add_text(object, "source", op->source);
    cJSON_AddItemToObject(object, "axes", axes_json(op));
    cJSON_AddItemToObject(object, "tensors", tensors_json(op));
    cJSON_AddItemToObject(object, "params", params_json(op));
    add_text(object, "unit", op->unit);
    strbuf name = {0};
    strbuf_printf(&name, "void %s_kernel(const op_call *call)", op->name);
    add_text(object, "signature", strbuf_text(&name));
    strbuf_clear(&name);
    strbuf_printf(&name, "void %s_launch(const op_call *call, cudaStream_t stream)", op->name);
    add_text(object, "cuda_signature", strbuf_text(&name));
    strbuf_free(&name);
    add_text(object, "header", embedded_find("include/quipu_kernel.h")->text);
    add_text(object, "flops", op->flops);
    add_text(object, "bytes", op->bytes);
    add_text(object, "reduction", op->reduction);
    cJSON_AddItemToObject(object, "tolerances", tolerances_json(op));
    cJSON_AddItemToObject(object, "cases", texts_json(op->cases));
    cJSON_AddItemToObject(object, "workloads", texts_json(op->workloads));
    cJSON_AddItemToObject(object, "variants", variants_json(op));
    add_reference(object, op);
    return object;
}

static unsigned all_types(const op_info *op)
{
    uint64_t types = 0;
    for (int t = 0; t < op_n_tensors(op); t++)
        types |= op->tensors[t].types;
    return types;
}

_Static_assert(OP_COUNT <= 64, "a set of operators is one word");

static cJSON *list_json(uint32_t features, uint64_t only)
{
    cJSON *list = cJSON_CreateArray();
    for (int code = 0; code < OP_COUNT; code++) {
        if (only && !(only >> code & 1)) continue;
        const op_info *op = op_get((op_code)code);
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", op->name);
        cJSON_AddStringToObject(item, "summary", op->summary);
        cJSON_AddItemToObject(item, "axes", axes_json(op));
        cJSON_AddItemToObject(item, "types", types_json(all_types(op)));
        cJSON *variants = variants_json(op), *variant = variants->child;
        cJSON_AddBoolToObject(variant, "usable", true);
        for (const op_variant *v = op->variants; v && v->name; v++) {
            variant = variant->next;
            cJSON_AddBoolToObject(variant, "usable", (v->needs & ~features) == 0);
        }
        cJSON_AddItemToObject(item, "variants", variants);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static void append_axes(const op_info *op, int kind, strbuf *out)
{
    bool any = false;
    for (int a = 0; a < op_n_axes(op); a++) {
        if ((int)op->axes[a].kind != kind) continue;
        strbuf_printf(out, "%s%s", any ? " " : "", op->axes[a].name);
        any = true;
    }
}

static void list_row(const op_info *op, uint32_t features, page *page)
{
    strbuf constant = {0}, variable = {0}, types = {0}, variants = {0};
    append_axes(op, AXIS_CONSTANT, &constant);
    append_axes(op, AXIS_VARIABLE, &variable);
    unsigned set = all_types(op);
    bool weights = (set & (unsigned)OP_WEIGHTS) == (unsigned)OP_WEIGHTS;
    describe_types(weights ? set & ~((unsigned)OP_WEIGHTS & ~(unsigned)OP_FLOATS) : set, &types);
    if (weights) strbuf_puts(&types, ", Q*");
    strbuf_puts(&variants, "reference");
    for (const op_variant *v = op->variants; v && v->name; v++)
        strbuf_printf(&variants, v->needs & ~features ? " (%s)" : " %s", v->name);
    page_row(page, (const char *const[]){op->name, strbuf_text(&constant), strbuf_text(&variable),
                                         strbuf_text(&types), strbuf_text(&variants)});
    strbuf_free(&constant);
    strbuf_free(&variable);
    strbuf_free(&types);
    strbuf_free(&variants);
}

qp_status workbench_list(uint32_t features, uint64_t only, bool json, strbuf *out, qp_error *error)
{
    if (json) return output_json(list_json(features, only), out, error);
    page page = {.out = out, .level = 1};
    page_table(&page, 5,
               (const char *const[]){"operator", "constant axes", "variable axes", "types",
                                     "variants (those in brackets cannot run here)"});
    for (int code = 0; code < OP_COUNT; code++)
        if (!only || only >> code & 1) list_row(op_get((op_code)code), features, &page);
    page_table_end(&page);
    return output_done(out, error);
}
