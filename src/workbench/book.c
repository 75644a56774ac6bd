/* Prints descriptions: of one operator, of all operators, and as a page for a language model. */
#include "base/cpu.h"
#include "base/json.h"
#include "cuda/driver.h"
#include "workbench/candidate.h"
#include "workbench/describe.h"
#include "base/files.h"
#include "base/output.h"
#include "workbench/workbench.h"

#include <stdio.h>
#include <unistd.h>

qp_status workbench_describe(const char *op_name, workbench_format format, strbuf *out,
                             qp_error *error)
{
    const op_info *op;
    TRY(describe_find(op_name, &op, error));
    if (format == WORKBENCH_JSON) return output_json(describe_op_json(op), out, error);
    page page = {.out = out, .markdown = format == WORKBENCH_MARKDOWN, .level = 1};
    describe_op(op, DESCRIBE_ALONE, &page);
    return output_done(out, error);
}

static qp_status describe_all_json(strbuf *out, qp_error *error)
{
    cJSON *list = cJSON_CreateArray();
    for (int code = 0; code < OP_COUNT; code++)
        cJSON_AddItemToArray(list, describe_op_json(op_get((op_code)code)));
    return output_json(list, out, error);
}

qp_status workbench_describe_all(workbench_format format, strbuf *out, qp_error *error)
{
    if (format == WORKBENCH_JSON) return describe_all_json(out, error);
    page page = {.out = out, .markdown = format == WORKBENCH_MARKDOWN, .level = 1};
    page_title(&page, "Operators",
               "Every operator, drawn from its struct by `quipu ops describe --all --format "
               "markdown`");
    page_table(&page, 2, (const char *const[]){"operator", "what it computes"});
    for (int code = 0; code < OP_COUNT; code++) {
        const op_info *op = op_get((op_code)code);
        char link[160];
        snprintf(link, sizeof link, page.markdown ? "[%s](#%s)" : "%s", op->name, op->name);
        page_row(&page, (const char *const[]){link, op->summary});
    }
    page_table_end(&page);
    describe_notes(&page);
    describe_interface(&page);
    page.level = 2;
    for (int code = 0; code < OP_COUNT; code++)
        describe_op(op_get((op_code)code), DESCRIBE_IN_BOOK, &page);
    return output_done(out, error);
}

/* Appends the verdict on the last candidate from the file in which it was stored. */
static qp_status append_last_verdict(const char *path, page *page, qp_error *error)
{
    page_section(page, "The last attempt");
    if (access(path, F_OK) != 0) {
        page_paragraph(page, "No candidate was checked yet.");
        return QP_OK;
    }
    strbuf text = {0};
    qp_status status = files_read(path, 1 << 20, &text, error);
    if (status == QP_OK) page_code(page, "text", strbuf_text(&text), text.length);
    strbuf_free(&text);
    return status;
}

/* What a fast kernel is made for. */
static void print_machine(bool device, page *page)
{
    strbuf text = {0};
    cpu_description cpu;
    cuda_device gpu = {0};
    cpu_describe(&cpu);
    strbuf_printf(&text, "processor   %s, %d for this process\nfeatures    ",
                  *cpu.model ? cpu.model : "unknown", cpu.processors);
    cpu_features_print(cpu_features(0), &text);
    strbuf_printf(&text, "\ncaches      L1d %zu KiB, L2 %zu KiB, L3 %zu KiB\n", cpu.l1d >> 10,
                  cpu.l2 >> 10, cpu.l3 >> 10);
    if (device && cuda_device_open(&gpu, NULL) == QP_OK)
        strbuf_printf(&text, "GPU         %s, %d multiprocessors\n", gpu.name,
                      gpu.n_multiprocessors);
    cuda_device_close(&gpu);
    page_section(page, "This machine");
    page_code(page, "text", strbuf_text(&text), text.length);
    strbuf_free(&text);
}

static void print_task(const op_info *op, bool device, page *page)
{
    strbuf text = {0};
    strbuf_printf(&text,
                  "Write a fast kernel for the operator `%s` as one self-contained %s file that "
                  "exports `%s_%s` and includes nothing but `quipu_kernel.h` and headers of "
                  "the compiler and %s. First it must be right on every case below, "
                  "then fast on the workloads. Answer with the file alone",
                  op->name, device ? "CUDA C++" : "C17", op->name, device ? "launch" : "kernel",
                  device ? "CUDA" : "the C library");
    page_title(page, "Task", strbuf_text(&text));
    strbuf_free(&text);
}

qp_status workbench_prompt(const char *op_name, const char *verdict_path, bool device, strbuf *out,
                           qp_error *error)
{
    const op_info *op;
    TRY(describe_find(op_name, &op, error));
    page page = {.out = out, .markdown = true, .level = 1};
    strbuf text = {0};
    const char *ending = device ? "cu --device cuda --unconfined" : "c";
    print_task(op, device, &page);
    page_section(&page, "How it is compiled, checked and timed");
    strbuf_printf(&text,
                  "%s\n\nquipu ops check %s --kernel %s.%s\nquipu ops bench %s --kernel %s.%s\n",
                  device ? CANDIDATE_CUDA_LINE : CANDIDATE_COMPILE_LINE, op->name, op->name, ending,
                  op->name, op->name, ending);
    page_code(&page, "sh", strbuf_text(&text), text.length);
    strbuf_free(&text);
    page_paragraph(&page, "It is timed on inputs that it has not seen and that change from call to "
                          "call, with cold caches, on one thread and on several, and its outputs "
                          "are checked again after the timing.");
    print_machine(device, &page);
    describe_op(op, DESCRIBE_ALONE, &page);
    if (verdict_path) TRY(append_last_verdict(verdict_path, &page, error));
    return output_done(out, error);
}
