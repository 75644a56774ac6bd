/* Prints an operator's description as a page, from its struct alone. */
#include "workbench/describe.h"

#include "base/cpu.h"
#include "base/suggest.h"
#include "op/cuda_ops.h"
#include "op/harness/case.h"
#include "workbench/sources.h"
#include "workbench/workbench.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

qp_status describe_find(const char *name, const op_info **out, qp_error *error)
{
    *out = op_find(name);
    if (*out) return QP_OK;
    strbuf names = {0};
    suggestion near = {.word = name};
    for (int code = 0; code < OP_COUNT; code++) {
        suggest_offer(&near, op_get((op_code)code)->name);
        strbuf_printf(&names, "%s%s", code ? " " : "", op_get((op_code)code)->name);
    }
    if (near.best)
        error_set(error, QP_INVALID, "there is no operator '%.60s'; did you mean %s?", name,
                  near.best);
    else
        error_set(error, QP_INVALID, "there is no operator '%.60s'; there are: %s", name,
                  strbuf_text(&names));
    strbuf_free(&names);
    return QP_INVALID;
}

qp_status describe_nth(const char *const *ops, int n_ops, int i, const op_info **out,
                       qp_error *error)
{
    if (n_ops) return describe_find(ops[i], out, error);
    *out = op_get((op_code)i);
    return QP_OK;
}

void describe_reserve(const op_info *op, bool device, const char **cells, int column, page *page)
{
    for (const op_variant *v = op->variants; !device && v && v->name; v++) {
        cells[column] = v->name;
        page_reserve(page, cells);
    }
    for (const cuda_kernel *k = op->cuda; device && k && k->name; k++) {
        cells[column] = k->name;
        page_reserve(page, cells);
    }
}

void describe_types(uint64_t types, strbuf *out)
{
    bool any = false;
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (!(types >> type & 1)) continue;
        strbuf_printf(out, "%s%s", any ? ", " : "", dtype_name((dtype)type));
        any = true;
    }
}

/* --- what all descriptions say in the same words ---------------------------------------------- */

static const char axes_note[] =
    "A constant axis is fixed by the model, a variable one changes from call to call, a derived "
    "one follows from the contents of index tensors.";
static const char tensors_note[] =
    "Tensors are in the order of call->tensors. The innermost dimension is contiguous; the others "
    "have strides of their own, in bytes. An optional tensor that is absent has rank 0. F64 "
    "outputs are the oracle's, no candidate is called with them.";
static const char params_note[] =
    "Parameters are in the order of call->params, all of type double.";
static const char tolerances_note[] =
    "Outputs are compared with the reference computed in float64: norm(out - ref) <= relative * "
    "norm(ref), and no element differs by more than absolute * rms(ref) + relative * |ref|. For "
    "F32 outputs both tolerances are scaled by the square root of the terms in the longest sum. "
    "Index outputs are exact. F16 and BF16 outputs must be rounded to the nearest: errors that "
    "lean to one side are an error.";
static const char inputs_note[] =
    "The usual inputs are normally distributed values, small ones (about 0.001), zeros of both "
    "signs, denormals (which may be flushed to zero) and few distinct values.";
static const char workloads_note[] =
    "Workloads are the shapes of real models that `quipu ops bench` times, written as the cases "
    "are.";
static const char reference_note[] =
    "The reference computes in float64 and rounds once. element_load() and element_store() read "
    "and write one element of a plain type, tensor_row() gives a row's address.";

/* A book says it once, in describe_notes(). */
static void note(page *page, describe_extent extent, const char *text)
{
    if (extent == DESCRIBE_ALONE) page_paragraph(page, text);
}

static void print_case_notation(page *page)
{
    static const char *const rows[][2] = {
        {"name=5", "an axis or a parameter"},
        {"out=a", "a view that shares another's memory"},
        {"name:TYPE", "an element type; F32 where none is named"},
        {"name:-", "an optional tensor is left out; so is one with an axis that the case omits"},
        {"name+N", "strides N elements larger than what they step over"},
        {"name@0213", "the order of the dimensions in memory"},
    };
    page_table(page, 2, (const char *const[]){"in a case", "is"});
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        page_row(page, rows[i]);
    page_table_end(page);
}

void describe_notes(page *page)
{
    const char *const notes[] = {axes_note,   tensors_note,   params_note,   tolerances_note,
                                 inputs_note, workloads_note, reference_note};
    page_section(page, "How to read a description");
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        page_paragraph(page, notes[i]);
    print_case_notation(page);
}

/* --- tables of the struct -------------------------------------------------------------------- */

static void print_axes(const op_info *op, describe_extent extent, page *page)
{
    static const char *const kinds[] = {
        [AXIS_CONSTANT] = "constant", [AXIS_VARIABLE] = "variable", [AXIS_DERIVED] = "derived"};
    page_section(page, "Axes");
    note(page, extent, axes_note);
    page_table(page, 3, (const char *const[]){"axis", "kind", "meaning"});
    for (int a = 0; a < op_n_axes(op); a++)
        page_row(page, (const char *const[]){op->axes[a].name, kinds[op->axes[a].kind],
                                             op->axes[a].help});
    page_table_end(page);
}

static void print_tensors(const op_info *op, describe_extent extent, page *page)
{
    static const char *const directions[] = {
        [OP_IN] = "in", [OP_OUT] = "out", [OP_INOUT] = "in, out", [OP_ACCUMULATE] = "adds"};
    page_section(page, "Tensors");
    note(page, extent, tensors_note);
    page_table(page, 6,
               (const char *const[]){">index", "tensor", "direction", "shape", "types", "meaning"});
    for (int t = 0; t < op_n_tensors(op); t++) {
        const op_tensor *about = &op->tensors[t];
        char index[16], direction[32], shape[PAGE_CELL_SIZE];
        strbuf types = {0};
        snprintf(index, sizeof index, "%d", t);
        snprintf(direction, sizeof direction, "%s%s", directions[about->direction],
                 about->optional ? ", optional" : "");
        snprintf(shape, sizeof shape, "[%s]", about->shape);
        describe_types(about->types, &types);
        page_row(page, (const char *const[]){index, about->name, direction, shape,
                                             strbuf_text(&types), about->help});
        strbuf_free(&types);
    }
    page_table_end(page);
}

static void print_params(const op_info *op, describe_extent extent, page *page)
{
    static const char *const kinds[] = {
        [PARAM_FLOAT] = "number", [PARAM_INT] = "whole number", [PARAM_BOOL] = "0 or 1"};
    if (op_n_params(op) == 0) return;
    page_section(page, "Parameters");
    note(page, extent, params_note);
    page_table(page, 5, (const char *const[]){">index", "parameter", "kind", ">usual", "meaning"});
    for (int p = 0; p < op_n_params(op); p++) {
        char index[16], value[32];
        snprintf(index, sizeof index, "%d", p);
        snprintf(value, sizeof value, "%g", op->params[p].value);
        page_row(page, (const char *const[]){index, op->params[p].name, kinds[op->params[p].kind],
                                             value, op->params[p].help});
    }
    page_table_end(page);
}

static void print_cost(const op_info *op, page *page)
{
    strbuf text = {0};
    page_section(page, "Cost");
    strbuf_printf(&text, "FLOPs: %s\n", op->flops ? op->flops : "0");
    if (op->bytes)
        strbuf_printf(&text, "bytes: %s\n", op->bytes);
    else
        strbuf_puts(&text, "bytes: every tensor once, in-out tensors twice\n");
    page_code(page, "text", strbuf_text(&text), text.length);
    strbuf_free(&text);
}

static void print_tolerances(const op_info *op, describe_extent extent, page *page)
{
    page_section(page, "Tolerances");
    if (!op->tolerances) {
        page_paragraph(page, "Outputs are exact.");
        return;
    }
    note(page, extent, tolerances_note);
    if (op->reduction) {
        strbuf terms = {0};
        strbuf_printf(&terms, "Terms in the longest sum: %s.", op->reduction);
        page_paragraph(page, strbuf_text(&terms));
        strbuf_free(&terms);
    }
    page_table(page, 3, (const char *const[]){"type of the output", ">relative", ">absolute"});
    for (const op_tolerance *t = op->tolerances; t->relative > 0; t++) {
        char relative[32], absolute[32];
        snprintf(relative, sizeof relative, "%g", t->relative);
        snprintf(absolute, sizeof absolute, "%g", t->absolute);
        page_row(page, (const char *const[]){dtype_name(t->type), relative, absolute});
    }
    page_table_end(page);
}

static void print_inputs(const op_info *op, describe_extent extent, page *page)
{
    strbuf text = {0};
    page_section(page, "What it is checked with");
    note(page, extent, inputs_note);
    strbuf_puts(&text, "The usual inputs");
    if (op->fills) strbuf_puts(&text, "; also");
    if (op->fills & OP_FILL_HUGE) strbuf_puts(&text, " magnitudes whose squares just stay finite,");
    if (op->fills & OP_FILL_INFINITY) strbuf_puts(&text, " minus infinity,");
    if (op->fills & OP_FILL_NAN) strbuf_puts(&text, " NaN,");
    strbuf_puts(&text, " in these cases:");
    page_paragraph(page, strbuf_text(&text));
    strbuf_clear(&text);
    for (const char *const *c = op->cases; c && *c; c++)
        strbuf_printf(&text, "%s\n", *c);
    page_code(page, "text", strbuf_text(&text), text.length);
    strbuf_free(&text);
    if (extent == DESCRIBE_ALONE) print_case_notation(page);
}

static bool has_derived_axes(const op_info *op)
{
    for (int a = 0; a < op_n_axes(op); a++) {
        if (op->axes[a].kind == AXIS_DERIVED) return true;
    }
    return false;
}

/* FLOPs and bytes, where the shapes alone determine them. */
static void format_cost(const op_info *op, const char *text, char flops[32], char bytes[32])
{
    op_case about;
    qp_error error;
    snprintf(flops, 32, "by contents");
    snprintf(bytes, 32, "by contents");
    if (has_derived_axes(op) || op_case_parse(op, text, &about, &error) != QP_OK) return;
    op_call call = {0};
    for (int t = 0; t < op_n_tensors(op); t++)
        call.tensors[t] = about.tensors[t].view;
    memcpy(call.params, about.params, sizeof call.params);
    op_cost cost = op_cost_of(op, &call);
    snprintf(flops, 32, "%.4g", cost.flops);
    snprintf(bytes, 32, "%.4g", cost.bytes);
}

static void print_workloads(const op_info *op, describe_extent extent, page *page)
{
    page_section(page, "Workloads");
    note(page, extent, workloads_note);
    page_table(page, 4, (const char *const[]){"model", "call", ">FLOPs", ">bytes"});
    for (const char *const *w = op->workloads; w && *w; w++) {
        char name[64], flops[32], bytes[32];
        const char *colon = strstr(*w, ": ");
        snprintf(name, sizeof name, "%.*s", colon ? (int)(colon - *w) : 0, *w);
        format_cost(op, *w, flops, bytes);
        page_row(page, (const char *const[]){name, colon ? colon + 2 : *w, flops, bytes});
    }
    page_table_end(page);
}

static void print_variants(const op_info *op, page *page)
{
    page_section(page, "Variants");
    page_paragraph(page, "Kernels that the program has, in rising order of preference, and the CPU "
                         "features that each needs.");
    page_table(page, 3, (const char *const[]){"variant", "needs", "takes"});
    page_row(page, (const char *const[]){"reference", "nothing", "everything"});
    for (const op_variant *v = op->variants; v && v->name; v++) {
        strbuf needs = {0};
        cpu_features_print(v->needs, &needs);
        page_row(page, (const char *const[]){v->name, strbuf_text(&needs),
                                             v->accepts ? "some types and shapes" : "everything"});
        strbuf_free(&needs);
    }
    page_table_end(page);
}

/* --- code ------------------------------------------------------------------------------------ */

static void append_upper(strbuf *out, const char *name)
{
    for (; *name; name++)
        strbuf_putc(out, (char)toupper((unsigned char)*name));
}

static void print_signature(const op_info *op, page *page)
{
    strbuf code = {0};
    page_section(page, "Interface");
    strbuf_puts(&code, "#include \"quipu_kernel.h\"\n\nenum { ");
    for (int t = 0; t < op_n_tensors(op); t++) {
        append_upper(&code, op->tensors[t].name);
        strbuf_puts(&code, t + 1 < op_n_tensors(op) ? ", " : " }; /* of call->tensors */\n");
    }
    if (op_n_params(op) > 0) strbuf_puts(&code, "enum { ");
    for (int p = 0; p < op_n_params(op); p++) {
        append_upper(&code, op->params[p].name);
        strbuf_puts(&code, p + 1 < op_n_params(op) ? ", " : " }; /* of call->params */\n");
    }
    strbuf_printf(
        &code,
        "\n/* Computes the units [call->begin, call->end). */\n"
        "void %s_kernel(const op_call *call);\n"
        "\n/* Optional: bytes of call->scratch that a slice needs%s. */\n"
        "size_t %s_scratch_bytes(const op_call *call);\n"
        "\n/* Optional: the types and shapes that the kernel handles; without it, all. */\n"
        "bool %s_accepts(const op_call *call);\n"
        "\n/* In a .cu file, in the kernel's place: starts the work on the stream. */\n"
        "void %s_launch(const op_call *call, cudaStream_t stream);\n",
        op->name, op->scratch_bytes ? "; without it, what the reference asks for" : "", op->name,
        op->name, op->name);
    page_code(page, "c", strbuf_text(&code), code.length);
    strbuf_clear(&code);
    strbuf_printf(&code,
                  "A unit is %s; a call has begin <= end, both within the units of the whole.",
                  op->unit);
    page_paragraph(page, strbuf_text(&code));
    strbuf_free(&code);
}

static void print_reference(const op_info *op, describe_extent extent, page *page)
{
    size_t length;
    const char *text = sources_reference(op->name, &length);
    const char *called[SOURCES_MAX];
    int n = sources_called(op->name, called);
    page_section(page, "Reference");
    note(page, extent, reference_note);
    page_code(page, "c", text, length);
    if (n == 0) return;
    strbuf names = {0};
    strbuf_puts(&names, "It uses");
    for (int i = 0; i < n; i++)
        strbuf_printf(&names, "%s %s", i ? "," : "", called[i]);
    strbuf_puts(&names, extent == DESCRIBE_ALONE ? ":" : ".");
    page_paragraph(page, strbuf_text(&names));
    strbuf_free(&names);
    for (int i = 0; extent == DESCRIBE_ALONE && i < n; i++) {
        const embedded_text *source = embedded_find(called[i]);
        page_code(page, "c", source->text, sources_code_length(source));
    }
}

void describe_interface(page *page)
{
    const embedded_text *header = embedded_find("include/quipu_kernel.h");
    page_section(page, "How a kernel is called");
    page_paragraph(
        page,
        "A candidate is a C file that exports NAME_kernel, NAME being the operator. It is called "
        "from several threads at once, each with a slice [begin, end) of the units, and writes the "
        "outputs of these units and nothing else: not the inputs, not the gaps between rows, not "
        "other units' outputs. All state is in the call: a static variable that is written is a "
        "race. The values of a unit do not depend on how the units were cut into slices, nor on "
        "the number of threads, and two runs give the same bits. Outputs hold garbage before the "
        "call, and what lies around the inputs is garbage too. When the function returns the work "
        "is done.");
    page_paragraph(
        page,
        "In a CUDA file, NAME_launch takes the kernel's place. It is a host function, declared "
        "extern \"C\"; the call lies in host memory, the data pointers and scratch in it are "
        "device pointers, and all work goes to the stream. It computes the slice like a kernel. "
        "scratch is NULL there unless NAME_scratch_bytes is exported.");
    page_code(page, "c", header->text, header->length);
}

/* How the blocks of quantised types lie in memory, where an operator reads such. */
static void print_blocks(const op_info *op, page *page)
{
    uint64_t types = 0;
    for (int t = 0; t < op_n_tensors(op); t++)
        types |= op->tensors[t].types;
    if ((types & (uint64_t)OP_WEIGHTS) != (uint64_t)OP_WEIGHTS) return;
    const embedded_text *source = embedded_find("src/tensor/codec_blocks.h");
    page_section(page, "Blocks of the quantised types");
    page_paragraph(page, "A row of a matrix is its blocks one after the other, without gaps.");
    page_code(page, "c", source->text, source->length);
}

void describe_op(const op_info *op, describe_extent extent, page *page)
{
    page_title(page, op->name, op->summary);
    page_paragraph(page, op->place);
    page_section(page, "Formula");
    page_code(page, "text", op->formula, strlen(op->formula));
    page_section(page, "Precision");
    page_paragraph(page, op->precision);
    page_section(page, "Edge cases");
    page_paragraph(page, op->edge_cases);
    if (op->source) {
        page_section(page, "Source");
        page_paragraph(page, op->source);
    }
    print_axes(op, extent, page);
    print_tensors(op, extent, page);
    print_params(op, extent, page);
    print_signature(op, page);
    if (extent == DESCRIBE_ALONE) describe_interface(page);
    if (extent == DESCRIBE_ALONE) print_blocks(op, page);
    print_cost(op, page);
    print_tolerances(op, extent, page);
    print_inputs(op, extent, page);
    print_workloads(op, extent, page);
    if (extent == DESCRIBE_ALONE) print_variants(op, page);
    print_reference(op, extent, page);
}
